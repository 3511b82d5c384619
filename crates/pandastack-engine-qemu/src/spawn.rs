//! Starting an emulator process: detached, in empty namespaces, with exactly the descriptors it needs.
//!
//! It starts as root with three capabilities left, which is what the preloaded library needs to lock it in, or to give
//! forks of a zygote users of their own; it takes no input from a guest before that.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use pandastack_engine::{EngineError, Result};
use pandastack_qemu_shim::protocol::{
    CONTROL_FD_VARIABLE, PROC_FD_VARIABLE, RAM_FD_VARIABLE, RAM_PATH_VARIABLE,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::command_line::{RAM_PATH, descriptor};
use crate::endpoints::Endpoints;
use crate::limits;
use crate::surroundings::Surroundings;

/// Where inherited descriptors are kept while they are put in their places: above every place.
const STAGING_FD: RawFd = 64;
/// Number of descriptors with a fixed place.
const PLACES: usize = 8;
/// Capabilities that are left: to change user, group and root directory.
const CAPABILITIES: [libc::c_ulong; 3] = [6, 7, 18];
/// Highest capability the kernel could know; dropping one it does not know fails and ends the loop.
const CAPABILITY_MAX: libc::c_ulong = 63;

/// What to start.
pub(crate) struct Launch<'a> {
    /// The emulator.
    pub(crate) binary: &'a Path,
    /// The preloaded library.
    pub(crate) library: &'a Path,
    /// Its arguments.
    pub(crate) arguments: Vec<OsString>,
    /// The machine's own files and sockets.
    pub(crate) endpoints: Endpoints,
    /// Guest memory, open for reading.
    pub(crate) memory: File,
    /// Namespaces and process file system.
    pub(crate) surroundings: &'a Surroundings,
}

impl Launch<'_> {
    /// Starts the process; returns its id and a descriptor of it. The descriptors of the machine are its alone then.
    pub(crate) fn start(self) -> Result<(u32, OwnedFd)> {
        let log = |action| EngineError::io(action, self.binary);
        let output = self.endpoints.log.try_clone().map_err(log("open the log for"))?;
        let errors = self.endpoints.log.try_clone().map_err(log("open the log for"))?;
        let mut command = Command::new(self.binary);
        command.args(&self.arguments).env_clear().envs(environment(self.library));
        command.current_dir("/").stdin(Stdio::null()).stdout(output).stderr(errors);
        let inside = Inside::of(&self);
        // SAFETY: between fork and exec, `enter` makes system calls only: no allocation, no locks.
        unsafe { command.pre_exec(move || inside.enter()) };
        let child = command.spawn().map_err(log("start the emulator"))?;
        // The child cannot be reaped before this: only the watcher of the descriptor does that.
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        Ok((child.id(), pidfd.map_err(|error| log("watch the emulator")(error.into()))?))
    }
}

fn environment(library: &Path) -> [(OsString, OsString); 6] {
    let name = |variable: &std::ffi::CStr| OsString::from(variable.to_string_lossy().into_owned());
    [
        ("LD_PRELOAD".into(), library.into()),
        // Messages of the C library in the log are for machines and maintainers.
        ("LC_ALL".into(), "C".into()),
        (name(CONTROL_FD_VARIABLE), descriptor::SHIM.to_string().into()),
        (name(PROC_FD_VARIABLE), descriptor::PROCESSES.to_string().into()),
        (name(RAM_FD_VARIABLE), descriptor::RAM.to_string().into()),
        (name(RAM_PATH_VARIABLE), RAM_PATH.into()),
    ]
}

/// What the new process does to itself before it becomes the emulator. Plain numbers: nothing to allocate or drop.
struct Inside {
    places: [(RawFd, RawFd); PLACES],
    namespaces: [(RawFd, libc::c_int); 3],
}

impl Inside {
    fn of(launch: &Launch<'_>) -> Self {
        let endpoints = &launch.endpoints;
        let surroundings = launch.surroundings;
        Self {
            places: [
                (endpoints.shim.as_raw_fd(), descriptor::SHIM),
                (surroundings.processes.as_raw_fd(), descriptor::PROCESSES),
                (launch.memory.as_raw_fd(), descriptor::RAM),
                (endpoints.qmp.as_raw_fd(), descriptor::QMP),
                (endpoints.guest.as_raw_fd(), descriptor::GUEST),
                (endpoints.disk.as_raw_fd(), descriptor::DISK),
                (endpoints.console.as_raw_fd(), descriptor::CONSOLE),
                (endpoints.tap.as_raw_fd(), descriptor::TAP),
            ],
            namespaces: [
                (surroundings.network.as_raw_fd(), libc::CLONE_NEWNET),
                (surroundings.ipc.as_raw_fd(), libc::CLONE_NEWIPC),
                (surroundings.uts.as_raw_fd(), libc::CLONE_NEWUTS),
            ],
        }
    }

    fn enter(&self) -> io::Result<()> {
        // SAFETY: system calls on numbers and static strings, in a process of its own.
        unsafe {
            check(libc::setsid())?;
            for (namespace, kind) in self.namespaces {
                check(libc::setns(namespace, kind))?;
            }
            check(libc::unshare(libc::CLONE_NEWNS))?;
            // Mounts of the host still come and go here, so that none is held by a machine; ours do not go there.
            let (none, root) = (std::ptr::null(), c"/".as_ptr());
            check(libc::mount(none, root, none, libc::MS_SLAVE | libc::MS_REC, std::ptr::null()))?;
            limit(libc::RLIMIT_CORE, 0)?;
            limit(libc::RLIMIT_NOFILE, limits::DESCRIPTORS_MAX)?;
        }
        self.place_descriptors()?;
        drop_capabilities()
    }

    /// Puts every inherited descriptor in its place, by way of numbers above all places so that none is overwritten
    /// before it is moved. Everything else is closed on exec.
    fn place_descriptors(&self) -> io::Result<()> {
        let mut staged = [(0, 0); PLACES];
        // SAFETY: descriptor numbers only.
        unsafe {
            for (slot, (from, to)) in staged.iter_mut().zip(self.places) {
                *slot = (check(libc::fcntl(from, libc::F_DUPFD_CLOEXEC, STAGING_FD))?, to);
            }
            for (from, to) in staged {
                check(libc::dup2(from, to))?;
            }
            let first = (libc::STDERR_FILENO + 1) as libc::c_uint + PLACES as libc::c_uint;
            let answer =
                libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            check(answer as libc::c_int)?;
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

const _: () = assert!(
    descriptor::SHIM == libc::STDERR_FILENO + 1 && descriptor::TAP == libc::STDERR_FILENO + PLACES as i32
);
