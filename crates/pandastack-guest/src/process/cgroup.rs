//! Control groups: one for all user processes (freezing, limits), one below it per process (killing).
//!
//! ```text
//! /sys/fs/cgroup            the guest program itself
//! /sys/fs/cgroup/user       cgroup.freeze: the identity gate; pids.max: room for the guest program's own threads
//! /sys/fs/cgroup/user/<id>  cgroup.kill: a process and everything it ever started
//! ```
//!
//! Controllers are enabled below `user` only when a process asks for limits: an empty group is cheaper to make.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pandastack_guest_proto::message::ProcessLimits;

/// The group of all user processes.
#[derive(Clone, Debug)]
pub(crate) struct UserCgroup {
    path: PathBuf,
}

/// The group of one process and its descendants.
#[derive(Clone, Debug)]
pub(crate) struct ProcessCgroup {
    path: PathBuf,
}

impl UserCgroup {
    /// Makes the group below `parent`, a cgroup v2 directory.
    pub(crate) fn create(parent: &Path) -> io::Result<Self> {
        let path = parent.join("user");
        make_dir(&path)?;
        Ok(Self { path })
    }

    /// Leaves the kernel room for the guest program's own threads when user processes multiply without end.
    pub(crate) fn limit_pids(&self, parent: &Path, pids_max: u64) -> io::Result<()> {
        std::fs::write(parent.join("cgroup.subtree_control"), "+pids")?;
        std::fs::write(self.path.join("pids.max"), pids_max.to_string())
    }

    /// A group for a new process.
    pub(crate) fn make_child(&self, name: &str, limits: &ProcessLimits) -> io::Result<ProcessCgroup> {
        let path = self.path.join(name);
        make_dir(&path)?;
        let child = ProcessCgroup { path };
        if !limits.is_unset()
            && let Err(error) = self.limit(&child, limits)
        {
            child.try_remove();
            return Err(error);
        }
        Ok(child)
    }

    fn limit(&self, child: &ProcessCgroup, limits: &ProcessLimits) -> io::Result<()> {
        const CPU_PERIOD_US: u64 = 100_000;
        const CONTROLLERS: &str = "+cpu +memory +pids";
        if let Some(parent) = self.path.parent() {
            std::fs::write(parent.join("cgroup.subtree_control"), CONTROLLERS)?;
        }
        std::fs::write(self.path.join("cgroup.subtree_control"), CONTROLLERS)?;
        if let Some(bytes) = limits.memory_bytes_max {
            std::fs::write(child.path.join("memory.max"), bytes.to_string())?;
            // Kill the whole tree: a half-killed pipeline would look like success.
            std::fs::write(child.path.join("memory.oom.group"), "1")?;
        }
        if let Some(pids) = limits.pids_max {
            std::fs::write(child.path.join("pids.max"), pids.to_string())?;
        }
        if let Some(milli) = limits.cpu_milli_max {
            let quota_us = (u64::from(milli) * CPU_PERIOD_US / 1000).max(1000);
            std::fs::write(child.path.join("cpu.max"), format!("{quota_us} {CPU_PERIOD_US}"))?;
        }
        Ok(())
    }

    /// Freezes every user process and waits until they are.
    pub(crate) fn freeze(&self, wait_max: Duration) -> io::Result<()> {
        std::fs::write(self.path.join("cgroup.freeze"), "1")?;
        self.wait_event("frozen", true, wait_max)
    }

    /// Thaws user processes.
    pub(crate) fn thaw(&self) -> io::Result<()> {
        std::fs::write(self.path.join("cgroup.freeze"), "0")
    }

    /// Kills every user process, frozen or not.
    pub(crate) fn kill(&self) -> io::Result<()> {
        std::fs::write(self.path.join("cgroup.kill"), "1")
    }

    /// Waits until no user process is left.
    pub(crate) fn wait_empty(&self, wait_max: Duration) -> io::Result<()> {
        self.wait_event("populated", false, wait_max)
    }

    /// Process ids of every user process.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let groups = std::fs::read_dir(&self.path).into_iter().flatten().flatten().map(|entry| entry.path());
        groups
            .filter_map(|group| std::fs::read_to_string(group.join("cgroup.procs")).ok())
            .flat_map(|procs| procs.lines().filter_map(|line| line.parse().ok()).collect::<Vec<_>>())
            .collect()
    }

    /// `cgroup.events` announces changes as exceptional conditions.
    fn wait_event(&self, key: &str, wanted: bool, wait_max: Duration) -> io::Result<()> {
        let path = self.path.join("cgroup.events");
        let file = std::fs::File::open(&path)?;
        let give_up = Instant::now() + wait_max;
        loop {
            let now = io::read_to_string(&file)?;
            io::Seek::rewind(&mut &file)?;
            if has_flag(&now, key, wanted) {
                return Ok(());
            }
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLPRI)], timeout)?;
        }
    }
}

fn has_flag(events: &str, key: &str, wanted: bool) -> bool {
    let value = if wanted { "1" } else { "0" };
    events.lines().any(|line| line.split_once(' ') == Some((key, value)))
}

impl ProcessCgroup {
    /// A descriptor to start a process in the group with.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        std::fs::File::open(&self.path).map(OwnedFd::from)
    }

    /// Kills everything in the group.
    pub(crate) fn kill(&self) -> io::Result<()> {
        std::fs::write(self.path.join("cgroup.kill"), "1")
    }

    /// Removes the group if it is empty; returns whether it was removed.
    pub(crate) fn try_remove(&self) -> bool {
        match std::fs::remove_dir(&self.path) {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_matched_by_whole_key() {
        let events = "populated 1\nfrozen 0\n";
        assert!(has_flag(events, "populated", true));
        assert!(has_flag(events, "frozen", false));
        assert!(!has_flag(events, "frozen", true));
        assert!(!has_flag(events, "froz", false));
    }
}
