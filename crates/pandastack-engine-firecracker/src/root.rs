//! The root directory of one process, and how files get into it.
//!
//! A jailed process has its own mount namespace with a tmpfs as root. A host file is bind-mounted
//! there by a thread that joins the namespace for that purpose. The mount is visible to the process
//! only and disappears with it; the host's mount table stays short, which keeps starts fast. Paths
//! are resolved inside the jail, so a compromised process can redirect the thread only to its own
//! files.
//!
//! A process without a jail has a plain directory with symbolic links.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};
use pandastack_engine::process::Process;
use pandastack_engine::{EngineError, Result};
use rustix::fs::{Gid, Uid, fchown};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_remount, move_mount, open_tree, unmount,
};
use serde::{Deserialize, Serialize};

/// User and group of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Access of the process to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read and write. The file is chowned to the process's user.
    Own,
    /// Read. The file becomes readable by every user who can reach it.
    Read,
}

/// A host file to place in a root.
#[derive(Debug)]
pub(crate) struct PlacedFile {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    pub(crate) access: Access,
}

impl PlacedFile {
    /// Opens a file by its path on the host.
    pub(crate) fn open(name: &str, path: &Path, access: Access) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(access == Access::Own).open(path);
        let file = file.map_err(EngineError::io("open the file", path))?;
        Ok(Self { name: name.to_owned(), path: path.to_owned(), file, access })
    }

    /// Opens an output of the process, creating it if needed.
    pub(crate) fn output(name: &str, path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(EngineError::io("create the file", path))?;
        Ok(Self { name: name.to_owned(), path: path.to_owned(), file, access: Access::Own })
    }
}

/// The root directory of a process.
#[derive(Debug, Clone)]
pub(crate) enum Root {
    /// Root of a jailed process that runs as `owner`.
    Jail { process: Process, owner: Owner },
    /// Root of a process without a jail.
    Directory(PathBuf),
}

impl Root {
    /// Path under which the agent reaches a file in the root.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self {
            Root::Jail { process, .. } => PathBuf::from(format!("/proc/{}/root/{name}", process.pid)),
            Root::Directory(dir) => dir.join(name),
        }
    }

    /// Places files, and creates empty ones for the names in `empty`.
    pub(crate) async fn place(&self, files: Vec<PlacedFile>, empty: Vec<String>) -> Result<()> {
        let root = self.clone();
        blocking("placing files in the machine's root", move || root.place_now(&files, &empty)).await
    }

    /// Removes placed files. Absent ones are ignored.
    pub(crate) async fn remove(&self, names: [&'static str; 2]) -> Result<()> {
        let root = self.clone();
        blocking("removing files from the machine's root", move || root.remove_now(names)).await
    }

    fn place_now(&self, files: &[PlacedFile], empty: &[String]) -> Result<()> {
        match self {
            Root::Jail { process, owner } => place_in_jail(process, *owner, files, empty),
            Root::Directory(dir) => place_in_directory(dir, files, empty),
        }
    }

    fn remove_now(&self, names: [&'static str; 2]) -> Result<()> {
        match self {
            Root::Jail { process, .. } => {
                let remove = || {
                    for name in names {
                        let path = format!("/{name}");
                        ignore_absent(unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW))?;
                        ignore_absent(rustix::fs::unlink(&path))?;
                    }
                    Ok(())
                };
                in_jail(process, remove).map_err(EngineError::io("remove files from", self.path("")))
            }
            Root::Directory(dir) => {
                for name in names {
                    let path = dir.join(name);
                    ignore_absent(rustix::fs::unlink(&path)).map_err(EngineError::io("remove", &path))?;
                }
                Ok(())
            }
        }
    }
}

/// Chowns a file back to the agent's user.
pub(crate) fn take_back(file: &File, path: &Path) -> Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let taken = fchown(file, Some(uid), Some(gid));
    taken.map_err(|error| EngineError::io("restore the owner of the file", path)(error.into()))
}

fn place_in_jail(process: &Process, owner: Owner, files: &[PlacedFile], empty: &[String]) -> Result<()> {
    let mut trees = Vec::with_capacity(files.len());
    for placed in files {
        grant(placed, owner).map_err(EngineError::io("let the machine use the file", &placed.path))?;
        // Here and not inside: a file can be mounted elsewhere only from the namespace that it was
        // opened in.
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(placed.file.as_fd(), "", flags);
        trees.push(tree.map_err(|error| EngineError::io("mount the file", &placed.path)(error.into()))?);
    }
    let place = || {
        for (placed, tree) in files.iter().zip(&trees) {
            let path = format!("/{}", placed.name);
            create(&path)?;
            move_mount(tree, "", rustix::fs::CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
            let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            flags.set(MountFlags::RDONLY, placed.access == Access::Read);
            mount_remount(&path, flags, c"")?;
        }
        for name in empty {
            let file = create(&format!("/{name}"))?;
            fchown(&file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
        }
        Ok(())
    };
    in_jail(process, place).map_err(EngineError::io("place files in", format!("/proc/{}/root", process.pid)))
}

fn place_in_directory(dir: &Path, files: &[PlacedFile], empty: &[String]) -> Result<()> {
    for placed in files {
        let link = dir.join(&placed.name);
        let target = std::path::absolute(&placed.path).map_err(EngineError::io("find", &placed.path))?;
        std::os::unix::fs::symlink(target, &link).map_err(EngineError::io("link the file", &link))?;
    }
    for name in empty {
        let path = dir.join(name);
        File::create(&path).map_err(EngineError::io("create", &path))?;
    }
    Ok(())
}

fn create(path: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
}

fn grant(placed: &PlacedFile, owner: Owner) -> io::Result<()> {
    match placed.access {
        Access::Own => {
            Ok(fchown(&placed.file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?)
        }
        Access::Read => {
            let metadata = placed.file.metadata()?;
            if metadata.mode() & 0o004 == 0 {
                let mut permissions = metadata.permissions();
                permissions.set_mode(metadata.mode() | 0o444);
                placed.file.set_permissions(permissions)?;
            }
            Ok(())
        }
    }
}

/// Runs `action` on a thread that has joined the mount namespace and root of a process. The thread
/// ends afterwards, because it cannot leave the namespace again.
fn in_jail<T: Send>(process: &Process, action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let enter = || {
        // Threads share root and working directory; a thread that shares them cannot join a mount
        // namespace.
        unshare(CloneFlags::CLONE_FS)?;
        setns(process.descriptor(), CloneFlags::CLONE_NEWNS)?;
        action()
    };
    thread::scope(|scope| scope.spawn(enter).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

fn ignore_absent(outcome: rustix::io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::INVAL) => Ok(()),
        outcome => Ok(outcome?),
    }
}

/// Runs blocking work on a blocking thread.
pub(crate) async fn blocking<T: Send + 'static>(
    step: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let panicked = |error: tokio::task::JoinError| EngineError::Vmm { step, detail: error.to_string() };
    tokio::task::spawn_blocking(work).await.map_err(panicked)?
}
