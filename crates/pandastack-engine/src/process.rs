//! The process of one machine: detects its exit, and kills it.
//!
//! Exits are events on a pidfd, also for processes of another parent. The watching task belongs to
//! the engine, not to the machine's handle, so that a process is reaped even if it ends after its
//! last handle is gone.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, prlimit,
    waitid,
};
use rustix::thread::{CapabilitySet, capabilities};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::{Confinement, EngineError, MachineExit, Result};

/// Longest time from SIGKILL to the end of the process, with its memory released.
const KILL_MAX: Duration = Duration::from_secs(15);

/// Least limit of a file's length: logs and consoles, which the agent keeps far shorter.
const FILE_BYTES_MIN: u64 = 1 << 30;

/// A process that we started or adopted.
#[derive(Debug, Clone)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub started_ticks: u64,
    pidfd: Arc<OwnedFd>,
    exited: watch::Receiver<Option<MachineExit>>,
}

impl Process {
    /// Watches a new process through its pidfd until it ends. Kills the process if it cannot be
    /// watched.
    pub fn watch(pidfd: OwnedFd, tasks: &TaskTracker) -> Result<Self> {
        let pidfd = Arc::new(pidfd);
        Self::attach(pidfd.clone(), tasks).inspect_err(|_| {
            let _ = pidfd_send_signal(pidfd.as_fd(), Signal::KILL);
        })
    }

    /// Takes the process id from the kernel, by the descriptor: a process that runs tenant code may
    /// report false ids of its children.
    fn attach(pidfd: Arc<OwnedFd>, tasks: &TaskTracker) -> Result<Self> {
        let pid = pid_of(&pidfd)?;
        let started_ticks = started_ticks(pid)?;
        // SAFETY: the descriptor is owned, and stays open as long as the registration.
        let watched = unsafe { AsyncFd::register_with_interest(pidfd.clone(), Interest::READABLE) }
            .map_err(|error| EngineError::io("watch the process", proc_path(pid))(error.into()))?;
        let (sender, exited) = watch::channel(None);
        tasks.spawn(async move {
            // An error here means that the runtime is going away, and with it everybody who could listen.
            if watched.readable().await.is_ok() {
                sender.send_replace(Some(reap(watched.get_ref())));
            }
        });
        Ok(Self { pid, started_ticks, pidfd, exited })
    }

    /// Finds a process again. Fails with [`EngineError::Exited`] if it has ended or its id was
    /// reused.
    pub fn find(pid: u32, started_ticks: u64, tasks: &TaskTracker) -> Result<Self> {
        let gone = || EngineError::Exited(format!("process {pid} is no longer there"));
        let id = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let pidfd = pidfd_open(id, PidfdFlags::empty()).map_err(|_| gone())?;
        // In this order: the descriptor pins the process, so the start time read now belongs to it.
        match self::started_ticks(pid) {
            Ok(ticks) if ticks == started_ticks => Self::attach(Arc::new(pidfd), tasks).map_err(|_| gone()),
            _ => Err(gone()),
        }
    }

    /// Fires when the process is gone.
    pub fn exited(&self) -> watch::Receiver<Option<MachineExit>> {
        self.exited.clone()
    }

    /// Asks the kernel to end it.
    pub fn send_kill(&self) {
        // The only possible error is that the process has already ended.
        let _ = pidfd_send_signal(self.pidfd.as_fd(), Signal::KILL);
    }

    /// The pidfd, which never refers to another process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Makes the process the first candidate of the OOM killer, and a zygote the last.
    pub fn set_oom_score(&self, confinement: Confinement) {
        let score = match confinement {
            Confinement::Full { .. } => "300",
            Confinement::Zygote => "-300",
        };
        let path = format!("/proc/{}/oom_score_adj", self.pid);
        if let Err(error) = fs::write(&path, score) {
            tracing::warn!(path, %error, "cannot set the machine's rank for the out-of-memory killer");
        }
    }

    /// Limits the size of files that the process writes: a compromised process cannot fill the
    /// host's disk through its own files, which are sparse. The kernel kills it at the first byte
    /// beyond the limit.
    pub fn limit_file_bytes(&self, bytes: u64) {
        if !may_raise_limits() {
            return;
        }
        let bytes = bytes.max(FILE_BYTES_MIN);
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        // Without an id it would be this process.
        let set = pid.map(|pid| prlimit(Some(pid), Resource::Fsize, limit).map(drop));
        if let Some(Err(error)) = set {
            tracing::warn!(pid = self.pid, %error, "cannot limit the length of the machine's files");
        }
    }

    /// Raises that limit to `bytes`, for a file that is about to grow. A higher one stays: another file may need
    /// it.
    pub fn raise_file_bytes(&self, bytes: u64) {
        let limits = fs::read_to_string(format!("/proc/{}/limits", self.pid)).unwrap_or_default();
        if parse_file_bytes(&limits).is_some_and(|limit| limit < bytes) {
            self.limit_file_bytes(bytes);
        }
    }

    /// Kills the process and waits for its end.
    pub async fn kill(&self) -> Result<()> {
        self.send_kill();
        let mut exited = self.exited();
        let gone = timeout(KILL_MAX, exited.wait_for(Option::is_some)).await;
        match gone {
            Ok(_) => Ok(()),
            Err(_) => Err(EngineError::Deadline {
                step: "ending the process",
                limit_ms: KILL_MAX.as_millis() as u64,
            }),
        }
    }
}

/// Whether this process may raise limits of others. Without this right, as in some containers, a limit could not follow
/// a disk that grows, so none is set.
fn may_raise_limits() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE))
}

/// Kills a process if the call that created it fails or is dropped.
#[derive(Debug)]
pub struct KillOnDrop(Option<Process>);

impl KillOnDrop {
    /// Holds the process.
    pub fn new(process: Process) -> Self {
        Self(Some(process))
    }

    /// The call succeeded: the process lives on.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(process) = &self.0 {
            process.send_kill();
        }
    }
}

/// Whether a process runs. If so, its id has not been reused: that happens only after the process
/// ends.
pub fn is_running(pidfd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut watched = [PollFd::new(&pidfd, PollFlags::IN)];
    matches!(poll(&mut watched, Some(&now)), Ok(0))
}

/// Takes the exit status of a process that has ended, if we are the parent.
fn reap(pidfd: &OwnedFd) -> MachineExit {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let reason = match waitid(WaitId::PidFd(pidfd.as_fd()), options) {
        Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("its process ended with exit code {code}"),
            (_, Some(signal)) => format!("its process was ended by signal {signal}"),
            _ => "its process ended in an unknown way".to_owned(),
        },
        _ => "its process ended; its status went to its parent".to_owned(),
    };
    MachineExit { reason }
}

/// The process a descriptor refers to.
fn pid_of(pidfd: &OwnedFd) -> Result<u32> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let text = fs::read_to_string(&path)
        .map_err(EngineError::io("read the metadata of the process descriptor", &path))?;
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")).and_then(|pid| pid.trim().parse().ok());
    pid.ok_or_else(|| EngineError::Exited("its process descriptor refers to no running process".to_owned()))
}

fn proc_path(pid: u32) -> String {
    format!("/proc/{pid}/stat")
}

fn started_ticks(pid: u32) -> Result<u64> {
    let path = proc_path(pid);
    let text = fs::read_to_string(&path).map_err(EngineError::io("read the start time", &path))?;
    parse_started_ticks(&text).ok_or(EngineError::Vmm { step: "reading the start time", detail: text })
}

/// Field 22. The second field, the program's name in parentheses, may itself contain blanks and parentheses.
fn parse_started_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The limit in the kernel's table of limits; `None` if it is missing or unlimited.
fn parse_file_bytes(limits: &str) -> Option<u64> {
    let row = limits.lines().find_map(|line| line.strip_prefix("Max file size"))?;
    row.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_start_times_are_parsed_after_any_process_name() {
        let rest = "S 1 2 2 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 314159 10 20";
        for name in ["(qemu)", "(a) b)", "( 1 2 3 )"] {
            assert_eq!(parse_started_ticks(&format!("42 {name} {rest}")), Some(314_159), "{name}");
        }
        assert_eq!(parse_started_ticks("42 (x) S 1"), None);
    }

    #[tokio::test]
    async fn only_process_descriptors_are_watched() {
        let file = OwnedFd::from(fs::File::open("/dev/null").unwrap());
        assert!(matches!(Process::watch(file, &TaskTracker::new()), Err(EngineError::Exited(_))));
    }

    #[tokio::test]
    #[expect(clippy::zombie_processes, reason = "the watcher under test reaps it")]
    async fn the_file_size_limit_can_only_be_raised() {
        if !may_raise_limits() {
            return println!("skipped: the_file_size_limit_can_only_be_raised (no CAP_SYS_RESOURCE)");
        }
        let tasks = TaskTracker::new();
        let child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let process = Process::watch(pidfd, &tasks).unwrap();
        let limit =
            || parse_file_bytes(&fs::read_to_string(format!("/proc/{}/limits", process.pid)).unwrap());
        process.raise_file_bytes(1);
        assert_eq!(limit(), None, "there is none yet");
        process.limit_file_bytes(5 << 30);
        process.raise_file_bytes(3 << 30);
        assert_eq!(limit(), Some(5 << 30));
        process.raise_file_bytes(6 << 30);
        assert_eq!(limit(), Some(6 << 30));
        process.kill().await.unwrap();
    }

    #[tokio::test]
    #[expect(clippy::zombie_processes, reason = "the watcher under test reaps it")]
    async fn a_child_exit_is_reported_with_its_reason() {
        let tasks = TaskTracker::new();
        let child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let id = Pid::from_child(&child);
        let process = Process::watch(pidfd_open(id, PidfdFlags::empty()).unwrap(), &tasks).unwrap();
        assert_eq!(process.pid, child.id());
        let again = Process::find(process.pid, process.started_ticks, &tasks).unwrap();
        assert!(matches!(Process::find(process.pid, 1, &tasks), Err(EngineError::Exited(_))));
        assert!(is_running(process.descriptor()));
        process.kill().await.unwrap();
        again.kill().await.unwrap();
        assert!(!is_running(process.descriptor()));
        let reasons = [process, again].map(|process| process.exited().borrow().clone().unwrap().reason);
        assert!(reasons.iter().any(|reason| reason.contains("signal 9")), "{reasons:?}");
    }
}
