//! The resolver of guests: a DNS forwarder that knows the slot of each query.
//!
//! The resolver inspects the question and, under a policy by name, the addresses in the answer; everything
//! else passes unchanged. A name that is not allowed does not exist for the guest, and its query is
//! not forwarded: queries could carry data out.
//!
//! Must hold: an answer's addresses are in the rules before the guest gets the answer, under the
//! policy in force then.

use std::net::Ipv4Addr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use pandastack_types::chain;
use pandastack_types::network::{Ceiling, NetworkPolicy, is_public};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::denial::Denial;
use super::limits::ACCEPT_PAUSE;
use super::registry::Registry;
use super::slot_names::SlotNames;
use super::upstream::{DATAGRAM_BYTES_MAX, read_framed, write_framed};

use crate::blocking::blocking;
use crate::ruleset::ResolvedName;
use crate::{ruleset, slot};

/// Queries of all guests in flight. Beyond it they are dropped, and retried by the guests.
const QUERIES_MAX: usize = 4096;
/// TCP connections of all guests. Beyond it they are closed at once.
const CONNECTIONS_MAX: usize = 512;
/// Silence after which a TCP connection is closed.
const CONNECTION_IDLE_MAX: Duration = Duration::from_secs(10);
/// Shortest and longest time that a name's address stays open. Programs use an address for longer
/// than its TTL, and a TTL of a week must not keep an address open that long.
const NAMED_LIFETIME_MIN: Duration = Duration::from_secs(60);
pub(super) const NAMED_LIFETIME_MAX: Duration = Duration::from_secs(3600);
/// Time that the addresses of a name denied on some ports stay closed there: at least as long as
/// any stays open.
const SHUT_LIFETIME: Duration = NAMED_LIFETIME_MAX;
/// Addresses used from one answer. A longer answer for a name that is denied on some ports is
/// withheld from the guest.
pub(super) const ADDRESSES_PER_ANSWER_MAX: usize = 32;

pub(super) fn serve(registry: &Arc<Registry>, udp: UdpSocket, tcp: TcpListener) {
    // Weak references: the tasks must end with the pool.
    registry.tasks.spawn(serve_udp(Arc::downgrade(registry), registry.stop.clone(), Arc::new(udp)));
    registry.tasks.spawn(serve_tcp(Arc::downgrade(registry), registry.stop.clone(), tcp));
}

async fn serve_udp(registry: Weak<Registry>, stop: CancellationToken, socket: Arc<UdpSocket>) {
    let in_flight = Arc::new(Semaphore::new(QUERIES_MAX));
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            () = stop.cancelled() => return,
        };
        // The error belongs to an earlier response whose recipient was gone.
        let Ok((length, from)) = received else { continue };
        let Some(registry) = registry.upgrade() else { return };
        let (Some(slot), Ok(permit)) = (registry.slot_of(from), Arc::clone(&in_flight).try_acquire_owned())
        else {
            continue;
        };
        let (socket, query) = (Arc::clone(&socket), buffer[..length].to_vec());
        registry.tasks.clone().spawn(async move {
            let _permit = permit;
            if let Some(answer) = answer(&registry, &slot, &query, false).await {
                // An error means that the guest is gone.
                let _ = socket.send_to(&answer, from).await;
            }
        });
    }
}

async fn serve_tcp(registry: Weak<Registry>, stop: CancellationToken, listener: TcpListener) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let Ok((stream, from)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(registry) = registry.upgrade() else { return };
        let Some(slot) = registry.slot_of(from) else { continue };
        // The guest's own share first: one guest must not use up what all have.
        let permits = [&slot.name_connections, &connections].map(|of| Arc::clone(of).try_acquire_owned());
        let [Ok(own), Ok(shared)] = permits else { continue };
        registry.tasks.clone().spawn(async move {
            let _permits = (own, shared);
            serve_connection(&registry, &slot, stream).await;
        });
    }
}

async fn serve_connection(registry: &Arc<Registry>, slot: &Arc<SlotNames>, mut stream: TcpStream) {
    while let Ok(Ok(query)) = timeout(CONNECTION_IDLE_MAX, read_framed(&mut stream)).await {
        let Some(answer) = answer(registry, slot, &query, true).await else { return };
        if write_framed(&mut stream, &answer).await.is_err() {
            return;
        }
    }
}

/// The answer to a query; none for an invalid one, or when the guest has too many in flight.
async fn answer(
    registry: &Arc<Registry>,
    slot: &Arc<SlotNames>,
    bytes: &[u8],
    by_tcp: bool,
) -> Option<Vec<u8>> {
    let message = Message::from_vec(bytes).ok()?;
    if message.message_type() != MessageType::Query {
        return None;
    }
    let _permit = Arc::clone(&slot.queries).try_acquire_owned().ok()?;
    let [question] = message.queries() else { return reply(&message, ResponseCode::FormErr) };
    if message.op_code() != OpCode::Query {
        return reply(&message, ResponseCode::NotImp);
    }
    let (name, kind) = (name_of(question), question.query_type());
    let refuse = |code| {
        if code == ResponseCode::NXDomain {
            let (slot, name) = (slot.index, Some(name.clone()));
            registry.report(Denial {
                slot,
                protocol: "dns".to_owned(),
                address: None,
                port: None,
                name,
                limit: None,
            });
        }
        reply(&message, code)
    };
    if let Some(code) = own_answer(&slot.policy(), &registry.plan.ceiling, &name, kind) {
        return refuse(code);
    }
    match registry.upstreams.resolve(bytes, by_tcp).await {
        Ok(answer) => match follow(registry, slot, &name, kind, &answer).await {
            Some(code) => refuse(code),
            None => Some(answer),
        },
        Err(error) => {
            tracing::warn!(
                slot = %slot.index, error = %chain(&error),
                "the host's name servers are not responding"
            );
            reply(&message, ResponseCode::ServFail)
        }
    }
}

/// The policy's own response to a query; `None` if the name servers answer it.
fn own_answer(
    policy: &NetworkPolicy,
    ceiling: &Ceiling,
    name: &str,
    kind: RecordType,
) -> Option<ResponseCode> {
    if !policy.resolves(name, ceiling) {
        return Some(ResponseCode::NXDomain);
    }
    // These records hide the host name of later connections (encrypted client hello), which then
    // could not be checked.
    let by_name = policy.opens_names() || policy.denies_names();
    (by_name && matches!(kind, RecordType::HTTPS | RecordType::SVCB)).then_some(ResponseCode::NoError)
}

fn name_of(question: &Query) -> String {
    let name = question.name().to_ascii().to_ascii_lowercase();
    name.strip_suffix('.').map(str::to_owned).unwrap_or(name)
}

/// Opens and closes the addresses of a name before the guest gets the answer; returns a replacement
/// answer, if any.
async fn follow(
    registry: &Arc<Registry>,
    slot: &Arc<SlotNames>,
    name: &str,
    kind: RecordType,
    answer: &[u8],
) -> Option<ResponseCode> {
    // Read again: the policy may have changed since the query.
    let (policy, ceiling) = (slot.policy(), &registry.plan.ceiling);
    if let Some(code) = own_answer(&policy, ceiling, name, kind) {
        return Some(code);
    }
    if policy.opened_by(name, ceiling).is_empty() && policy.shut_by(name).is_empty() {
        return None;
    }
    let (plan, of, asked, answer) =
        (registry.plan.clone(), Arc::clone(slot), name.to_owned(), answer.to_vec());
    let followed = blocking(move || {
        let _unchanged = of.lock_rules();
        let policy = of.policy();
        if let Some(code) = own_answer(&policy, &plan.ceiling, &asked, kind) {
            return Ok(Some(code));
        }
        let Some(learned) = learn(&policy, &plan.ceiling, &asked, &answer) else {
            return Ok(Some(ResponseCode::ServFail));
        };
        if learned.open.is_empty() && learned.shut.is_empty() {
            return Ok(None);
        }
        slot::apply(&plan, of.index, ruleset::learned(&learned, &asked)).map(|()| None)
    });
    match followed.await {
        Ok(code) => code,
        Err(error) => {
            tracing::warn!(
                slot = %slot.index, name, error = %chain(&error),
                "cannot update the addresses of a name"
            );
            // Addresses that fail to open stay closed, which is safe. If the policy closes
            // addresses of the name, the answer is withheld.
            (!slot.policy().shut_by(name).is_empty()).then_some(ResponseCode::ServFail)
        }
    }
}

/// Extracts the addresses of an answer for the rules. `None` when the rules cannot hold all
/// addresses that must be closed.
pub(super) fn learn(
    policy: &NetworkPolicy,
    ceiling: &Ceiling,
    name: &str,
    answer: &[u8],
) -> Option<ResolvedName> {
    let (open_classes, shut_classes) = (policy.opened_by(name, ceiling), policy.shut_by(name));
    let message = Message::from_vec(answer);
    if message.is_err() && !shut_classes.is_empty() {
        return None;
    }
    let records = message.as_ref().map(Message::answers).unwrap_or_default();
    let (open, open_for) = match open_classes.is_empty() {
        true => (Vec::new(), Duration::ZERO),
        false => addresses_in(records),
    };
    let shut = match shut_classes.is_empty() {
        true => Vec::new(),
        false => distinct(records.iter().filter_map(address_of).map(|(address, _)| address)),
    };
    (shut.len() <= ADDRESSES_PER_ANSWER_MAX).then_some(ResolvedName {
        open,
        open_classes,
        open_for,
        shut,
        shut_classes,
        shut_for: SHUT_LIFETIME,
    })
}

/// Public addresses of an answer, and how long they hold.
fn addresses_in(records: &[Record]) -> (Vec<Ipv4Addr>, Duration) {
    let public = records.iter().filter_map(address_of).filter(|(address, _)| is_public(*address));
    let records: Vec<_> = public.take(ADDRESSES_PER_ANSWER_MAX).collect();
    let seconds = records.iter().map(|(_, ttl)| *ttl).min().unwrap_or_default();
    let lifetime = Duration::from_secs(seconds.into()).clamp(NAMED_LIFETIME_MIN, NAMED_LIFETIME_MAX);
    (distinct(records.into_iter().map(|(address, _)| address)), lifetime)
}

/// An address and how long it holds, in seconds.
fn address_of(record: &Record) -> Option<(Ipv4Addr, u32)> {
    match record.data() {
        RData::A(address) => Some((address.0, record.ttl())),
        _ => None,
    }
}

fn distinct(addresses: impl Iterator<Item = Ipv4Addr>) -> Vec<Ipv4Addr> {
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// An answer of our own, without records.
fn reply(query: &Message, code: ResponseCode) -> Option<Vec<u8>> {
    let mut answer = Message::new();
    answer
        .set_id(query.id())
        .set_message_type(MessageType::Response)
        .set_op_code(query.op_code())
        .set_recursion_desired(query.recursion_desired())
        .set_recursion_available(true)
        .set_response_code(code)
        .add_queries(query.queries().iter().cloned());
    answer.to_vec().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::Name;
    use hickory_proto::rr::rdata::A;

    fn answer_with(records: &[(&str, u32)]) -> Vec<u8> {
        let mut message = Message::new();
        let name: Name = "a.com.".parse().expect("name");
        for (address, ttl) in records {
            let data = RData::A(A(address.parse().expect("address")));
            message.add_answer(Record::from_rdata(name.clone(), *ttl, data));
        }
        message.to_vec().expect("message")
    }

    fn policy(json: &str) -> NetworkPolicy {
        serde_json::from_str(json).expect("policy")
    }

    #[test]
    fn only_public_addresses_are_opened_and_for_a_limited_time() {
        let opens = policy(r#"{"allow":["a.com"]}"#);
        let opened = |records: &[(&str, u32)]| {
            let learned =
                learn(&opens, &Ceiling::default(), "a.com", &answer_with(records)).expect("learned");
            assert!(learned.shut.is_empty());
            (learned.open.len(), learned.open_for.as_secs())
        };
        assert_eq!(opened(&[("93.184.216.34", 300), ("93.184.216.35", 900)]), (2, 300));
        assert_eq!(opened(&[("93.184.216.34", 0)]), (1, 60));
        assert_eq!(opened(&[("93.184.216.34", 1_000_000)]), (1, 3600));
        for private in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "192.168.1.1", "0.0.0.0"] {
            assert_eq!(opened(&[(private, 300)]).0, 0, "{private}");
        }
        let many: Vec<String> = (0..=ADDRESSES_PER_ANSWER_MAX).map(|at| format!("93.184.216.{at}")).collect();
        let many: Vec<(&str, u32)> = many.iter().map(|address| (address.as_str(), 300)).collect();
        assert_eq!(opened(&many).0, ADDRESSES_PER_ANSWER_MAX);
        assert!(learn(&opens, &Ceiling::default(), "a.com", b"nonsense").expect("learned").open.is_empty());
    }

    #[test]
    fn addresses_of_a_partly_denied_name_are_blocked_or_withheld() {
        let denies = policy(r#"{"deny":["a.com:22"]}"#);
        let answer = answer_with(&[("93.184.216.34", 1), ("10.0.0.1", 1), ("10.0.0.1", 1)]);
        let learned = learn(&denies, &Ceiling::default(), "a.com", &answer).expect("learned");
        assert_eq!((learned.shut.len(), learned.shut_classes.len(), learned.open.len()), (2, 1, 0));
        assert!(learned.shut_for >= NAMED_LIFETIME_MAX);
        let many: Vec<String> = (0..=ADDRESSES_PER_ANSWER_MAX).map(|at| format!("93.184.216.{at}")).collect();
        let many: Vec<(&str, u32)> = many.iter().map(|address| (address.as_str(), 300)).collect();
        assert!(learn(&denies, &Ceiling::default(), "a.com", &answer_with(&many)).is_none());
        assert!(learn(&denies, &Ceiling::default(), "a.com", b"nonsense").is_none());
    }
}
