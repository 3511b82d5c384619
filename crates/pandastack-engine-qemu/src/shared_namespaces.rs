//! Environment that all emulator processes of this engine share, created once: empty namespaces and
//! a view of its own processes.
//!
//! An emulator gets its network, disk and sockets as open descriptors, so its namespaces can be empty, and then one set
//! serves all: processes that may open no socket and no shared memory segment cannot meet in them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use pandastack_engine::{EngineError, Result};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Namespaces and process file system.
#[derive(Debug)]
pub(crate) struct SharedNamespaces {
    /// No interface but a loopback that is down.
    pub(crate) network: OwnedFd,
    /// No queues, semaphores, segments.
    pub(crate) ipc: OwnedFd,
    /// Namespace of host names, which belongs to no machine.
    pub(crate) uts: OwnedFd,
    /// Detached mount of procfs that shows a process only the processes it may trace: itself. Its
    /// root has no parent directory, so holding it open leads nowhere else.
    pub(crate) processes: OwnedFd,
}

impl SharedNamespaces {
    /// Creates them.
    pub(crate) fn prepare() -> Result<Self> {
        let unavailable = |what: &str, error: io::Error| {
            EngineError::Unavailable(format!(
                "cannot make {what} for emulator processes: {error}; the agent needs to run as root"
            ))
        };
        let [network, ipc, uts] = namespaces().map_err(|error| unavailable("empty namespaces", error))?;
        let processes = process_mount().map_err(|error| unavailable("a process file system", error))?;
        Ok(Self { network, ipc, uts, processes })
    }

    /// Runs `action` on a thread inside the empty network.
    pub(crate) fn in_network<T: Send>(&self, action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_thread(|| {
            move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))?;
            action()
        })
    }
}

/// Namespaces belong to threads: change it in a temporary thread.
fn on_thread<T: Send>(action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| scope.spawn(action).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

fn namespaces() -> io::Result<[OwnedFd; 3]> {
    on_thread(|| {
        let kinds = UnshareFlags::NEWNET | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS;
        // SAFETY: descriptors stay shared with the other threads; only namespaces change.
        unsafe { unshare_unsafe(kinds) }?;
        let open = |name: &str| File::open(format!("/proc/thread-self/ns/{name}")).map(OwnedFd::from);
        Ok([open("net")?, open("ipc")?, open("uts")?])
    })
}

fn process_mount() -> io::Result<OwnedFd> {
    let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "hidepid", "ptraceable")?;
    fsconfig_set_string(&context, "subset", "pid")?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}
