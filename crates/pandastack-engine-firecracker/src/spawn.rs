//! Spawning a Firecracker process: detached, jailed, with a tmpfs as root.
//!
//! ```text
//!  thread in a new process namespace
//!    -> fork -> session, network and mount namespaces, tmpfs root -> exec jailer -> exec firecracker
//! ```
//!
//! All of this is one process and a direct child of the agent, so its exit status is known and its
//! pid is not read from a file. The jailer's own `--new-pid-ns` would fork once more and exit.

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use pandastack_engine::process::Process;
use pandastack_engine::{EngineError, Result};
use rustix::fs::inotify;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use crate::devices::API_SOCKET;
use crate::limits::{DESCRIPTORS_MAX, ROOT_BYTES_MAX, START_MAX};
use crate::probe::Programs;
use crate::root::Owner;
use crate::socket;

/// Instance id. A jail holds one machine, so all have the same.
pub(crate) const INSTANCE_ID: &str = "machine";

/// A process to spawn.
#[derive(Debug)]
pub(crate) struct Spawn<'a> {
    pub(crate) programs: &'a Programs,
    /// User of the jail; `None` spawns without a jail.
    pub(crate) owner: Option<Owner>,
    /// Runtime directory. The jail's tmpfs is mounted over it in the process's mount namespace.
    pub(crate) runtime_dir: &'a Path,
    /// Network namespace to join.
    pub(crate) network: Option<BorrowedFd<'a>>,
}

/// Root directory of a process without a jail.
pub(crate) fn directory(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("root")
}

/// Log of the process: its standard output and error.
pub(crate) fn log_path(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("firecracker.log")
}

/// Metrics that Firecracker writes each minute.
pub(crate) fn metrics_path(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("metrics.json")
}

impl Spawn<'_> {
    /// Spawns the process and returns its pidfd, and what keeps files open for it.
    pub(crate) fn start(self) -> Result<(OwnedFd, HeldFiles)> {
        let log_path = log_path(self.runtime_dir);
        let open_log = || OpenOptions::new().append(true).create(true).mode(0o600).open(&log_path);
        let log = open_log().map_err(EngineError::io("open the log", &log_path))?;
        let failed = |action| EngineError::io(action, &self.programs.binary);
        let errors = log.try_clone().map_err(failed("open the log of"))?;
        let (held, stdin) = HeldFiles::new().map_err(failed("prepare the input of"))?;
        if self.owner.is_none() {
            let root = directory(self.runtime_dir);
            fs::create_dir(&root).map_err(EngineError::io("create the machine's root", &root))?;
        }
        let mut command = self.command();
        command.env_clear().stdin(stdin).stdout(log).stderr(errors);
        let inside = ChildSetup::new(&self).map_err(failed("prepare the start of"))?;
        let jailed = self.owner.is_some();
        // SAFETY: between fork and exec, `enter` makes system calls only: no allocation, no locks.
        unsafe { command.pre_exec(move || inside.enter()) };
        let child = on_thread(|| {
            if jailed {
                // Affects only children of this thread, which cannot start threads from now on.
                unshare(CloneFlags::CLONE_NEWPID)?;
            }
            command.spawn()
        });
        let child = child.map_err(failed("start"))?;
        // Only this process reaps the child, so the pid is still its own.
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        let pidfd = pidfd.map_err(|error| failed("watch")(error.into()))?;
        Ok((pidfd, held))
    }

    fn command(&self) -> Command {
        let Programs { binary, jailer, cgroup_version } = self.programs;
        let Some(Owner { uid, gid }) = self.owner else {
            let mut command = Command::new(binary);
            command.current_dir(directory(self.runtime_dir));
            command.args(["--id", INSTANCE_ID, "--api-sock", API_SOCKET]);
            return command;
        };
        let mut command = Command::new(jailer);
        command.current_dir("/").args(["--id", INSTANCE_ID]);
        command.arg("--exec-file").arg(binary);
        command.arg("--chroot-base-dir").arg(self.runtime_dir);
        let numbers = [
            ("--uid", uid.to_string()),
            ("--gid", gid.to_string()),
            ("--cgroup-version", cgroup_version.to_string()),
            ("--resource-limit", format!("no-file={DESCRIPTORS_MAX}")),
        ];
        for (name, value) in numbers {
            command.arg(name).arg(value);
        }
        command.args(["--", "--api-sock", API_SOCKET]);
        command
    }
}

fn on_thread(action: impl FnOnce() -> io::Result<Child> + Send) -> io::Result<Child> {
    thread::scope(|scope| scope.spawn(action).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// Files that stay open, with the locks on them, until a process exits: they are in flight in
/// messages to its standard input, which are never received.
///
/// Standard input is the only way in: the jailer closes all other inherited descriptors. Firecracker
/// does not read it when serial output goes to a file.
#[derive(Debug)]
pub(crate) struct HeldFiles(OwnedFd);

impl HeldFiles {
    /// No descriptors yet; also returns the standard input.
    fn new() -> io::Result<(Self, Stdio)> {
        let (sending, receiving) =
            socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok((Self(sending), Stdio::from(receiving)))
    }

    /// Adds files.
    pub(crate) fn add(&self, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Error::other("too many files"));
        }
        sendmsg(&self.0, &[IoSlice::new(b"held")], &mut control, SendFlags::empty())?;
        Ok(())
    }
}

/// Setup between fork and exec. Holds only prepared values, so that nothing is allocated there.
struct ChildSetup {
    network: Option<RawFd>,
    /// Mount point and mount options of the tmpfs.
    root: Option<(CString, CString)>,
}

impl ChildSetup {
    fn new(spawn: &Spawn<'_>) -> io::Result<Self> {
        let root = match spawn.owner {
            None => None,
            Some(_) => Some((
                CString::new(spawn.runtime_dir.as_os_str().as_bytes())?,
                CString::new(format!("mode=0711,size={ROOT_BYTES_MAX},nr_inodes=256"))?,
            )),
        };
        Ok(Self { network: spawn.network.map(|network| network.as_raw_fd()), root })
    }

    fn enter(&self) -> io::Result<()> {
        // SAFETY: system calls on numbers and texts that live on, in a process of its own.
        unsafe {
            check(libc::setsid())?;
            if let Some(network) = self.network {
                check(libc::setns(network, libc::CLONE_NEWNET))?;
            }
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            check(libc::setrlimit(libc::RLIMIT_CORE, &raw const none))?;
            let Some((dir, options)) = &self.root else { return Ok(()) };
            check(libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS))?;
            // Mounts and unmounts of the host propagate here, so that a machine holds none; ours do
            // not propagate to the host.
            let (nothing, top) = (std::ptr::null(), c"/".as_ptr());
            check(libc::mount(nothing, top, nothing, libc::MS_SLAVE | libc::MS_REC, std::ptr::null()))?;
            let kind = c"tmpfs".as_ptr();
            check(libc::mount(kind, dir.as_ptr(), kind, libc::MS_NOSUID, options.as_ptr().cast()))?;
        }
        Ok(())
    }
}

fn check(answer: libc::c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until the process listens at `api`. Firecracker logs before and after it starts to
/// listen, so each write to the log is a reason to try again.
pub(crate) async fn wait_until_listening(runtime_dir: &Path, api: &Path, process: &Process) -> Result<()> {
    let log = log_path(runtime_dir);
    let failed = |error: io::Error| EngineError::io("watch the log", &log)(error);
    let events = watch_writes(&log).map_err(failed)?;
    let mut exited = process.exited();
    let listening = async {
        loop {
            if socket::connect(api).await.is_ok() {
                return Ok(());
            }
            tokio::select! {
                ended = exited.wait_for(Option::is_some) => {
                    let reason = ended.ok().and_then(|exit| exit.clone()).map(|exit| exit.reason);
                    return Err(EngineError::Exited(reason.unwrap_or_default()));
                }
                ready = events.readable() => {
                    let mut ready = ready.map_err(failed)?;
                    drain(events.get_ref());
                    ready.clear_ready();
                }
            }
        }
    };
    let late = EngineError::Deadline { step: "starting Firecracker", limit_ms: START_MAX.as_millis() as u64 };
    timeout(START_MAX, listening).await.unwrap_or(Err(late))
}

fn watch_writes(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&events, path, inotify::WatchFlags::MODIFY)?;
    // SAFETY: the descriptor is owned, and stays open as long as the registration.
    Ok(unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) }?)
}

/// Discards pending events.
fn drain(events: &OwnedFd) {
    let mut buffer = [0; 4096];
    while rustix::io::read(events.as_fd(), &mut buffer).is_ok_and(|read| read > 0) {}
}
