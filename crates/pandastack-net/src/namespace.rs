//! Network namespaces: making them, keeping them across agent restarts, and working inside one.
//!
//! A thread's namespace is invisible state that outlives a function call, so no thread we share ever changes its own:
//! work inside a namespace runs on a thread that exists for that work alone and ends with it.
//!
//! A namespace is kept by a bind mount of its handle, as `ip netns` does, because that survives the process. The
//! directory is a shared mount: an unmount then reaches copies of it in other mount namespaces, which would otherwise
//! keep dead slots alive.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::{
    MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount,
};

use crate::error::{NetError, Result};

/// Handle of the calling thread's network namespace. Not `/proc/self`, which is the main thread's.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// An open network namespace.
#[derive(Debug)]
pub(crate) struct NetNs(File);

impl NetNs {
    /// The calling thread's.
    pub(crate) fn current() -> Result<Self> {
        Self::open(Path::new(OWN_NAMESPACE))
    }

    /// Opens the namespace at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(NetError::io("opening network namespace", path))?;
        Ok(NetNs(file))
    }

    /// Moves the calling thread into the namespace permanently.
    pub(crate) fn enter(&self) -> Result<()> {
        setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET)
            .map_err(NetError::io("entering network namespace", OWN_NAMESPACE))
    }

    /// Runs `work` inside, on a thread of its own.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_own_thread(|| {
            self.enter()?;
            work()
        })
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Creates a namespace and runs `work` inside. It vanishes with the last descriptor, unless `work` keeps
/// it.
pub(crate) fn in_new<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    on_own_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(NetError::io("making a network namespace", OWN_NAMESPACE))?;
        work()
    })
}

/// Keeps the calling thread's namespace under `path` until [`remove`].
pub(crate) fn keep_current(path: &Path) -> Result<()> {
    File::create(path).map_err(NetError::io("creating the file of a network namespace", path))?;
    mount_bind(OWN_NAMESPACE, path).map_err(NetError::io("keeping a network namespace", path))
}

/// Returns whether a namespace is mounted there, rather than an empty file left by a reboot.
pub(crate) fn is_kept(path: &Path) -> bool {
    statfs(path).is_ok_and(|stat| stat.f_type == libc::NSFS_MAGIC)
}

/// Unmounts the namespace at `path`. Harmless if it does not exist.
pub(crate) fn remove(path: &Path) -> Result<()> {
    while is_kept(path) {
        unmount(path, UnmountFlags::DETACH)
            .map_err(NetError::io("letting go of a network namespace", path))?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(NetError::io("removing the file of a network namespace", path)(error))
        }
        _ => Ok(()),
    }
}

/// Prepares the directory for namespaces.
pub(crate) fn prepare_directory(path: &Path) -> Result<()> {
    let share = || mount_change(path, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    fs::create_dir_all(path).map_err(NetError::io("creating directory", path))?;
    // Only mount points can be shared, and at first the directory is not one.
    if share().is_ok() {
        return Ok(());
    }
    mount_bind_recursive(path, path).map_err(NetError::io("mounting directory onto itself", path))?;
    share().map_err(NetError::io("sharing mounts of directory", path))
}

/// Undoes [`prepare_directory`]. The directory must hold no namespace.
pub(crate) fn remove_directory(path: &Path) -> Result<()> {
    match unmount(path, UnmountFlags::DETACH) {
        // Not a mount point, or missing.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(errno) => return Err(NetError::io("unmounting directory", path)(errno)),
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(NetError::io("removing directory", path)(error))
        }
        _ => Ok(()),
    }
}

fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let handle = thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, work)
            .map_err(NetError::io("starting a thread", OWN_NAMESPACE))?;
        handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
