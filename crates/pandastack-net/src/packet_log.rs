//! Reads logged packets from a log group of one namespace.
//!
//! Numbers are from `linux/netfilter/nfnetlink_log.h`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use libc::{NFNL_SUBSYS_ULOG, NFULNL_CFG_CMD_BIND, NFULNL_COPY_PACKET, NFULNL_MSG_CONFIG, NFULNL_MSG_PACKET};

use crate::error::Result;
use crate::netlink::{Messages, Netlink, Subsystem, each_message};

const NLM_F_REQUEST_ACK: u16 = 0x001 | 0x004;
/// Bytes of `struct nfgenmsg`, before the attributes.
const GENERIC_BYTES: usize = 4;
const PACKET_PAYLOAD: u16 = 9;
const PACKET_WORD: u16 = 10;
/// Attribute types of a configuration message.
const CONFIG_COMMAND: u16 = 1;
const CONFIG_MODE: u16 = 2;
const CONFIG_THRESHOLD: u16 = 5;
/// Most bytes copied of a packet; rules request less.
const COPY_BYTES_MAX: u32 = 128;

/// A packet as a rule logged it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LoggedPacket {
    /// First bytes of the packet.
    pub(crate) bytes: Vec<u8>,
    /// The word of the rule; empty without one.
    pub(crate) word: String,
}

/// A listener of one log group.
#[derive(Debug)]
pub(crate) struct PacketLog(Netlink);

impl PacketLog {
    /// Listens in the calling thread's namespace.
    pub(crate) fn open(group: u16) -> Result<Self> {
        let socket = Netlink::open(Subsystem::Netfilter)?;
        let mut messages = Messages::default();
        push_config(&mut messages, group, CONFIG_COMMAND, &[NFULNL_CFG_CMD_BIND as u8]);
        let mode = [&COPY_BYTES_MAX.to_be_bytes()[..], &[NFULNL_COPY_PACKET as u8, 0]].concat();
        push_config(&mut messages, group, CONFIG_MODE, &mode);
        // Deliver packets one by one: the kernel would otherwise batch them for a second.
        push_config(&mut messages, group, CONFIG_THRESHOLD, &1u32.to_be_bytes());
        let last = messages.next_sequence() - 1;
        socket.transact(&messages, last, "log group")?;
        Ok(PacketLog(socket))
    }

    /// The log's socket, for other requests in that namespace before the first packet.
    pub(crate) fn socket(&self) -> &Netlink {
        &self.0
    }

    /// Packets that are there; `WouldBlock` when there are none.
    pub(crate) fn receive(&self) -> io::Result<Vec<LoggedPacket>> {
        let datagram = self.0.receive_now()?;
        let packet = (NFNL_SUBSYS_ULOG as u16) << 8 | NFULNL_MSG_PACKET as u16;
        let told = each_message(&datagram).into_iter().filter(|(kind, _)| *kind == packet);
        Ok(told.filter_map(|(_, body)| read(body.get(GENERIC_BYTES..)?)).collect())
    }
}

impl AsFd for PacketLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PacketLog {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn push_config(messages: &mut Messages, group: u16, attribute: u16, value: &[u8]) {
    let kind = (NFNL_SUBSYS_ULOG as u16) << 8 | NFULNL_MSG_CONFIG as u16;
    let padded = value.len().next_multiple_of(4);
    let length = 16 + GENERIC_BYTES + 4 + padded;
    let sequence = messages.next_sequence();
    let bytes = &mut messages.bytes;
    let end = bytes.len() + length;
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([libc::AF_UNSPEC as u8, 0]);
    bytes.extend(group.to_be_bytes());
    bytes.extend(((value.len() + 4) as u16).to_ne_bytes());
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(end, 0);
    messages.labels.push("listening for refused packets".to_owned());
}

/// The attributes that hold the packet and the rule's word, if it has one.
fn read(mut attributes: &[u8]) -> Option<LoggedPacket> {
    let mut packet = LoggedPacket::default();
    while let Some((header, _)) = attributes.split_at_checked(4) {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]);
        let value = attributes.get(4..length)?;
        match kind {
            PACKET_PAYLOAD => packet.bytes = value.to_vec(),
            PACKET_WORD => {
                let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
                packet.word = String::from_utf8_lossy(text).into_owned();
            }
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    (!packet.bytes.is_empty()).then_some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logged_packets_are_parsed_and_truncation_is_tolerated() {
        let bytes = [6, 0, 1, 0, 7, 7, 0, 0, 7, 0, 10, 0, b'f', b'u', 0, 0, 7, 0, 9, 0, 1, 2, 3, 0];
        let packet = read(&bytes).unwrap();
        assert_eq!((packet.bytes, packet.word.as_str()), (vec![1, 2, 3], "fu"));
        for length in 0..bytes.len() {
            read(&bytes[..length]);
        }
        assert_eq!(read(&[0; 8]), None);
    }
}
