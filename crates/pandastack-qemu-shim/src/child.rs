//! The life of a child from the clone call to its own first request.
//!
//! One thread, no heap, no locks. Every step that fails ends the process with the step's status as
//! exit code, after a line in its log. The parent does not wait for a child: the engine that asked
//! for it notices when it does not respond.

use libc::c_int;

use crate::confine;
use crate::descriptors::{Action, Entry, KnownDescriptors, Plan, View};
use crate::interpose;
use crate::park::ParkedThreads;
use crate::protocol::{Identity, Lockdown, Status, Text};
use crate::scan;
use crate::sys::{self, Errno};
use crate::threads;

/// Descriptor of the emulator's log. A child has one of its own once its descriptors are replaced.
const LOG_FD: c_int = 2;

/// Inputs with which a child becomes a separate machine.
pub(crate) struct ChildSetup<'a> {
    /// Plan for the descriptors.
    pub(crate) plan: &'a Plan,
    /// Replacement descriptors, one per rule.
    pub(crate) replacements: &'a [c_int],
    /// Descriptors of the library.
    pub(crate) known: KnownDescriptors<'a>,
    /// Process descriptors of elder siblings.
    pub(crate) elders: &'a [c_int],
    /// New user, if any.
    pub(crate) identity: Option<Identity>,
    /// Root directory and filter.
    pub(crate) lockdown: Lockdown<'a>,
    /// Robust list of the thread that was copied.
    pub(crate) robust_list: (usize, usize),
}

/// Reason why a child failed.
type Failure = (Status, Errno);

impl ChildSetup<'_> {
    /// Turns the copied process into a machine of its own. Returns in the child's control thread.
    pub(crate) fn complete(&self, parked: ParkedThreads) {
        threads::adopt_this_thread(self.robust_list);
        if let Err((status, errno)) = self.run(&parked) {
            log_failure(status, errno);
            sys::exit_group(status as c_int);
        }
        parked.forget();
    }

    fn run(&self, parked: &ParkedThreads) -> Result<(), Failure> {
        self.replace_all().map_err(|errno| (Status::ReplaceFailed, errno))?;
        self.close_transient();
        self.verify()?;
        // SAFETY: no arguments. A copy is not a process group leader, so this cannot fail.
        let _ = unsafe { sys::call(libc::SYS_setsid, []) };
        if self.identity.is_some() {
            // Code that the emulator translates from here on is in pages of this process alone. Use
            // small pages: otherwise a few bytes would take two megabytes in every child of a
            // zygote. Pages shared with the zygote are not affected. Forks inherit the setting.
            // SAFETY: no pointers.
            let _ = unsafe { sys::call(libc::SYS_prctl, [libc::PR_SET_THP_DISABLE as usize, 1, 0, 0, 0]) };
        }
        confine::confine_thread(self.identity, &self.lockdown)
            .map_err(|errno| (Status::ConfineFailed, errno))?;
        for slot in parked.slots() {
            // SAFETY: the thread was parked in the parent, and each slot is used once.
            unsafe { threads::recreate(slot) }.map_err(|errno| (Status::ThreadFailed, errno))?;
        }
        Ok(())
    }

    fn replace_all(&self) -> sys::Result<()> {
        self.plan.entries().iter().try_for_each(|entry| match entry.action {
            Action::Keep | Action::Close => Ok(()),
            Action::Replace { rule } => replace(self.replacements.get(rule).copied().unwrap_or(-1), entry),
            Action::RenewEvent => renew_event(entry.fd),
            Action::RenewSignal => renew_signal(entry.fd),
        })
    }

    fn close_transient(&self) {
        let transient = self.plan.entries().iter().filter(|entry| entry.action == Action::Close);
        transient.map(|entry| entry.fd).chain(self.elders.iter().copied()).for_each(sys::close);
    }

    /// Checks the open descriptors: none is unplanned, and none is writable and shared with the
    /// parent.
    fn verify(&self) -> Result<(), Failure> {
        let system = |errno| (Status::System, errno);
        scan::for_each_number(b"self/fd\0", |fd| {
            let view = View::of(fd).map_err(system)?;
            if self.is_own(&view, self.plan.entry(fd)) {
                return Ok(());
            }
            Err((Status::StillShared, Errno(fd)))
        })
        .map_err(system)?
    }

    /// Returns whether a descriptor is this child's alone, or has nothing to share.
    fn is_own(&self, view: &View, entry: Option<&Entry>) -> bool {
        let Some(entry) = entry else { return false };
        let same_kind = view.kind == entry.kind;
        match entry.action {
            Action::Keep => same_kind && view.identity == entry.identity,
            // Taps of all machines share one device node, and anonymous inodes share one inode, so
            // only the kind can be compared. Each file and socket has its own inode.
            Action::Replace { .. } => {
                same_kind && (view.kind == libc::S_IFCHR || view.identity != entry.identity)
            }
            Action::RenewEvent | Action::RenewSignal => same_kind,
            Action::Close => false,
        }
    }
}

/// A line in the log: what failed, and the system error or descriptor behind it.
fn log_failure(status: Status, Errno(errno): Errno) {
    let mut line = Text::<128>::EMPTY;
    line.push(b"a copy of this machine gave up: ");
    line.push(status.describe().as_bytes());
    line.push(b" (");
    line.push_number(errno.unsigned_abs().into());
    line.push(b")\n");
    let _ = sys::write(LOG_FD, line.as_bytes());
}

/// Replaces the entry by `fresh`, with the same status flags.
fn replace(fresh: c_int, entry: &Entry) -> sys::Result<()> {
    let flags = sys::fcntl(entry.fd, libc::F_GETFL, 0)?;
    sys::fcntl(fresh, libc::F_SETFL, flags)?;
    if entry.kind == libc::S_IFCHR {
        interpose::apply_tap_settings(fresh)?;
    }
    sys::dup_over(fresh, entry.fd)
}

/// A fresh counter that starts signalled: a spurious wake-up is harmless, a lost one is not.
fn renew_event(fd: c_int) -> sys::Result<()> {
    let nonblocking = sys::fcntl(fd, libc::F_GETFL, 0)? & libc::O_NONBLOCK as usize;
    // SAFETY: no pointers. EFD_NONBLOCK is O_NONBLOCK.
    let fresh = unsafe { sys::call(libc::SYS_eventfd2, [1, nonblocking | libc::EFD_CLOEXEC as usize]) }?;
    move_over(fresh as c_int, fd)
}

/// A fresh signal descriptor for the signals the old one reports.
fn renew_signal(fd: c_int) -> sys::Result<()> {
    let nonblocking = sys::fcntl(fd, libc::F_GETFL, 0)? & libc::O_NONBLOCK as usize;
    let mask = signal_mask(fd)?;
    let flags = nonblocking | libc::SFD_CLOEXEC as usize;
    let args = [-1isize as usize, &raw const mask as usize, size_of::<u64>(), flags];
    // SAFETY: the mask is 8 bytes, as passed.
    let fresh = unsafe { sys::call(libc::SYS_signalfd4, args) }?;
    move_over(fresh as c_int, fd)
}

fn move_over(fresh: c_int, fd: c_int) -> sys::Result<()> {
    let moved = sys::dup_over(fresh, fd);
    sys::close(fresh);
    moved
}

/// The signals a signal descriptor reports, as the kernel tells.
fn signal_mask(fd: c_int) -> sys::Result<u64> {
    let mut path = Text::<32>::EMPTY;
    path.push(b"self/fdinfo/");
    path.push_number(fd.unsigned_abs().into());
    path.push(b"\0");
    let info = sys::open_at(scan::proc_fd(), path.as_bytes(), libc::O_RDONLY)?;
    let mut text = [0; 512];
    let filled = sys::read(info, &mut text);
    sys::close(info);
    parse_signal_mask(&text[..filled?]).ok_or(Errno(libc::EINVAL))
}

/// The number after `sigmask:` in a description of a descriptor.
fn parse_signal_mask(text: &[u8]) -> Option<u64> {
    const LABEL: &[u8] = b"sigmask:\t";
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(LABEL))?;
    u64::from_str_radix(core::str::from_utf8(line).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signal_mask_is_parsed_from_fdinfo() {
        let text = b"pos:\t0\nflags:\t02004002\nmnt_id:\t15\nino:\t1062\nsigmask:\t0000000010002040\n";
        assert_eq!(parse_signal_mask(text), Some(0x1000_2040));
        assert_eq!(parse_signal_mask(b"pos:\t0\nsigmask:\tzz\n"), None);
        assert_eq!(parse_signal_mask(b"pos:\t0\n"), None);
    }
}
