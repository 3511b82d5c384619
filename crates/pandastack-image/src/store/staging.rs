//! Directories that are published atomically.
//!
//! Contents are written into a private directory of the same file system, made durable, and renamed
//! into place. A removed directory first leaves its name by a rename, so no reader ever sees half
//! of one. Leftovers of a crash are in two known places, and [`super::Store::sweep`] removes them.

use std::fs::File;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};

use super::StoreError;

/// Files that are made durable at the same time.
const SYNCS_AT_ONCE: usize = 8;

/// A directory being written. Dropped without [`Staging::publish`], it disappears.
#[derive(Debug)]
pub struct Staging {
    dir: tempfile::TempDir,
}

impl Staging {
    pub(super) fn new_in(parent: &Path) -> Result<Staging, StoreError> {
        std::fs::create_dir_all(parent).map_err(StoreError::io("create", parent))?;
        let dir = tempfile::Builder::new().prefix("stage-").tempdir_in(parent);
        Ok(Staging { dir: dir.map_err(StoreError::io("create a directory in", parent))? })
    }

    /// Directory to write to.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Makes everything durable and gives the directory its final name, which must not exist.
    pub fn publish(self, to: &Path) -> Result<(), StoreError> {
        if to.exists() {
            let reason = std::io::ErrorKind::AlreadyExists.into();
            return Err(StoreError::Io { action: "publish", path: to.to_path_buf(), reason });
        }
        let parent = to.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(parent).map_err(StoreError::io("create", parent))?;
        sync_tree(self.dir.path())?;
        let staged = self.dir.keep();
        if let Err(reason) = std::fs::rename(&staged, to) {
            let _ = std::fs::remove_dir_all(&staged);
            return Err(StoreError::Io { action: "publish", path: to.to_path_buf(), reason });
        }
        sync(parent)
    }

    /// Makes everything durable and replaces `to`, if it exists, in one step: readers find the old
    /// directory or the new one.
    pub fn publish_over(self, to: &Path) -> Result<(), StoreError> {
        if !to.exists() {
            return self.publish(to);
        }
        sync_tree(self.dir.path())?;
        let swap = rustix::fs::RenameFlags::EXCHANGE;
        let here = rustix::fs::CWD;
        rustix::fs::renameat_with(here, self.dir.path(), here, to, swap)
            .map_err(|error| StoreError::io("replace", to)(error.into()))?;
        // The replaced directory disappears with the staging directory, whose name it has now.
        sync(to.parent().unwrap_or(Path::new("/")))
    }
}

/// Takes `path` (file or directory) out of the tree immediately, then deletes it. A missing path is
/// fine.
pub(super) fn remove(path: &Path, trash: &Path) -> Result<(), StoreError> {
    if std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(());
    }
    std::fs::create_dir_all(trash).map_err(StoreError::io("create", trash))?;
    let slot = tempfile::Builder::new().prefix("gone-").tempdir_in(trash);
    let slot = slot.map_err(StoreError::io("create a directory in", trash))?;
    match std::fs::rename(path, slot.path().join("it")) {
        Ok(()) => slot.close().map_err(StoreError::io("delete what was removed from", path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(reason) => Err(StoreError::Io { action: "remove", path: path.to_path_buf(), reason }),
    }
}

/// Makes a tree durable, files first. They are synced side by side: the file system then writes its log once for several.
fn sync_tree(dir: &Path) -> Result<(), StoreError> {
    let (mut files, mut dirs) = (Vec::new(), Vec::new());
    list_tree(dir, &mut files, &mut dirs)?;
    for some in files.chunks(SYNCS_AT_ONCE) {
        std::thread::scope(|scope| {
            let begin = |path| std::thread::Builder::new().spawn_scoped(scope, move || sync(path));
            let begun: Vec<_> = some.iter().map(|path| (path, begin(path))).collect();
            begun.into_iter().try_for_each(|(path, begun)| match begun {
                Ok(begun) => begun.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // The system has no thread to spare.
                Err(_) => sync(path),
            })
        })?;
    }
    dirs.iter().try_for_each(|dir| sync(dir))
}

/// Lists files and directories, each directory after its contents.
fn list_tree(dir: &Path, files: &mut Vec<PathBuf>, dirs: &mut Vec<PathBuf>) -> Result<(), StoreError> {
    let list = |error| StoreError::Io { action: "list", path: dir.to_path_buf(), reason: error };
    for entry in std::fs::read_dir(dir).map_err(list)? {
        let entry = entry.map_err(list)?;
        let kind = entry.file_type().map_err(list)?;
        if kind.is_dir() {
            list_tree(&entry.path(), files, dirs)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    dirs.push(dir.to_owned());
    Ok(())
}

fn sync(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(StoreError::io("make durable", path))
}
