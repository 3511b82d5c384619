//! Policies by name, and reports of refusals.

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::{RData, RecordType};
use pandastack_net::{AdoptionResult, Denial, GUEST_DNS, GUEST_GATEWAY, NetworkPolicy, SlotIndex, SlotPool};

use crate::guest::Guest;
use crate::lab::{
    Internet, PATIENCE, PORT, PRIVATE_SERVER, SERVER, config, in_lab, in_namespace, policy, sh, until,
};

/// TCP flags of an accepted connection.
pub const SYN_ACK: u8 = 0x12;

/// Time to wait where no packet should arrive.
const SOON: Duration = Duration::from_millis(200);

/// Resolves a name as a guest does.
pub fn resolve(guest: &mut Guest, name: &str) -> Result<Vec<Ipv4Addr>, ResponseCode> {
    ask(guest, name);
    addresses_in(&next_answer(guest))
}

fn ask(guest: &mut Guest, name: &str) {
    let mut message = Message::new();
    message.set_id(7).set_op_code(OpCode::Query).set_recursion_desired(true);
    message.add_query(Query::query(name.parse().unwrap(), RecordType::A));
    guest.send_bytes(&message.to_vec().unwrap(), (GUEST_DNS, 53));
}

fn next_answer(guest: &mut Guest) -> Message {
    let answer = guest.receive().expect("the resolver must answer");
    assert_eq!(answer.from, (GUEST_DNS, 53));
    let answer = Message::from_vec(&answer.bytes).unwrap();
    assert_eq!(answer.id(), 7);
    answer
}

fn addresses_in(answer: &Message) -> Result<Vec<Ipv4Addr>, ResponseCode> {
    match answer.response_code() {
        ResponseCode::NoError => Ok(answer.answers().iter().filter_map(address).collect()),
        code => Err(code),
    }
}

fn address(record: &hickory_proto::rr::Record) -> Option<Ipv4Addr> {
    match record.data() {
        RData::A(address) => Some(address.0),
        _ => None,
    }
}

/// Returns whether a datagram is answered soon. For those that must not be.
pub fn passes(guest: &mut Guest, internet: &Internet, payload: &str, to: (Ipv4Addr, u16)) -> bool {
    is_answered(guest, internet, payload, to, Duration::from_secs(1))
}

/// Returns whether a datagram is answered. For those that must be.
pub fn arrives(guest: &mut Guest, internet: &Internet, payload: &str, to: (Ipv4Addr, u16)) -> bool {
    is_answered(guest, internet, payload, to, PATIENCE)
}

fn is_answered(
    guest: &mut Guest,
    internet: &Internet,
    payload: &str,
    to: (Ipv4Addr, u16),
    patience: Duration,
) -> bool {
    internet.arrivals();
    guest.send(payload, to);
    guest.receive_within(patience).is_some()
}

#[test]
fn names_resolve_by_policy() {
    in_lab("names_resolve_by_policy", |directory| async move {
        let _internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let slot = pool.take(&NetworkPolicy::none()).await.unwrap();
        let mut guest = Guest::new(slot.tap);
        assert_eq!(resolve(&mut guest, "a.com."), Err(ResponseCode::NXDomain));
        pool.set_policy(slot.index, &NetworkPolicy::all()).await.unwrap();
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        pool.set_policy(slot.index, &policy(r#"{"deny":["*.a.com"]}"#)).await.unwrap();
        assert_eq!(resolve(&mut guest, "x.A.com."), Err(ResponseCode::NXDomain));
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        pool.set_policy(slot.index, &policy(r#"{"allow":["*.a.com"]}"#)).await.unwrap();
        assert_eq!(resolve(&mut guest, "x.a.com."), Ok(vec![SERVER]));
        assert_eq!(resolve(&mut guest, "a.com."), Err(ResponseCode::NXDomain));
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn a_name_opens_only_its_public_address() {
    in_lab("a_name_opens_only_its_public_address", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let by_name = policy(r#"{"allow":["a.com:7000","private.com"]}"#);
        let slot = pool.take(&by_name).await.unwrap();
        let mut guest = Guest::new(slot.tap);
        assert!(!passes(&mut guest, &internet, "not resolved yet", (SERVER, PORT)));
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        assert!(arrives(&mut guest, &internet, "resolved", (SERVER, PORT)));
        assert!(!passes(&mut guest, &internet, "another port", (SERVER, PORT + 1)));
        // The owner of a name must not be able to open the operator's network.
        assert_eq!(resolve(&mut guest, "private.com."), Ok(vec![PRIVATE_SERVER]));
        assert!(!passes(&mut guest, &internet, "rebound", (PRIVATE_SERVER, PORT)));
        // A second answer for the same address renews it.
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        assert!(arrives(&mut guest, &internet, "again", (SERVER, PORT)));
        // Another policy drops resolved names, also for the open flow.
        pool.set_policy(slot.index, &policy(r#"{"allow":["b.com"]}"#)).await.unwrap();
        assert!(!passes(&mut guest, &internet, "forgotten", (SERVER, PORT)));
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn a_resolved_name_does_not_open_a_denied_network() {
    in_lab("a_resolved_name_does_not_open_a_denied_network", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let slot = pool.take(&policy(r#"{"allow":["a.com"],"deny":["93.184.216.0/24"]}"#)).await.unwrap();
        let mut guest = Guest::new(slot.tap);
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        assert!(!passes(&mut guest, &internet, "a denied network", (SERVER, PORT)));
        assert_eq!(guest.connect(5001, (SERVER, 443), SOON), None, "the proxy took it");
        let change = async |guest: &mut Guest, json: &str| {
            pool.set_policy(slot.index, &policy(json)).await.unwrap();
            assert_eq!(resolve(guest, "a.com."), Ok(vec![SERVER]));
        };
        change(&mut guest, r#"{"allow":["a.com"],"deny":["0.0.0.0/0:7000"]}"#).await;
        assert!(!passes(&mut guest, &internet, "a denied port", (SERVER, PORT)));
        assert_eq!(guest.connect(5002, (SERVER, 443), PATIENCE), Some(SYN_ACK));
        change(&mut guest, r#"{"allow":["a.com"],"deny":["0.0.0.0/0:443","10.0.0.0/8"]}"#).await;
        assert!(arrives(&mut guest, &internet, "another port", (SERVER, PORT)));
        assert_eq!(guest.connect(5003, (SERVER, 443), SOON), None, "the proxy took it");
        change(&mut guest, r#"{"allow":["a.com"]}"#).await;
        assert_eq!(guest.connect(5004, (SERVER, 443), PATIENCE), Some(SYN_ACK));
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn a_name_denied_on_a_port_blocks_that_port() {
    in_lab("a_name_denied_on_a_port_blocks_that_port", |directory| async move {
        let internet = Internet::connect();
        let first = SlotPool::open(config(&directory)).unwrap();
        let slot = first.take(&policy(r#"{"allow":["a.com"],"deny":["a.com:7000"]}"#)).await.unwrap();
        let mut guest = Guest::new(slot.tap);
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        assert!(!passes(&mut guest, &internet, "a denied port", (SERVER, PORT)));
        assert_eq!(guest.connect(5001, (SERVER, 443), PATIENCE), Some(SYN_ACK));
        let denied = policy(r#"{"deny":["a.com:7000"]}"#);
        first.set_policy(slot.index, &denied).await.unwrap();
        assert_eq!(resolve(&mut guest, "b.com."), Ok(vec![SERVER]));
        assert!(arrives(&mut guest, &internet, "open by address", (SERVER, PORT)));
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        assert!(!passes(&mut guest, &internet, "now it has that name", (SERVER, PORT)));
        drop(first);
        let second = SlotPool::open(config(&directory)).unwrap();
        second.adopt(&[(slot.index, denied)]).await.unwrap();
        assert!(!passes(&mut guest, &internet, "resolved before a restart", (SERVER, PORT)));
        second.set_policy(slot.index, &policy(r#"{"deny":["b.com:7000"]}"#)).await.unwrap();
        assert!(arrives(&mut guest, &internet, "forgotten", (SERVER, PORT)));
        second.shutdown().await.unwrap();
    });
}

#[test]
fn a_dns_response_after_a_policy_change_opens_nothing() {
    in_lab("a_dns_response_after_a_policy_change_opens_nothing", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let slot = pool.take(&policy(r#"{"allow":["held.com"]}"#)).await.unwrap();
        let mut guest = Guest::new(slot.tap);
        ask(&mut guest, "held.com.");
        until("the name server has the question", || !internet.arrivals().is_empty()).await;
        // Both policies have one set of ports: without care, addresses of one would be open in the
        // other.
        pool.set_policy(slot.index, &policy(r#"{"allow":["release.private.com"]}"#)).await.unwrap();
        ask(&mut guest, "release.private.com.");
        for answer in [next_answer(&mut guest), next_answer(&mut guest)] {
            let is_held = answer.queries()[0].name().to_ascii().contains("held");
            assert_eq!(addresses_in(&answer).is_err(), is_held, "{answer:?}");
        }
        assert!(!passes(&mut guest, &internet, "of the policy before", (SERVER, PORT)));
        pool.shutdown().await.unwrap();
    });
}

/// Creates a slot's rules such that everything passes and no policy can be put into them, as those of
/// another version may be.
fn spoil(directory: &Path, index: SlotIndex) {
    let namespace = File::open(directory.join(format!("netns/lab-{index}"))).unwrap();
    in_namespace(&namespace, || {
        sh("nft flush chain inet slot egress && nft delete set inet slot closed");
        sh("nft add rule inet slot egress accept");
    });
}

#[test]
fn a_policy_rejected_by_the_kernel_takes_no_effect() {
    in_lab("a_policy_rejected_by_the_kernel_takes_no_effect", |directory| async move {
        let _internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let slot = pool.take(&policy(r#"{"allow":["a.com"]}"#)).await.unwrap();
        let mut guest = Guest::new(slot.tap);
        spoil(&directory, slot.index);
        pool.set_policy(slot.index, &policy(r#"{"allow":["b.com"]}"#)).await.unwrap_err();
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        assert_eq!(resolve(&mut guest, "b.com."), Err(ResponseCode::NXDomain));
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn a_slot_without_its_policy_blocks_all_traffic() {
    in_lab("a_slot_without_its_policy_blocks_all_traffic", |directory| async move {
        let internet = Internet::connect();
        let first = SlotPool::open(config(&directory)).unwrap();
        let slot = first.take(&NetworkPolicy::none()).await.unwrap();
        let mut guest = Guest::new(slot.tap);
        spoil(&directory, slot.index);
        assert!(arrives(&mut guest, &internet, "its rules are spoiled", (SERVER, PORT)));
        drop(first);
        let second = SlotPool::open(config(&directory)).unwrap();
        let adopted = second.adopt(&[(slot.index, NetworkPolicy::none())]).await.unwrap();
        assert_eq!(adopted, AdoptionResult { kept: vec![slot.index], missing: vec![] });
        assert!(!passes(&mut guest, &internet, "not its policy", (SERVER, PORT)));
        second.shutdown().await.unwrap();
    });
}

#[test]
fn resolved_names_survive_an_agent_restart() {
    in_lab("resolved_names_survive_an_agent_restart", |directory| async move {
        let internet = Internet::connect();
        let by_name = policy(r#"{"allow":["a.com"]}"#);
        let first = SlotPool::open(config(&directory)).unwrap();
        let slot = first.take(&by_name).await.unwrap();
        let mut guest = Guest::new(slot.tap);
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        drop(first);
        let second = SlotPool::open(config(&directory)).unwrap();
        second.adopt(&[(slot.index, by_name)]).await.unwrap();
        assert!(arrives(&mut guest, &internet, "resolved before", (SERVER, PORT)));
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        assert_eq!(resolve(&mut guest, "b.com."), Err(ResponseCode::NXDomain));
        second.shutdown().await.unwrap();
    });
}

#[test]
fn guests_wait_while_the_agent_is_restarted() {
    in_lab("guests_wait_while_the_agent_is_restarted", |directory| async move {
        let _internet = Internet::connect();
        let by_name = policy(r#"{"allow":["a.com"]}"#);
        let first = SlotPool::open(config(&directory)).unwrap();
        let slot = first.take(&by_name).await.unwrap();
        let mut guest = Guest::new(slot.tap);
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        let mut port = 5000;
        let mut connect = |guest: &mut Guest, patience| {
            port += 1;
            guest.connect(port, (SERVER, 443), patience)
        };
        assert_eq!(connect(&mut guest, PATIENCE), Some(SYN_ACK));
        drop(first);
        // The agent's listeners close a moment later. After that nothing arrives, not even a
        // refusal.
        let closing = Instant::now();
        let mut answer = connect(&mut guest, SOON);
        while answer == Some(SYN_ACK) && closing.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(5)).await;
            answer = connect(&mut guest, SOON);
        }
        assert_eq!(answer, None, "the kernel answered in the agent's place");
        assert_eq!(guest.connect(6000, (GUEST_GATEWAY, 5432), SOON), None, "also where databases are");
        guest.send("a query", (GUEST_DNS, 53));
        assert!(!guest.is_refused(SOON), "the kernel answered in the resolver's place");
        let second = SlotPool::open(config(&directory)).unwrap();
        second.adopt(&[(slot.index, by_name)]).await.unwrap();
        assert_eq!(connect(&mut guest, PATIENCE), Some(SYN_ACK));
        assert_eq!(guest.connect(6001, (GUEST_GATEWAY, 5432), PATIENCE), Some(SYN_ACK));
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        second.shutdown().await.unwrap();
    });
}

#[test]
fn denied_names_and_connections_are_reported() {
    in_lab("denied_names_and_connections_are_reported", |directory| async move {
        let _internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let mut denials = pool.denials().unwrap();
        assert!(pool.denials().is_none(), "there is one reader");
        let slot = pool.take(&policy(r#"{"allow":["a.com"]}"#)).await.unwrap();
        let (mut guest, index) = (Guest::new(slot.tap), slot.index);
        assert_eq!(resolve(&mut guest, "b.com."), Err(ResponseCode::NXDomain));
        let told = |protocol: &str, address, port, name: Option<&str>| Denial {
            slot: index,
            protocol: protocol.to_owned(),
            address,
            port,
            name: name.map(str::to_owned),
            limit: None,
        };
        let next = tokio::time::timeout(PATIENCE, denials.recv()).await.unwrap().unwrap();
        assert_eq!(next, told("dns", None, None, Some("b.com")));
        // The listener may start after the slot was taken: send packets until one is reported.
        let next = loop {
            guest.send("closed", (PRIVATE_SERVER, PORT));
            if let Ok(next) = tokio::time::timeout(Duration::from_millis(100), denials.recv()).await {
                break next.unwrap();
            }
        };
        assert_eq!(next, told("udp", Some(PRIVATE_SERVER), Some(PORT), None));
        // So are web connections and HTTP/3 to an address that no allowed name was resolved to.
        guest.connect(5001, (SERVER, 443), SOON);
        guest.send("HTTP/3", (SERVER, 443));
        for protocol in ["tcp", "udp"] {
            let expect = told(protocol, Some(SERVER), Some(443), None);
            // More of the datagrams above may be reported before it.
            while tokio::time::timeout(PATIENCE, denials.recv()).await.unwrap().unwrap() != expect {}
        }
        pool.shutdown().await.unwrap();
    });
}
