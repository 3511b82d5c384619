//! Denied packets, reported by the kernel's log group of each slot's namespace.
//!
//! The rules report a bounded number each second, with the first bytes of the packet; see [`crate::ruleset`].

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use libc::{IPPROTO_ICMP, IPPROTO_TCP, IPPROTO_UDP};
use pandastack_types::agent_api::EgressLimit;
use pandastack_types::chain;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::denial::Denial;
use super::registry::Registry;
use super::slot_names::SlotNames;
use crate::blocking::blocking;
use crate::config::SlotIndex;
use crate::error::Result;
use crate::namespace::NetNs;
use crate::packet_log::{LoggedPacket, PacketLog};
use crate::ruleset::DENIED_GROUP;

/// Reports refused packets until the slot is forgotten.
pub(super) async fn watch(registry: Arc<Registry>, slot: Arc<SlotNames>, log: Option<PacketLog>) {
    let opened = match log {
        Some(log) => Ok(log),
        None => open(registry.namespace(&slot)).await,
    };
    let registry = {
        let weak = Arc::downgrade(&registry);
        drop(registry);
        weak
    };
    let log = match opened.map(register) {
        Ok(Ok(log)) => log,
        Ok(Err(error)) => {
            return tracing::warn!(
                slot = %slot.index, error = %chain(&error),
                "cannot report denied connections"
            );
        }
        // Expected for a slot that was released at once.
        Err(error) => {
            return tracing::debug!(
                slot = %slot.index, error = %chain(&error),
                "cannot report denied connections"
            );
        }
    };
    tokio::select! {
        () = report_all(&registry, slot.index, &log) => {}
        () = slot.stop.cancelled() => {}
    }
    // Right after a change of rules, closing waits some 10 ms for the kernel to release the old
    // rules.
    let _ = tokio::task::spawn_blocking(move || drop(log)).await;
}

async fn open(namespace: PathBuf) -> Result<PacketLog> {
    blocking(move || NetNs::open(&namespace)?.run(|| PacketLog::open(DENIED_GROUP))).await
}

/// Reports until the receiver is gone.
async fn report_all(registry: &Weak<Registry>, slot: SlotIndex, log: &AsyncFd<PacketLog>) {
    while let Ok(mut ready) = log.readable().await {
        match ready.try_io(|log| log.get_ref().receive()) {
            Ok(Ok(packets)) if !report(registry, slot, &packets) => return,
            // An overrun loses some reports; they are not counted, like those above the rules'
            // rate.
            _ => {}
        }
    }
}

#[allow(unsafe_code)]
fn register(log: PacketLog) -> std::io::Result<AsyncFd<PacketLog>> {
    // SAFETY: the log owns its descriptor and lends it only by shared reference, so it stays open and the
    // same until the registration, which owns the log, ends.
    unsafe { AsyncFd::register_with_interest(log, Interest::READABLE) }.map_err(Into::into)
}

fn report(registry: &Weak<Registry>, slot: SlotIndex, packets: &[LoggedPacket]) -> bool {
    let Some(registry) = registry.upgrade() else { return false };
    for denial in packets.iter().filter_map(|packet| read(slot, packet)) {
        registry.report(denial);
    }
    true
}

/// Reads the destination of an IPv4 packet, and why it was refused.
fn read(slot: SlotIndex, logged: &LoggedPacket) -> Option<Denial> {
    let packet = logged.bytes.as_slice();
    let limit = EgressLimit::ALL.into_iter().find(|limit| limit.as_str() == logged.word);
    let header_bytes = usize::from(packet.first()? & 0x0f) * 4;
    let number = *packet.get(9)?;
    let address: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    let port =
        packet.get(header_bytes + 2..header_bytes + 4).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    let (protocol, port) = match i32::from(number) {
        IPPROTO_TCP => ("tcp".to_owned(), port),
        IPPROTO_UDP => ("udp".to_owned(), port),
        IPPROTO_ICMP => ("icmp".to_owned(), None),
        other => (other.to_string(), None),
    };
    Some(Denial { slot, protocol, address: Some(Ipv4Addr::from(address)), port, name: None, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_packets_are_parsed_and_truncation_is_tolerated() {
        let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 192, 0, 0, 2, 10, 1, 2, 3];
        packet.extend([0x9c, 0x40, 0x15, 0x38]);
        let logged = |bytes: &[u8], word: &str| LoggedPacket { bytes: bytes.to_vec(), word: word.to_owned() };
        let denial = read(SlotIndex(7), &logged(&packet, "")).expect("readable");
        assert_eq!((denial.protocol.as_str(), denial.port, denial.limit), ("tcp", Some(5432), None));
        assert_eq!(denial.address, Some(Ipv4Addr::new(10, 1, 2, 3)));
        for length in 0..packet.len() {
            read(SlotIndex(7), &logged(&packet[..length], ""));
        }
        packet[9] = 1;
        let denial = read(SlotIndex(7), &logged(&packet, "connections_max")).expect("readable");
        assert_eq!((denial.port, denial.limit), (None, Some(EgressLimit::ConnectionsMax)));
    }
}
