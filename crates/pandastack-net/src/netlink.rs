//! One synchronous netlink exchange: send a run of messages, wait for the kernel's verdict on the last one.
//!
//! Synchronous on purpose. Everything here happens on short-lived threads inside a namespace, where an event loop
//! would cost more than the exchange, and the kernel answers within the send call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::error::NetError;

/// Bytes of `struct nlmsghdr`.
pub(crate) const HEADER_BYTES: usize = 16;

/// Sequence number of the first message of a batch.
pub(crate) const FIRST_SEQUENCE: u32 = 1;

/// Longest time for the kernel to acknowledge: it waits for its global link lock, which a busy host
/// holds for long.
pub(crate) const ACK_DEADLINE: Duration = Duration::from_secs(20);

/// Room for one datagram of answers. An error repeats the request behind it, and a batch is well below this.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Multicast group that reports changes of links.
const LINK_EVENTS_GROUP: u32 = 1;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Without the flags for nesting and byte order.
const ATTRIBUTE_KIND_MASK: u16 = 0x3fff;

/// The netlink subsystem to use.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Subsystem {
    /// Links, addresses, routes, neighbours.
    Route,
    /// nftables, packet logs, connection tracking.
    Netfilter,
}

/// A socket of the network namespace in which it was opened, from whichever thread it is used later.
#[derive(Debug)]
pub(crate) struct Netlink(OwnedFd);

/// Encoded messages with consecutive sequence numbers, each with a label to name a failed one.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    pub(crate) bytes: Vec<u8>,
    pub(crate) labels: Vec<String>,
}

impl Messages {
    /// Sequence number of the message that is appended next.
    pub(crate) fn next_sequence(&self) -> u32 {
        FIRST_SEQUENCE + u32::try_from(self.labels.len()).unwrap_or(u32::MAX)
    }

    fn label(&self, sequence: u32) -> &str {
        let position = sequence.checked_sub(FIRST_SEQUENCE).and_then(|at| usize::try_from(at).ok());
        position.and_then(|at| self.labels.get(at)).map_or("netlink batch", String::as_str)
    }
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open(subsystem: Subsystem) -> Result<Self, NetError> {
        let protocol = match subsystem {
            // NETLINK_ROUTE is protocol 0, which rustix spells as none.
            Subsystem::Route => None,
            Subsystem::Netfilter => Some(NETFILTER),
        };
        Self::socket(protocol, 0).map_err(|reason| NetError::Netlink {
            action: "opening a netlink socket".to_owned(),
            target: format!("{subsystem:?}"),
            reason,
        })
    }

    /// Opens a socket that receives every change of a link in the calling thread's network namespace.
    pub(crate) fn open_link_events() -> Result<Self, NetError> {
        Self::socket(None, LINK_EVENTS_GROUP).map_err(|reason| NetError::Netlink {
            action: "listening for link events".to_owned(),
            target: "Route".to_owned(),
            reason,
        })
    }

    /// Waits for one datagram.
    pub(crate) fn receive_within(&self, patience: Duration) -> io::Result<Vec<u8>> {
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(patience))?;
        let mut bytes = vec![0u8; ANSWER_BYTES_MAX];
        let (length, _) = rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::empty())?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// A datagram that is already there.
    pub(crate) fn receive_now(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0u8; ANSWER_BYTES_MAX];
        let (length, _) = rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::DONTWAIT)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Sends messages; the caller receives the kernel's replies.
    pub(crate) fn send(&self, messages: &[u8]) -> io::Result<()> {
        rustix::net::sendto(&self.0, messages, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    fn socket(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Netlink(fd))
    }

    /// Requests a listing and passes the body of every message of this kind to `each`, until the
    /// kernel reports the end.
    pub(crate) fn list(&self, request: &[u8], kind: u16, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(request)?;
        loop {
            let datagram = self.receive_within(ACK_DEADLINE)?;
            for (found, body) in each_message(&datagram) {
                match found {
                    NLMSG_DONE | NLMSG_ERROR => return end_of_listing(body),
                    _ if found == kind => each(body),
                    _ => {}
                }
            }
        }
    }

    /// Sends the messages and waits until `acked` is acknowledged. The first refusal ends the wait; answers to later
    /// messages may then still be queued, so the socket must not be used again.
    pub(crate) fn transact(&self, messages: &Messages, acked: u32, target: &str) -> Result<(), NetError> {
        let fail = |sequence: u32, reason: io::Error| NetError::Netlink {
            action: messages.label(sequence).to_owned(),
            target: target.to_owned(),
            reason,
        };
        self.send(&messages.bytes).map_err(|error| fail(acked, error))?;
        loop {
            let answer = self.receive_within(ACK_DEADLINE).map_err(|error| fail(acked, error))?;
            for (sequence, verdict) in verdicts(&answer) {
                match verdict {
                    0 if sequence == acked => return Ok(()),
                    0 => {}
                    errno => return Err(fail(sequence, io::Error::from_raw_os_error(-errno))),
                }
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Netlink {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The acknowledgements and errors in a datagram: sequence number and negated errno, 0 for success.
pub(crate) fn verdicts(bytes: &[u8]) -> Vec<(u32, i32)> {
    let messages = split(bytes).into_iter().filter(|message| kind(message) == NLMSG_ERROR);
    let whole = messages.filter(|message| message.len() >= HEADER_BYTES + 4);
    whole.map(|message| (read_u32(message, 8), read_u32(message, HEADER_BYTES) as i32)).collect()
}

/// Type and body of every whole message in a datagram.
pub(crate) fn each_message(bytes: &[u8]) -> Vec<(u16, &[u8])> {
    split(bytes).into_iter().map(|message| (kind(message), &message[HEADER_BYTES..])).collect()
}

/// Result of a listing: a number, negative for an error.
fn end_of_listing(body: &[u8]) -> io::Result<()> {
    let errno = body.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    if errno < 0 { Err(io::Error::from_raw_os_error(-errno)) } else { Ok(()) }
}

/// One attribute of a message.
pub(crate) struct Attribute<'a> {
    pub(crate) kind: u16,
    /// With its header.
    pub(crate) whole: &'a [u8],
}

impl<'a> Attribute<'a> {
    pub(crate) fn value(&self) -> &'a [u8] {
        &self.whole[ATTRIBUTE_HEADER_BYTES..]
    }
}

/// The whole attributes in a message.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let header = bytes.get(..ATTRIBUTE_HEADER_BYTES)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & ATTRIBUTE_KIND_MASK;
        let whole = bytes.get(..length).filter(|whole| whole.len() >= ATTRIBUTE_HEADER_BYTES)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Attribute { kind, whole })
    })
}

/// The whole messages in a datagram, each with its header.
fn split(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some((header, _)) = bytes.split_at_checked(HEADER_BYTES) {
        let length = read_u32(header, 0) as usize;
        let Some(message) = bytes.get(..length).filter(|message| message.len() >= HEADER_BYTES) else {
            break;
        };
        found.push(message);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn kind(message: &[u8]) -> u16 {
    u16::from_ne_bytes([message[4], message[5]])
}

/// Callers have checked the length.
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(sequence: u32, errno: i32) -> Vec<u8> {
        let mut bytes = 36u32.to_ne_bytes().to_vec();
        bytes.extend(NLMSG_ERROR.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend((-errno).to_ne_bytes());
        bytes.extend([0; 16]);
        bytes
    }

    #[test]
    fn netlink_verdicts_are_parsed_in_order_and_truncation_is_tolerated() {
        let bytes = [error(1, 0), error(2, libc::EEXIST)].concat();
        assert_eq!(verdicts(&bytes), [(1, 0), (2, -libc::EEXIST)]);
        assert_eq!(verdicts(&bytes[..40]), [(1, 0)]);
        assert_eq!(verdicts(&[0; 16]), []);
        assert_eq!(verdicts(&[]), []);
    }
}
