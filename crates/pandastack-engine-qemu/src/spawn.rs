//! Starting an emulator process: detached, in empty namespaces, with exactly the descriptors it needs.
//!
//! The process starts as root with three capabilities left. The preloaded library needs them to confine the
//! process, or to give each fork of a zygote its own user. Until then, it reads no input of a guest.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use pandastack_engine::{EngineError, Result, Shape};
use pandastack_qemu_shim::protocol::{
    CONTROL_FD_VARIABLE, PROC_FD_VARIABLE, RAM_FD_VARIABLE, RAM_PATH_VARIABLE,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::command_line::{self, InheritedFds, Origin, RAM_PATH};
use crate::endpoints::Endpoints;
use crate::host::Host;
use crate::limits;

/// Capabilities that are left: to change group, user and root directory.
const CAPABILITIES: [libc::c_ulong; 3] = [6, 7, 18];
/// Highest capability the kernel could know; dropping one it does not know fails and ends the loop.
const CAPABILITY_MAX: libc::c_ulong = 63;

/// The process to start.
pub(crate) struct Launch<'a> {
    /// Emulator, preloaded library, namespaces.
    pub(crate) host: &'a Host,
    /// Processors and memory.
    pub(crate) shape: Shape,
    /// Origin of the machine.
    pub(crate) origin: &'a Origin,
    /// The machine's own files and sockets.
    pub(crate) endpoints: Endpoints,
    /// Guest memory, open for reading.
    pub(crate) memory: File,
}

impl Launch<'_> {
    /// Starts the process and returns a pidfd. From then on, only the process has the machine's descriptors.
    pub(crate) fn start(self) -> Result<OwnedFd> {
        let failed = |action| EngineError::io(action, &self.host.binary);
        let output = self.endpoints.log.try_clone().map_err(failed("open the log of"))?;
        let errors = self.endpoints.log.try_clone().map_err(failed("open the log of"))?;
        let inherited = self.inherited();
        let mut command = Command::new(&self.host.binary);
        command.args(command_line::arguments(&self.host.accelerator, self.shape, self.origin, &inherited));
        command.env_clear().envs(environment(&self.host.library.preload, &inherited));
        command.current_dir("/").stdin(Stdio::null()).stdout(output).stderr(errors);
        let inside = ChildSetup { inherited, namespaces: self.namespaces() };
        // SAFETY: between fork and exec, `enter` makes system calls only: no allocation, no locks.
        unsafe { command.pre_exec(move || inside.enter()) };
        let child = command.spawn().map_err(failed("start the emulator"))?;
        // The child cannot be reaped before this: only the watcher of the descriptor does that.
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        pidfd.map_err(|error| failed("watch the emulator")(error.into()))
    }

    fn inherited(&self) -> InheritedFds {
        InheritedFds {
            shim: self.endpoints.shim.as_raw_fd(),
            processes: self.host.namespaces.processes.as_raw_fd(),
            ram: self.memory.as_raw_fd(),
            qmp: self.endpoints.qmp.as_raw_fd(),
            guest: self.endpoints.guest.as_raw_fd(),
            disk: self.endpoints.disk.as_raw_fd(),
            console: self.endpoints.console.as_raw_fd(),
            tap: self.endpoints.tap.as_raw_fd(),
            volumes: std::array::from_fn(|place| self.endpoints.volumes[place].as_raw_fd()),
        }
    }

    fn namespaces(&self) -> [(RawFd, libc::c_int); 3] {
        let namespaces = &self.host.namespaces;
        [
            (namespaces.network.as_raw_fd(), libc::CLONE_NEWNET),
            (namespaces.ipc.as_raw_fd(), libc::CLONE_NEWIPC),
            (namespaces.uts.as_raw_fd(), libc::CLONE_NEWUTS),
        ]
    }
}

fn environment(library: &Path, inherited: &InheritedFds) -> [(OsString, OsString); 6] {
    let name = |variable: &std::ffi::CStr| OsString::from(variable.to_string_lossy().into_owned());
    [
        ("LD_PRELOAD".into(), library.into()),
        // Messages of the C library in the log are for machines and maintainers.
        ("LC_ALL".into(), "C".into()),
        (name(CONTROL_FD_VARIABLE), inherited.shim.to_string().into()),
        (name(PROC_FD_VARIABLE), inherited.processes.to_string().into()),
        (name(RAM_FD_VARIABLE), inherited.ram.to_string().into()),
        (name(RAM_PATH_VARIABLE), RAM_PATH.into()),
    ]
}

/// Setup of the new process before it becomes the emulator. Plain numbers: nothing to allocate or drop.
struct ChildSetup {
    inherited: InheritedFds,
    namespaces: [(RawFd, libc::c_int); 3],
}

impl ChildSetup {
    fn enter(&self) -> io::Result<()> {
        // SAFETY: system calls on numbers and static strings, in a process of its own.
        unsafe {
            check(libc::setsid())?;
            for (namespace, kind) in self.namespaces {
                check(libc::setns(namespace, kind))?;
            }
            check(libc::unshare(libc::CLONE_NEWNS))?;
            // Mounts and unmounts of the host propagate here, so that a machine holds none; ours do
            // not propagate to the host.
            let (none, root) = (std::ptr::null(), c"/".as_ptr());
            check(libc::mount(none, root, none, libc::MS_SLAVE | libc::MS_REC, std::ptr::null()))?;
            limit(libc::RLIMIT_CORE, 0)?;
            limit(libc::RLIMIT_NOFILE, limits::DESCRIPTORS_MAX)?;
        }
        self.keep_inherited()?;
        drop_capabilities()
    }

    /// Closes every descriptor on exec, except the inherited ones.
    fn keep_inherited(&self) -> io::Result<()> {
        let first = (libc::STDERR_FILENO + 1) as libc::c_uint;
        // SAFETY: descriptor numbers only.
        unsafe {
            let answer =
                libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            check(answer as libc::c_int)?;
            for fd in self.inherited.all() {
                check(libc::fcntl(fd, libc::F_SETFD, 0))?;
            }
        }
        Ok(())
    }
}

fn drop_capabilities() -> io::Result<()> {
    for capability in (0..=CAPABILITY_MAX).filter(|capability| !CAPABILITIES.contains(capability)) {
        // SAFETY: integers only.
        let answer = check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) });
        match answer {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
            answer => answer?,
        };
    }
    Ok(())
}

/// # Safety
/// Changes the limits of the calling process: only between fork and exec.
unsafe fn limit(resource: libc::__rlimit_resource_t, value: u64) -> io::Result<()> {
    let both = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: a valid limit.
    check(unsafe { libc::setrlimit(resource, &raw const both) }).map(drop)
}

fn check(answer: libc::c_int) -> io::Result<libc::c_int> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}
