//! Plans how a child handles each descriptor of the process.
//!
//! The plan is made in the parent while its threads are parked, so that a descriptor that cannot be copied costs an
//! error and no child; the child carries it out and then checks the outcome with fresh eyes.
//!
//! An open file description is shared across a fork: its offset, its flags, its queue. A descriptor without
//! relevant shared state stays. One that the kernel can create again is renewed. The engine supplies the
//! machine's own. A kind that is not listed here refuses the fork.

use libc::c_int;

use crate::exclusive::Exclusive;
use crate::protocol::{DESCRIPTORS_MAX, List, Match, NOTE_BYTES_MAX, PathText, RULES_MAX, Rule, Text};
use crate::scan;
use crate::sys::{self, Errno};

/// Most descriptors an emulator may have open when it is forked, those of the request included.
const PLAN_MAX: usize = 512;
/// Longest name of a descriptor that is read.
const LINK_BYTES_MAX: usize = 128;

/// The action of the child for one descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Keep it: it shares no state.
    Keep,
    /// Close it: it belongs to the request, not to the machine.
    Close,
    /// Replace it by this child's descriptor for the rule.
    Replace { rule: usize },
    /// A fresh event counter.
    RenewEvent,
    /// A fresh signal descriptor for the same signals.
    RenewSignal,
}

/// One descriptor of the parent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// Descriptor number.
    pub(crate) fd: c_int,
    /// Action on the descriptor.
    pub(crate) action: Action,
    /// Identity of the referenced file in the parent.
    pub(crate) identity: (u64, u64),
    /// Kind of the referenced file: the type bits of its mode.
    pub(crate) kind: u32,
}

/// Descriptors of the library itself, and known ones of the machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownDescriptors<'a> {
    /// Stays: the process file system.
    pub(crate) proc_fd: c_int,
    /// Guest memory: stays if it is open for reading only.
    pub(crate) ram: (u64, u64),
    /// To be closed in a child: connection, replacements of all children.
    pub(crate) transient: &'a List<c_int, TRANSIENT_MAX>,
}

/// Replacements, plus connection.
pub(crate) const TRANSIENT_MAX: usize = DESCRIPTORS_MAX + 1;

/// Reason why no plan could be made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PlanError {
    /// A kind that cannot be copied.
    Unknown(Text<NOTE_BYTES_MAX>),
    /// A required rule matched nothing.
    Missing(Text<NOTE_BYTES_MAX>),
    /// A system call failed.
    System(Errno),
}

/// The actions for all descriptors.
pub(crate) struct Plan {
    entries: [Entry; PLAN_MAX],
    len: usize,
    /// Descriptors matched by each rule.
    pub(crate) matched: [u8; RULES_MAX],
}

static PLAN: Exclusive<Plan> = Exclusive::new(Plan {
    entries: [Entry { fd: -1, action: Action::Keep, identity: (0, 0), kind: 0 }; PLAN_MAX],
    len: 0,
    matched: [0; RULES_MAX],
});

impl Plan {
    /// The entries.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries[..self.len]
    }

    /// The entry of one descriptor.
    pub(crate) fn entry(&self, fd: c_int) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.fd == fd)
    }

    fn push(&mut self, entry: Entry) -> Result<(), PlanError> {
        let Some(place) = self.entries.get_mut(self.len) else {
            return Err(PlanError::Unknown(note(
                b"more descriptors open than can be copied, at fd ",
                entry.fd,
                b"",
            )));
        };
        *place = entry;
        self.len += 1;
        if let Action::Replace { rule } = entry.action {
            self.matched[rule] = self.matched[rule].saturating_add(1);
        }
        Ok(())
    }
}

/// Plans a fork. Control thread only, one plan at a time.
pub(crate) fn plan(
    rules: &List<Rule, RULES_MAX>,
    known: &KnownDescriptors<'_>,
) -> Result<&'static Plan, PlanError> {
    // SAFETY: control thread; the plan of an earlier request is no longer in use.
    let plan = unsafe { PLAN.get() };
    (plan.len, plan.matched) = (0, [0; RULES_MAX]);
    scan::for_each_number(b"self/fd\0", |fd| {
        let view = View::of(fd).map_err(PlanError::System)?;
        let action = classify(&view, rules, known)
            .ok_or_else(|| PlanError::Unknown(note(b"fd ", fd, view.link.as_bytes())))?;
        plan.push(Entry { fd, action, identity: view.identity, kind: view.kind })
    })
    .map_err(PlanError::System)??;
    for (index, rule) in rules.iter().enumerate() {
        if rule.required && plan.matched[index] == 0 {
            return Err(PlanError::Missing(note(b"rule ", index as c_int, describe(&rule.matches))));
        }
    }
    Ok(plan)
}

/// Puts the descriptor of each rule over those of this process that match it, with the same status flags.
/// Returns how many each rule matched. Control thread only.
pub(crate) fn replace_matching(
    rules: &List<Rule, RULES_MAX>,
    fresh: &List<c_int, DESCRIPTORS_MAX>,
) -> sys::Result<[u8; RULES_MAX]> {
    let mut matched = [0u8; RULES_MAX];
    scan::for_each_number(b"self/fd\0", |fd| {
        // The emulator's threads continue: skip descriptors that were closed since the listing.
        let Ok(view) = View::of(fd) else { return Ok(()) };
        if fresh.iter().any(|&own| own == fd) {
            return Ok(());
        }
        for (index, (rule, &fresh)) in rules.iter().zip(fresh.iter()).enumerate() {
            if is_match(&view, &rule.matches) {
                sys::fcntl(fresh, libc::F_SETFL, sys::fcntl(fd, libc::F_GETFL, 0)?)?;
                sys::dup_over(fresh, fd)?;
                matched[index] = matched[index].saturating_add(1);
                break;
            }
        }
        Ok(())
    })??;
    Ok(matched)
}

fn note(before: &[u8], number: c_int, after: &[u8]) -> Text<NOTE_BYTES_MAX> {
    let mut text = Text::EMPTY;
    text.push(before);
    text.push_number(number.unsigned_abs().into());
    text.push(b" ");
    text.push(after);
    text
}

fn describe(matches: &Match) -> &[u8] {
    match matches {
        Match::File { .. } => b"file",
        Match::Listener(path) | Match::Accepted(path) => path.as_bytes(),
        Match::Tap => b"tap device",
    }
}

/// Observable properties of a descriptor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    fd: c_int,
    /// Device and inode.
    pub(crate) identity: (u64, u64),
    /// Type bits of the mode.
    pub(crate) kind: u32,
    device: (u32, u32),
    read_only: bool,
    link: Text<LINK_BYTES_MAX>,
    socket: Option<Socket>,
}

#[derive(Debug, Clone, Copy)]
struct Socket {
    listening: bool,
    local: PathText,
}

impl View {
    /// Inspects an open descriptor.
    pub(crate) fn of(fd: c_int) -> sys::Result<View> {
        let stat = sys::fstat(fd)?;
        let kind = stat.st_mode & libc::S_IFMT;
        let mut buffer = [0; LINK_BYTES_MAX];
        let mut path = Text::<32>::EMPTY;
        path.push(b"self/fd/");
        path.push_number(fd.unsigned_abs().into());
        path.push(b"\0");
        let filled = sys::readlink_at(scan::proc_fd(), path.as_bytes(), &mut buffer)?;
        Ok(View {
            fd,
            identity: (stat.st_dev, stat.st_ino),
            kind,
            device: (libc::major(stat.st_rdev), libc::minor(stat.st_rdev)),
            read_only: sys::fcntl(fd, libc::F_GETFL, 0)? as c_int & libc::O_ACCMODE == libc::O_RDONLY,
            link: Text::new(&buffer[..filled]).unwrap_or(Text::EMPTY),
            socket: if kind == libc::S_IFSOCK { unix_socket(fd) } else { None },
        })
    }
}

/// Local path and role of a unix socket; `None` for any other family.
fn unix_socket(fd: c_int) -> Option<Socket> {
    if socket_option(fd, libc::SO_DOMAIN)? != libc::AF_UNIX {
        return None;
    }
    let listening = socket_option(fd, libc::SO_ACCEPTCONN)? != 0;
    // SAFETY: all-zero bytes are a valid address.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    let args = [fd as usize, &raw mut address as usize, &raw mut len as usize];
    // SAFETY: the address has the passed length.
    unsafe { sys::call(libc::SYS_getsockname, args) }.ok()?;
    // SAFETY: the array is plain bytes under another name.
    let path = unsafe {
        core::slice::from_raw_parts(address.sun_path.as_ptr().cast::<u8>(), address.sun_path.len())
    };
    let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
    Some(Socket { listening, local: PathText::new(&path[..end]).ok()? })
}

fn socket_option(fd: c_int, option: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    let args = [
        fd as usize,
        libc::SOL_SOCKET as usize,
        option as usize,
        &raw mut value as usize,
        &raw mut len as usize,
    ];
    // SAFETY: the option is an integer and so is the buffer.
    unsafe { sys::call(libc::SYS_getsockopt, args) }.ok().map(|_| value)
}

/// Character devices that keep no state per open: null, zero, random, urandom.
const STATELESS_DEVICES: [(u32, u32); 4] = [(1, 3), (1, 5), (1, 8), (1, 9)];
/// The tap device.
const TAP_DEVICE: (u32, u32) = (10, 200);

/// Decides about one descriptor; `None` means that its kind cannot be copied.
fn classify(view: &View, rules: &List<Rule, RULES_MAX>, known: &KnownDescriptors<'_>) -> Option<Action> {
    if known.transient.iter().any(|&fd| fd == view.fd) {
        return Some(Action::Close);
    }
    if let Some(rule) = rules.iter().position(|rule| is_match(view, &rule.matches)) {
        return Some(Action::Replace { rule });
    }
    match view.kind {
        libc::S_IFREG if view.read_only && view.identity == known.ram => Some(Action::Keep),
        libc::S_IFCHR if STATELESS_DEVICES.contains(&view.device) => Some(Action::Keep),
        libc::S_IFDIR if view.fd == known.proc_fd => Some(Action::Keep),
        0 => match view.link.as_bytes() {
            b"anon_inode:[eventfd]" => Some(Action::RenewEvent),
            b"anon_inode:[signalfd]" => Some(Action::RenewSignal),
            _ => None,
        },
        _ => None,
    }
}

fn is_match(view: &View, matches: &Match) -> bool {
    let socket_at = |path: &PathText, listening: bool| {
        view.socket.is_some_and(|socket| socket.listening == listening && socket.local == *path)
    };
    match matches {
        Match::File { device, inode } => view.kind == libc::S_IFREG && view.identity == (*device, *inode),
        Match::Listener(path) => socket_at(path, true),
        Match::Accepted(path) => socket_at(path, false),
        Match::Tap => view.kind == libc::S_IFCHR && view.device == TAP_DEVICE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(kind: u32) -> View {
        let link = Text::EMPTY;
        View { fd: 9, identity: (1, 2), kind, device: (0, 0), read_only: false, link, socket: None }
    }

    fn socket(path: &[u8], listening: bool) -> View {
        let socket = Some(Socket { listening, local: Text::new(path).unwrap() });
        View { socket, ..view(libc::S_IFSOCK) }
    }

    fn anonymous(link: &[u8]) -> View {
        View { link: Text::new(link).unwrap(), ..view(0) }
    }

    fn decide(view: View) -> Option<Action> {
        let mut rules = List::EMPTY;
        let path = Text::new(b"/run/m/qmp.sock").unwrap();
        for matches in
            [Match::File { device: 8, inode: 80 }, Match::Listener(path), Match::Accepted(path), Match::Tap]
        {
            rules.push(Rule { matches, required: true }).unwrap();
        }
        let mut transient = List::EMPTY;
        transient.push(77).unwrap();
        classify(&view, &rules, &KnownDescriptors { proc_fd: 4, ram: (8, 90), transient: &transient })
    }

    #[test]
    fn every_descriptor_kind_gets_its_action() {
        let file = |identity, read_only| View { identity, read_only, ..view(libc::S_IFREG) };
        let device = |device| View { device, ..view(libc::S_IFCHR) };
        let cases = [
            ("disk", file((8, 80), false), Some(Action::Replace { rule: 0 })),
            ("same inode on another device", file((9, 80), false), None),
            ("guest memory", file((8, 90), true), Some(Action::Keep)),
            ("guest memory open for writing", file((8, 90), false), None),
            ("another file, even read-only", file((8, 91), true), None),
            ("listener", socket(b"/run/m/qmp.sock", true), Some(Action::Replace { rule: 1 })),
            ("accepted", socket(b"/run/m/qmp.sock", false), Some(Action::Replace { rule: 2 })),
            ("socket elsewhere", socket(b"/run/n/qmp.sock", false), None),
            ("unnamed socket", socket(b"", false), None),
            ("socket of another family", view(libc::S_IFSOCK), None),
            ("tap", device((10, 200)), Some(Action::Replace { rule: 3 })),
            ("kvm", device((10, 232)), None),
            ("null", device((1, 3)), Some(Action::Keep)),
            ("urandom", device((1, 9)), Some(Action::Keep)),
            ("eventfd", anonymous(b"anon_inode:[eventfd]"), Some(Action::RenewEvent)),
            ("signalfd", anonymous(b"anon_inode:[signalfd]"), Some(Action::RenewSignal)),
            ("epoll", anonymous(b"anon_inode:[eventpoll]"), None),
            ("io_uring", anonymous(b"anon_inode:[io_uring]"), None),
            ("timerfd", anonymous(b"anon_inode:[timerfd]"), None),
            ("pipe", view(libc::S_IFIFO), None),
            ("proc", View { fd: 4, ..view(libc::S_IFDIR) }, Some(Action::Keep)),
            ("another directory", view(libc::S_IFDIR), None),
            ("request's own", View { fd: 77, ..view(libc::S_IFIFO) }, Some(Action::Close)),
        ];
        for (name, view, expected) in cases {
            assert_eq!(decide(view), expected, "{name}");
        }
    }
}
