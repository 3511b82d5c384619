//! The host's connection tracking table: sized for all slots, and cleared of slots that are gone.
//!
//! A guest's connection is in two tables. Its namespace's table ends with the slot; in the host's
//! table the entry would stay for the kernel's idle timeout, five days for TCP, take up room that
//! all slots share, and apply to the next slot with that address.
//!
//! Must hold: a removal always names one connection, by its whole tuple. To the kernel a removal
//! without a tuple means the whole table, and only newer kernels support filters by address, so the
//! slots' connections are selected here. Numbers are from `linux/netfilter/nfnetlink_conntrack.h`.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::Ipv4Addr;

use libc::NFNL_SUBSYS_CTNETLINK;
use pandastack_types::chain;

use crate::error::{NetError, Result};
use crate::netlink::{ACK_DEADLINE, FIRST_SEQUENCE, HEADER_BYTES, Netlink, Subsystem, attributes, verdicts};

const NLM_F_REQUEST: u16 = 0x001;
const NLM_F_ACK: u16 = 0x004;
const NLM_F_DUMP: u16 = 0x300;

/// A connection as the kernel lists it: message 0 of the subsystem.
const TRACKED: u16 = (NFNL_SUBSYS_CTNETLINK as u16) << 8;
const LIST: u16 = TRACKED | 1;
const REMOVE: u16 = TRACKED | 2;

/// Bytes of `struct nfgenmsg`, before the attributes.
const GENERIC_BYTES: usize = 4;

/// Attributes of a connection.
const ORIGINAL_TUPLE: u16 = 1;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// Attribute of a tuple.
const TUPLE_ADDRESSES: u16 = 1;
/// Attributes of its addresses.
const IPV4_SOURCE: u16 = 1;
const IPV4_DESTINATION: u16 = 2;

/// Removals sent together: their answers must fit into the socket's buffer.
const REMOVALS_AT_ONCE: usize = 64;

const MAX_PATH: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
const COUNT_PATH: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// Approximate kernel memory of one connection.
const ENTRY_BYTES: u64 = 384;
/// Part of the host's memory that connections may take.
const MEMORY_PART: u64 = 32;
/// Most connections that room is made for: the kernel's index is made for a quarter of it, and more make it slow.
const ROOM_MAX: u64 = 1 << 20;

/// Room in the table of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableSpace {
    pub(crate) used: u64,
    pub(crate) max: u64,
}

/// Room in the calling thread's namespace; `None` while the kernel tracks nothing.
pub(crate) fn table_space() -> Option<TableSpace> {
    Some(TableSpace { used: read_number(COUNT_PATH)?, max: read_number(MAX_PATH)? })
}

/// Raises the kernel's limit to the slots' possible need, if memory permits. Never lowers it, and
/// works with the existing limit on a host that does not permit a change.
pub(crate) fn enlarge_table(slots: usize, connections_per_slot: u32) {
    let Some(max) = read_number(MAX_PATH) else { return };
    let of_all_slots = (slots as u64).saturating_mul(connections_per_slot.into());
    let wanted = wanted_room(memory_bytes(), of_all_slots);
    if wanted <= max {
        return;
    }
    match fs::write(MAX_PATH, wanted.to_string()) {
        Ok(()) => tracing::info!(from = max, to = wanted, "raised nf_conntrack_max"),
        Err(error) => tracing::debug!(error = %chain(&error), max, wanted, "cannot raise nf_conntrack_max"),
    }
}

fn wanted_room(memory_bytes: u64, of_all_slots: u64) -> u64 {
    (memory_bytes / MEMORY_PART / ENTRY_BYTES).min(of_all_slots).min(ROOM_MAX)
}

fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|total| total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

fn read_number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Removes every connection that one of these addresses began or took from the table of the calling thread's namespace.
pub(crate) fn forget(addresses: &BTreeSet<Ipv4Addr>) -> Result<()> {
    let fail = |action: &str, reason| NetError::Netlink {
        action: action.to_owned(),
        target: "connection tracking".to_owned(),
        reason,
    };
    let socket = Netlink::open(Subsystem::Netfilter)?;
    let found = find(&socket, addresses).map_err(|error| fail("listing connections", error))?;
    for keys in found.chunks(REMOVALS_AT_ONCE) {
        remove(&socket, keys).map_err(|error| fail("removing connections", error))?;
    }
    Ok(())
}

/// Keys of the connections of these addresses.
fn find(socket: &Netlink, addresses: &BTreeSet<Ipv4Addr>) -> io::Result<Vec<Vec<u8>>> {
    let mut request = Vec::new();
    push(&mut request, LIST, NLM_F_REQUEST | NLM_F_DUMP, FIRST_SEQUENCE, &[]);
    let mut found = Vec::new();
    socket.list(&request, TRACKED, |body| found.extend(key(body, addresses)))?;
    Ok(found)
}

/// Removes connections; connections that have already ended are ignored.
fn remove(socket: &Netlink, keys: &[Vec<u8>]) -> io::Result<()> {
    let mut request = Vec::new();
    for (sequence, key) in (FIRST_SEQUENCE..).zip(keys) {
        push(&mut request, REMOVE, NLM_F_REQUEST | NLM_F_ACK, sequence, key);
    }
    socket.send(&request)?;
    let mut unanswered = keys.len();
    while unanswered > 0 {
        let answers = socket.receive_within(ACK_DEADLINE)?;
        for (_, verdict) in verdicts(&answers) {
            unanswered = unanswered.saturating_sub(1);
            // EBUSY: the connection is offloaded to a network card, which returns it when it ends.
            if !matches!(-verdict, 0 | libc::ENOENT | libc::EBUSY) {
                return Err(io::Error::from_raw_os_error(-verdict));
            }
        }
    }
    Ok(())
}

fn push(bytes: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, attributes: &[u8]) {
    let length = HEADER_BYTES + GENERIC_BYTES + attributes.len();
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([libc::AF_INET as u8, 0, 0, 0]);
    bytes.extend_from_slice(attributes);
}

/// The attributes by which the kernel finds a connection again, if it is one of these addresses'.
fn key(body: &[u8], addresses: &BTreeSet<Ipv4Addr>) -> Option<Vec<u8>> {
    let body = body.get(GENERIC_BYTES..)?;
    let tuple = attributes(body).find(|attribute| attribute.kind == ORIGINAL_TUPLE)?;
    let ends = attributes(tuple.value()).find(|attribute| attribute.kind == TUPLE_ADDRESSES)?;
    let mut ends = attributes(ends.value())
        .filter(|end| matches!(end.kind, IPV4_SOURCE | IPV4_DESTINATION))
        .filter_map(|end| <[u8; 4]>::try_from(end.value()).ok());
    if !ends.any(|address| addresses.contains(&Ipv4Addr::from(address))) {
        return None;
    }
    let mut key = Vec::new();
    for attribute in attributes(body).filter(|one| matches!(one.kind, ORIGINAL_TUPLE | ID | ZONE)) {
        key.extend_from_slice(attribute.whole);
        key.resize(key.len().next_multiple_of(4), 0);
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Ipv4Addr = Ipv4Addr::new(10, 201, 0, 2);
    const SERVER: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 34);
    const NESTED: u16 = 0x8000;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn tuple(kind: u16, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
        let ends =
            [attribute(IPV4_SOURCE, &from.octets()), attribute(IPV4_DESTINATION, &to.octets())].concat();
        let protocol = attribute(2 | NESTED, &attribute(1, &[6]));
        attribute(kind | NESTED, &[attribute(TUPLE_ADDRESSES | NESTED, &ends), protocol].concat())
    }

    /// A listed connection whose replies come from another address: only its original tuple
    /// identifies its owner.
    fn listed(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
        let answers = tuple(2, SERVER, Ipv4Addr::new(198, 51, 100, 1));
        let status = attribute(3, &[0, 0, 0, 8]);
        let id = attribute(ID, &[1, 2, 3, 4]);
        [vec![libc::AF_INET as u8, 0, 0, 0], tuple(ORIGINAL_TUPLE, from, to), answers, status, id].concat()
    }

    #[test]
    fn slot_connections_are_found_by_either_endpoint() {
        let ours = BTreeSet::from([SLOT]);
        for (from, to) in [(SLOT, SERVER), (Ipv4Addr::new(10, 201, 0, 1), SLOT)] {
            let expect = [tuple(ORIGINAL_TUPLE, from, to), attribute(ID, &[1, 2, 3, 4])].concat();
            assert_eq!(key(&listed(from, to), &ours), Some(expect), "{from} to {to}");
        }
        assert_eq!(key(&listed(Ipv4Addr::new(10, 201, 0, 6), SERVER), &ours), None);
        assert_eq!(key(&listed(SLOT, SERVER), &BTreeSet::new()), None);
    }

    #[test]
    fn truncated_entries_never_yield_a_removal_without_a_tuple() {
        let (whole, ours) = (listed(SLOT, SERVER), BTreeSet::from([SLOT]));
        for length in 0..whole.len() {
            let key = key(&whole[..length], &ours);
            assert!(key.is_none_or(|key| key.starts_with(&tuple(ORIGINAL_TUPLE, SLOT, SERVER))), "{length}");
        }
        assert_eq!(key(&[0; 64], &ours), None);
    }

    #[test]
    fn connection_tracking_is_bounded_by_slots_and_memory() {
        const GIB: u64 = 1 << 30;
        assert_eq!(wanted_room(64 * GIB, 16 * 8192), 16 * 8192);
        assert_eq!(wanted_room(64 * GIB, u64::MAX), ROOM_MAX);
        assert_eq!(wanted_room(8 * GIB, u64::MAX), 8 * GIB / MEMORY_PART / ENTRY_BYTES);
        assert_eq!(wanted_room(0, u64::MAX), 0, "memory that cannot be read raises nothing");
    }
}
