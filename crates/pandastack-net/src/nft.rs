//! A minimal nftables netlink client: one table, its chains, rules and address sets, as one atomic
//! batch.
//!
//! Independent of the rules' meaning ([`crate::ruleset`]). A batch takes effect as a whole or not
//! at all, so replacing a table leaves no gap. Numbers are from `linux/netfilter/nf_tables.h`;
//! attributes are big-endian, register contents have the byte order of the packet or the kernel
//! field.

mod listing;
mod rule;

use std::net::Ipv4Addr;
use std::time::Duration;

use libc::{
    NFNL_SUBSYS_NFTABLES, NFT_MSG_DELRULE, NFT_MSG_DELSETELEM, NFT_MSG_DELTABLE, NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWRULE, NFT_MSG_NEWSET, NFT_MSG_NEWSETELEM, NFT_MSG_NEWTABLE, NFT_SET_EVAL, NFT_SET_INTERVAL,
    NFT_SET_TIMEOUT,
};
use pandastack_types::network::Opening;

pub(crate) use listing::{ListedElement, list_set};
pub(crate) use rule::{CT_ESTABLISHED_OR_RELATED, CT_NEW, Rule};

use crate::error::NetError;
use crate::netlink::{HEADER_BYTES, Messages, Netlink};

const NLM_F_REQUEST: u16 = 0x001;
const NLM_F_ACK: u16 = 0x004;
const NLM_F_CREATE: u16 = 0x400;
const NLM_F_APPEND: u16 = 0x800;
const NLA_F_NESTED: u16 = 0x8000;

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;

/// `ipv4_addr`, `inet_service` and `mark` in the numbering of the `nft` program, six bits each; only its listing reads
/// this.
const KEY_ADDRESS: u32 = 7;
const KEY_ADDRESS_PORT: u32 = 7 << 6 | 13;
const KEY_ADDRESS_CLASS: u32 = 7 << 6 | 19;

/// Fields of a key are compared one by one, each as a range.
const NFT_SET_CONCAT: u32 = 0x80;

/// Elements per message: an attribute's length has 16 bits, and an element takes up to 60 bytes.
const ELEMENTS_PER_MESSAGE: usize = 512;

/// The same for elements with notes, which take up to 170 bytes.
const NOTED_PER_MESSAGE: usize = 128;

/// Longest note of an element: as the `nft` program has it, so that every kernel takes it. They refuse more than some 250 bytes, and
/// the element with them.
const NOTE_BYTES_MAX: usize = 127;

/// Type of a note that the `nft` program shows as a comment.
const NOTE_KIND: u8 = 0;

/// The hook of a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hook {
    /// `filter` or `nat`.
    pub(crate) kind: &'static str,
    /// `NF_INET_*`.
    pub(crate) number: libc::c_int,
    /// Lower runs earlier.
    pub(crate) priority: i32,
    /// Default verdict for a packet that no rule decides.
    pub(crate) policy: Policy,
}

/// Verdict at the end of a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Policy {
    Accept,
    Drop,
}

/// A set, named, and numbered for use within the batch that makes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetName(pub(crate) &'static str, pub(crate) u32);

/// An address of a class, in a set that forgets it after a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Element<'a> {
    pub(crate) address: Ipv4Addr,
    pub(crate) class: u32,
    pub(crate) lifetime: Duration,
    /// Note stored with the element, for listings of the set; left out if it is too long.
    pub(crate) note: &'a str,
}

/// Messages about one table of the `inet` family, applied together by [`Batch::commit`].
#[derive(Debug)]
pub(crate) struct Batch {
    messages: Messages,
    table: String,
    /// Offset of the newest message's header: the last message gets the acknowledge flag.
    newest: usize,
}

impl Batch {
    pub(crate) fn new(table: impl Into<String>) -> Self {
        let mut batch = Batch { messages: Messages::default(), table: table.into(), newest: 0 };
        batch.push(BATCH_BEGIN, 0, "beginning an nftables batch", |_| {});
        batch
    }

    /// Empties the table, or makes it. Adding first lets the deletion succeed either way.
    pub(crate) fn replace_table(&mut self) {
        self.add_table();
        self.delete_table();
        self.add_table();
    }

    /// Removes the table with everything in it.
    pub(crate) fn delete_table(&mut self) {
        let table = self.table.clone();
        self.message(NFT_MSG_DELTABLE, 0, "deleting nftables table", |a| a.text(1, &table));
    }

    /// Creates the table. For a namespace that is known to have none: removing one, even none, costs a
    /// grace period.
    pub(crate) fn add_table(&mut self) {
        let table = self.table.clone();
        self.message(NFT_MSG_NEWTABLE, NLM_F_CREATE, "adding nftables table", |a| a.text(1, &table));
    }

    pub(crate) fn add_chain(&mut self, name: &str, hook: Hook) {
        let table = self.table.clone();
        self.message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, &format!("adding nftables chain {name}"), |a| {
            a.text(1, &table);
            a.text(3, name);
            a.nest(4, |a| {
                a.number(1, hook.number as u32);
                a.number(2, hook.priority as u32);
            });
            a.number(5, matches!(hook.policy, Policy::Accept).into());
            a.text(7, hook.kind);
        });
    }

    pub(crate) fn add_rule(&mut self, chain: &str, rule: Rule) {
        let table = self.table.clone();
        let label = format!("adding rule to nftables chain {chain}");
        self.message(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, &label, |a| {
            a.text(1, &table);
            a.text(2, chain);
            a.nest(4, |a| a.0.extend_from_slice(&rule.0));
        });
    }

    /// Creates a chain that hangs nowhere: rules jump to it.
    pub(crate) fn add_plain_chain(&mut self, name: &str) {
        let table = self.table.clone();
        self.message(NFT_MSG_NEWCHAIN, NLM_F_CREATE, &format!("adding nftables chain {name}"), |a| {
            a.text(1, &table);
            a.text(3, name);
        });
    }

    /// Removes all rules of a chain.
    pub(crate) fn flush_chain(&mut self, name: &str) {
        let table = self.table.clone();
        self.message(NFT_MSG_DELRULE, 0, &format!("emptying nftables chain {name}"), |a| {
            a.text(1, &table);
            a.text(2, name);
        });
    }

    /// A set of boxes: ranges of addresses with ranges of ports.
    pub(crate) fn add_box_set(&mut self, set: SetName) {
        let table = self.table.clone();
        self.message(NFT_MSG_NEWSET, NLM_F_CREATE, &format!("adding nftables set {}", set.0), |a| {
            a.text(1, &table);
            a.text(2, set.0);
            a.number(3, NFT_SET_INTERVAL as u32 | NFT_SET_CONCAT);
            a.number(4, KEY_ADDRESS_PORT);
            a.number(5, 8);
            a.nest(9, |a| {
                a.nest(2, |a| {
                    for bytes in [4, 2] {
                        a.nest(1, |a| a.number(1, bytes));
                    }
                });
            });
            a.number(10, set.1);
        });
    }

    /// A set of single addresses, each with the number of a class, that forgets them after a while.
    pub(crate) fn add_expiring_set(&mut self, set: SetName, elements_max: u32) {
        let table = self.table.clone();
        self.message(NFT_MSG_NEWSET, NLM_F_CREATE, &format!("adding nftables set {}", set.0), |a| {
            a.text(1, &table);
            a.text(2, set.0);
            a.number(3, NFT_SET_TIMEOUT as u32);
            a.number(4, KEY_ADDRESS_CLASS);
            a.number(5, 8);
            a.nest(9, |a| a.number(1, elements_max));
            a.number(10, set.1);
        });
    }

    /// A set of addresses that rules add to: see [`Rule::not_among_recent`].
    pub(crate) fn add_recent_set(&mut self, set: SetName, elements_max: u32) {
        let table = self.table.clone();
        self.message(NFT_MSG_NEWSET, NLM_F_CREATE, &format!("adding nftables set {}", set.0), |a| {
            a.text(1, &table);
            a.text(2, set.0);
            a.number(3, NFT_SET_TIMEOUT as u32 | NFT_SET_EVAL as u32);
            a.number(4, KEY_ADDRESS);
            a.number(5, 4);
            a.nest(9, |a| a.number(1, elements_max));
            a.number(10, set.1);
        });
    }

    /// Removes all elements of a set that existed before this batch.
    pub(crate) fn flush_set(&mut self, set: SetName) {
        let table = self.table.clone();
        self.message(NFT_MSG_DELSETELEM, 0, &format!("emptying nftables set {}", set.0), |a| {
            a.text(1, &table);
            a.text(2, set.0);
        });
    }

    /// Adds disjoint boxes.
    pub(crate) fn fill_box_set(&mut self, set: SetName, boxes: &[Opening]) {
        for boxes in boxes.chunks(ELEMENTS_PER_MESSAGE) {
            self.elements(NFT_MSG_NEWSETELEM, set, |a| {
                for Opening { addresses, ports } in boxes {
                    a.nest(1, |a| {
                        a.data(1, &box_key(addresses.first, ports.first));
                        a.data(10, &box_key(addresses.last, ports.last));
                    });
                }
            });
        }
    }

    /// Switches on the condition [`Rule::switched_on`]; emptying the set switches it off.
    pub(crate) fn switch_on(&mut self, set: SetName) {
        self.elements(NFT_MSG_NEWSETELEM, set, |a| a.nest(1, |a| a.data(1, &[0; 8])));
    }

    /// Adds addresses, each once, or restarts their lifetime. The kernel keeps the end of an existing
    /// element, so elements are added, removed, and added again.
    pub(crate) fn renew_elements(&mut self, set: SetName, elements: &[Element<'_>]) {
        for elements in elements.chunks(NOTED_PER_MESSAGE) {
            self.elements(NFT_MSG_NEWSETELEM, set, |a| {
                elements.iter().for_each(|one| one.write(a, true, false))
            });
            self.elements(NFT_MSG_DELSETELEM, set, |a| {
                elements.iter().for_each(|one| one.write(a, false, false))
            });
            self.elements(NFT_MSG_NEWSETELEM, set, |a| {
                elements.iter().for_each(|one| one.write(a, true, true))
            });
        }
    }

    fn elements(&mut self, kind: libc::c_int, set: SetName, body: impl FnOnce(&mut Attributes<'_>)) {
        let table = self.table.clone();
        let flags = if kind == NFT_MSG_NEWSETELEM { NLM_F_CREATE } else { 0 };
        self.message(kind, flags, &format!("changing nftables set {}", set.0), |a| {
            a.text(1, &table);
            a.text(2, set.0);
            a.nest(3, body);
        });
    }

    /// Applies everything at once, or nothing.
    pub(crate) fn commit(mut self, socket: &Netlink) -> Result<(), NetError> {
        let acked = self.messages.next_sequence() - 1;
        if let Some(flags) = self.messages.bytes.get_mut(self.newest + 6) {
            *flags |= NLM_F_ACK as u8;
        }
        self.push(BATCH_END, 0, "ending an nftables batch", |_| {});
        socket.transact(&self.messages, acked, &self.table)
    }

    fn message(
        &mut self,
        kind: libc::c_int,
        flags: u16,
        label: &str,
        body: impl FnOnce(&mut Attributes<'_>),
    ) {
        self.push((NFNL_SUBSYS_NFTABLES as u16) << 8 | kind as u16, flags, label, body);
    }

    fn push(&mut self, kind: u16, flags: u16, label: &str, body: impl FnOnce(&mut Attributes<'_>)) {
        let sequence = self.messages.next_sequence();
        let bytes = &mut self.messages.bytes;
        let start = bytes.len();
        bytes.extend([0; 4]);
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        debug_assert_eq!(bytes.len() - start, HEADER_BYTES);
        // struct nfgenmsg: for the batch markers the resource id names the subsystem instead of a family.
        let marker = kind == BATCH_BEGIN || kind == BATCH_END;
        let family = if marker { libc::AF_UNSPEC } else { libc::NFPROTO_INET };
        bytes.extend([family as u8, 0]);
        bytes.extend((if marker { NFNL_SUBSYS_NFTABLES as u16 } else { 0 }).to_be_bytes());
        body(&mut Attributes(bytes));
        let length = (bytes.len() - start) as u32;
        bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        self.newest = start;
        self.messages.labels.push(label.to_owned());
    }
}

impl Element<'_> {
    fn write(&self, to: &mut Attributes<'_>, with_lifetime: bool, with_note: bool) {
        let key = [self.address.octets(), self.class.to_ne_bytes()].concat();
        let millis = u64::try_from(self.lifetime.as_millis()).unwrap_or(u64::MAX);
        to.nest(1, |a| {
            a.data(1, &key);
            if with_lifetime {
                a.bytes(4, &millis.to_be_bytes());
            }
            if with_note && !self.note.is_empty() && self.note.len() <= NOTE_BYTES_MAX {
                let head = [NOTE_KIND, (self.note.len() + 1) as u8];
                a.bytes(6, &[&head, self.note.as_bytes(), &[0]].concat());
            }
        });
    }
}

/// Writes netlink attributes at the end of a buffer.
struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.0.extend(((value.len() + 4) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.bytes(kind, &[value.as_bytes(), &[0]].concat());
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | NLA_F_NESTED).to_ne_bytes());
        body(&mut Attributes(self.0));
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    fn data(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |a| a.bytes(1, value));
    }
}

/// Address and port as a packet has them, each in whole registers.
fn box_key(address: u32, port: u16) -> [u8; 8] {
    let ([a, b, c, d], [high, low]) = (address.to_be_bytes(), port.to_be_bytes());
    [a, b, c, d, high, low, 0, 0]
}
