//! Wire format of the control socket: one request and one reply per connection of a `SOCK_SEQPACKET` socket.
//!
//! Little-endian, packed, no padding. Descriptors travel with the request as one `SCM_RIGHTS` message: for each child
//! the replacement of every rule, in rule order. The reply to a fork carries one pidfd per child that was cloned, in
//! child order.
//!
//! Encoding works in caller-supplied buffers and decoding borrows from them: the receiving side of a request cannot
//! allocate.

mod fixed;
mod wire;

use core::ffi::CStr;

pub use fixed::{List, Text};
use wire::{Reader, Writer};

/// Descriptor of the control socket, listening. Without it the library does nothing.
pub const CONTROL_FD_VARIABLE: &CStr = c"PANDASTACK_SHIM_CONTROL_FD";
/// Descriptor of a detached mount of the process file system.
pub const PROC_FD_VARIABLE: &CStr = c"PANDASTACK_SHIM_PROC_FD";
/// Descriptor of the memory file, open for reading.
pub const RAM_FD_VARIABLE: &CStr = c"PANDASTACK_SHIM_RAM_FD";
/// Path that the emulator opens to get the memory file.
pub const RAM_PATH_VARIABLE: &CStr = c"PANDASTACK_SHIM_RAM_PATH";

/// First word of every message.
pub const MAGIC: u32 = 0x4b46_5350;
/// Version of the format; both sides must agree, the engine ships the library it speaks to.
pub const VERSION: u16 = 2;
/// Most rules in a fork or a replacement.
pub const RULES_MAX: usize = 13;
/// Most children of one park: their descriptors must fit one `SCM_RIGHTS` message.
pub const CHILDREN_MAX: usize = DESCRIPTORS_MAX / RULES_MAX;
/// Most descriptors the kernel passes in one message.
pub const DESCRIPTORS_MAX: usize = 253;
/// Longest socket path or root directory, the size of `sun_path`.
pub const PATH_BYTES_MAX: usize = 108;
/// Longest system call filter: 2,048 instructions of 8 bytes.
pub const FILTER_BYTES_MAX: usize = 2048 * 8;
/// Longest request.
pub const REQUEST_BYTES_MAX: usize =
    64 + RULES_MAX * (18 + PATH_BYTES_MAX) + CHILDREN_MAX * 9 + PATH_BYTES_MAX + FILTER_BYTES_MAX;
/// Longest note in a reply.
pub const NOTE_BYTES_MAX: usize = 96;
/// Longest reply.
pub const REPLY_BYTES_MAX: usize = 64 + RULES_MAX + NOTE_BYTES_MAX + CHILDREN_MAX * 10;

/// A message that is too short, too long or invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// A path of a socket or directory.
pub type PathText = Text<PATH_BYTES_MAX>;

/// Selects the emulator's descriptors to replace. Never by number: numbers differ between emulator
/// versions and devices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Match {
    /// Regular file with this identity.
    File {
        /// Device number as `fstat` reports it.
        device: u64,
        /// Inode number.
        inode: u64,
    },
    /// Unix socket listening on this path.
    Listener(PathText),
    /// Unix socket accepted from a listener on this path.
    Accepted(PathText),
    /// Tap device.
    Tap,
}

/// Descriptors to replace in a child.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Descriptors to match.
    pub matches: Match,
    /// Refuse the fork when nothing matches.
    pub required: bool,
}

/// User and group of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Group; supplementary groups are dropped.
    pub gid: u32,
}

/// Confinement of a process. Everything is optional: a confined process only has confined children.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lockdown<'a> {
    /// Directory that becomes the root; empty for none.
    pub root: PathText,
    /// Instructions of a system call filter (`struct sock_filter` array); empty for none.
    pub filter: &'a [u8],
}

/// A fork of the process into one child per entry of `children`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fork<'a> {
    /// Longest time to park threads.
    pub park_ms_max: u32,
    /// Descriptor replacements, the same for every child.
    pub rules: List<Rule, RULES_MAX>,
    /// Children; `None` keeps the parent's user.
    pub children: List<Option<Identity>, CHILDREN_MAX>,
    /// Applied in every child.
    pub lockdown: Lockdown<'a>,
}

/// A request of the engine.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "the receiving side has no heap to box it in")]
pub enum Request<'a> {
    /// Process id and place of guest memory.
    Identify,
    /// Lock in the running process with all its threads.
    Confine {
        /// `None` keeps the user.
        identity: Option<Identity>,
        /// Root directory and filter.
        lockdown: Lockdown<'a>,
    },
    /// Copy the process.
    Fork(Fork<'a>),
    /// Replace matching descriptors of the running process, one per rule. The machine is stopped:
    /// the replaced descriptors are not in use.
    Replace {
        /// Descriptors to replace; every rule must match.
        rules: List<Rule, RULES_MAX>,
    },
}

/// Outcome of a request, or of one child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The request made no sense to the library.
    BadRequest = 1,
    /// Threads were not parked in time.
    ParkTimeout = 2,
    /// A descriptor of a kind that cannot be copied; the note names it.
    UnknownDescriptor = 3,
    /// A required descriptor is missing; the note names the rule.
    MissingDescriptor = 4,
    /// Memory is shared in a way that a child would share too.
    SharedMapping = 5,
    /// The thread library is laid out in an unknown way.
    ThreadLayout = 6,
    /// The clone call failed.
    CloneFailed = 7,
    /// The child could not replace a descriptor.
    ReplaceFailed = 8,
    /// The child found a descriptor that it still shares.
    StillShared = 9,
    /// Root directory, user or filter could not be applied.
    ConfineFailed = 10,
    /// A thread could not be recreated.
    ThreadFailed = 11,
    /// The child ended without a report.
    ChildSilent = 12,
    /// A system call that always works did not.
    System = 13,
}

impl Status {
    const ALL: [Status; 14] = [
        Status::Ok,
        Status::BadRequest,
        Status::ParkTimeout,
        Status::UnknownDescriptor,
        Status::MissingDescriptor,
        Status::SharedMapping,
        Status::ThreadLayout,
        Status::CloneFailed,
        Status::ReplaceFailed,
        Status::StillShared,
        Status::ConfineFailed,
        Status::ThreadFailed,
        Status::ChildSilent,
        Status::System,
    ];

    /// The status with this number.
    pub fn from_code(code: u16) -> Result<Self, Malformed> {
        Self::ALL.get(usize::from(code)).copied().ok_or(Malformed)
    }

    /// Human-readable clause.
    pub fn describe(self) -> &'static str {
        match self {
            Status::Ok => "done",
            Status::BadRequest => "the request is malformed: engine and library differ in version",
            Status::ParkTimeout => "threads did not come to rest in time",
            Status::UnknownDescriptor => "a descriptor is of a kind that cannot be copied",
            Status::MissingDescriptor => "a descriptor that must be replaced is missing",
            Status::SharedMapping => "memory is mapped shared and writable",
            Status::ThreadLayout => "the thread library is laid out in an unknown way",
            Status::CloneFailed => "the clone call failed",
            Status::ReplaceFailed => "the child could not replace a descriptor",
            Status::StillShared => "the child found a descriptor that it shares with its parent",
            Status::ConfineFailed => "root directory, user or system call filter could not be applied",
            Status::ThreadFailed => "a thread could not be recreated in the child",
            Status::ChildSilent => "the child ended before it reported",
            Status::System => "a system call failed unexpectedly",
        }
    }
}

/// Result of one child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildReply {
    /// Process id; 0 without a clone, in which case the pidfd is missing too.
    pub pid: u32,
    /// Outcome.
    pub status: Status,
    /// System error behind it, or 0.
    pub errno: i32,
}

/// The library's answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reply {
    /// Outcome of the request as a whole.
    pub status: Status,
    /// System error behind it, or 0.
    pub errno: i32,
    /// Process id of the answering process.
    pub pid: u32,
    /// Address of guest memory in it.
    pub ram_address: u64,
    /// Size of guest memory.
    pub ram_bytes: u64,
    /// Microseconds for which its threads were parked.
    pub parked_us: u32,
    /// Parks needed until every thread was at rest.
    pub attempts: u32,
    /// Descriptors matched by each rule.
    pub matched: [u8; RULES_MAX],
    /// Details of the error.
    pub note: Text<NOTE_BYTES_MAX>,
    /// One per requested child.
    pub children: List<ChildReply, CHILDREN_MAX>,
}

impl Reply {
    /// A reply with only a status.
    pub const fn new(status: Status) -> Self {
        Self {
            status,
            errno: 0,
            pid: 0,
            ram_address: 0,
            ram_bytes: 0,
            parked_us: 0,
            attempts: 0,
            matched: [0; RULES_MAX],
            note: Text::EMPTY,
            children: List::EMPTY,
        }
    }
}

impl<'a> Request<'a> {
    /// Writes the request into `out` and returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, Malformed> {
        let mut writer = Writer::start(out)?;
        match self {
            Request::Identify => writer.u8(1)?,
            Request::Confine { identity, lockdown } => {
                writer.u8(2)?;
                writer.identity(*identity)?;
                writer.lockdown(lockdown)?;
            }
            Request::Fork(fork) => {
                writer.u8(3)?;
                writer.u32(fork.park_ms_max)?;
                writer.u8(fork.rules.len() as u8)?;
                fork.rules.iter().try_for_each(|rule| writer.rule(rule))?;
                writer.u8(fork.children.len() as u8)?;
                fork.children.iter().try_for_each(|child| writer.identity(*child))?;
                writer.lockdown(&fork.lockdown)?;
            }
            Request::Replace { rules } => {
                writer.u8(4)?;
                writer.u8(rules.len() as u8)?;
                rules.iter().try_for_each(|rule| writer.rule(rule))?;
            }
        }
        Ok(writer.len())
    }

    /// Reads a request that is exactly `bytes` long.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::start(bytes)?;
        let request = match reader.u8()? {
            1 => Request::Identify,
            2 => Request::Confine { identity: reader.identity()?, lockdown: reader.lockdown()? },
            3 => {
                let park_ms_max = reader.u32()?;
                let rules = reader.rules()?;
                let mut children = List::EMPTY;
                for _ in 0..reader.u8()? {
                    children.push(reader.identity()?)?;
                }
                Request::Fork(Fork { park_ms_max, rules, children, lockdown: reader.lockdown()? })
            }
            4 => Request::Replace { rules: reader.rules()? },
            _ => return Err(Malformed),
        };
        reader.finish()?;
        Ok(request)
    }
}

impl Reply {
    /// Writes the reply into `out` and returns its length.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, Malformed> {
        let mut writer = Writer::start(out)?;
        writer.u16(self.status as u16)?;
        writer.u32(self.errno as u32)?;
        writer.u32(self.pid)?;
        writer.u64(self.ram_address)?;
        writer.u64(self.ram_bytes)?;
        writer.u32(self.parked_us)?;
        writer.u32(self.attempts)?;
        writer.bytes(&self.matched)?;
        writer.text(&self.note)?;
        writer.u8(self.children.len() as u8)?;
        for child in self.children.iter() {
            writer.u32(child.pid)?;
            writer.u16(child.status as u16)?;
            writer.u32(child.errno as u32)?;
        }
        Ok(writer.len())
    }

    /// Reads a reply that is exactly `bytes` long.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::start(bytes)?;
        let mut reply = Reply::new(Status::from_code(reader.u16()?)?);
        reply.errno = reader.u32()? as i32;
        reply.pid = reader.u32()?;
        reply.ram_address = reader.u64()?;
        reply.ram_bytes = reader.u64()?;
        reply.parked_us = reader.u32()?;
        reply.attempts = reader.u32()?;
        reply.matched.copy_from_slice(reader.take(RULES_MAX)?);
        reply.note = reader.text()?;
        for _ in 0..reader.u8()? {
            let pid = reader.u32()?;
            let status = Status::from_code(reader.u16()?)?;
            reply.children.push(ChildReply { pid, status, errno: reader.u32()? as i32 })?;
        }
        reader.finish()?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fork(filter: &[u8]) -> Request<'_> {
        let mut rules = List::EMPTY;
        for matches in [
            Match::File { device: 7, inode: u64::MAX },
            Match::Listener(Text::new(b"/run/a/qmp.sock").unwrap()),
            Match::Accepted(Text::new(&[b'x'; PATH_BYTES_MAX]).unwrap()),
            Match::Tap,
        ] {
            rules.push(Rule { matches, required: matches == Match::Tap }).unwrap();
        }
        let mut children = List::EMPTY;
        children.push(None).unwrap();
        children.push(Some(Identity { uid: 70_000, gid: 70_001 })).unwrap();
        let lockdown = Lockdown { root: Text::new(b"/empty").unwrap(), filter };
        Request::Fork(Fork { park_ms_max: 250, rules, children, lockdown })
    }

    #[test]
    fn shim_requests_round_trip() {
        let filter = [3u8; FILTER_BYTES_MAX];
        let lockdown = Lockdown { root: Text::EMPTY, filter: &filter[..16] };
        let confine = Request::Confine { identity: Some(Identity { uid: 1, gid: 2 }), lockdown };
        let Request::Fork(Fork { rules, .. }) = fork(&[]) else { panic!("a fork is a fork") };
        for request in [Request::Identify, confine, fork(&filter), fork(&[]), Request::Replace { rules }] {
            let mut buffer = [0; REQUEST_BYTES_MAX];
            let len = request.encode(&mut buffer).unwrap();
            assert_eq!(Request::decode(&buffer[..len]), Ok(request));
        }
    }

    #[test]
    fn truncated_and_extended_requests_are_malformed() {
        let mut buffer = [0; 1024];
        let len = fork(&[9; 8]).encode(&mut buffer).unwrap();
        for cut in 0..len {
            assert_eq!(Request::decode(&buffer[..cut]), Err(Malformed), "prefix of {cut} bytes");
        }
        assert_eq!(Request::decode(&buffer[..len + 1]), Err(Malformed));
    }

    #[test]
    fn a_filter_with_a_partial_instruction_is_refused() {
        let mut buffer = [0; 1024];
        let len = fork(&[9; 12]).encode(&mut buffer).unwrap();
        assert_eq!(Request::decode(&buffer[..len]), Err(Malformed));
    }

    #[test]
    fn full_replies_round_trip() {
        let mut reply = Reply::new(Status::UnknownDescriptor);
        reply.errno = -5;
        reply.ram_address = 0x7f00_0000_0000;
        reply.matched = [2; RULES_MAX];
        reply.note.push(b"fd ");
        reply.note.push_number(1_234);
        reply.note.push(&[b'n'; 200]);
        for pid in 0..CHILDREN_MAX as u32 {
            reply.children.push(ChildReply { pid, status: Status::ChildSilent, errno: 9 }).unwrap();
        }
        let mut buffer = [0; REPLY_BYTES_MAX];
        let len = reply.encode(&mut buffer).unwrap();
        assert_eq!(Reply::decode(&buffer[..len]), Ok(reply));
        assert!(reply.note.as_bytes().starts_with(b"fd 1234n"));
    }

    #[test]
    fn every_status_keeps_its_number() {
        for (code, status) in Status::ALL.into_iter().enumerate() {
            assert_eq!(status as u16, code as u16);
            assert_eq!(Status::from_code(code as u16), Ok(status));
        }
        assert_eq!(Status::from_code(Status::ALL.len() as u16), Err(Malformed));
    }
}
