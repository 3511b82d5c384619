//! Writing a file.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pandastack_guest_proto::message::{ErrorBody, FileWrite, WriteMode};

use super::absolute::absolute;
use super::errors::refusal;
use super::sink::Sink;
use crate::process::User;

const FILE_MODE_DEFAULT: u32 = 0o644;
pub(super) const DIRECTORY_MODE_DEFAULT: u32 = 0o755;

/// A file that the host's bytes go into.
#[derive(Debug)]
pub(crate) struct WriteSink {
    request: FileWrite,
    root: PathBuf,
    open: Option<Target>,
    bytes: u64,
}

#[derive(Debug)]
struct Target {
    file: File,
    path: PathBuf,
    /// Written next to its target; removed if it is dropped before the rename.
    temporary: Option<Temporary>,
}

/// Prefix of temporary files.
const START: &str = ".pandastack-";
/// Suffixes: of a file that takes a new name, and of a file that replaces another.
const NEW_END: &str = ".new.part";
const REPLACING_END: &str = ".replacing.part";

/// The purpose of a temporary file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TemporaryKind {
    /// A file that was not there.
    New,
    /// An existing file with new contents.
    Replacement,
}

/// The purpose of the file with this name; `None` if it is not a temporary file.
pub(crate) fn temporary(name: &OsStr) -> Option<TemporaryKind> {
    let name = name.as_bytes();
    let ours = name.starts_with(START.as_bytes());
    match ours {
        true if name.ends_with(NEW_END.as_bytes()) => Some(TemporaryKind::New),
        true if name.ends_with(REPLACING_END.as_bytes()) => Some(TemporaryKind::Replacement),
        _ => None,
    }
}

/// A file under a name that it does not keep.
#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
}

impl Temporary {
    /// A name in the same directory, so that the rename stays within one file system. It is short,
    /// however long the file's own name is.
    pub(super) fn next_to(path: &Path) -> Self {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
        let end = if path.symlink_metadata().is_ok() { REPLACING_END } else { NEW_END };
        Self { path: path.with_file_name(format!("{START}{}-{unique}{end}", std::process::id())) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After the rename no file has this name.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl WriteSink {
    pub(crate) fn new(request: FileWrite, root: PathBuf) -> Self {
        Self { request, root, open: None, bytes: 0 }
    }

    fn target(&mut self) -> Result<&mut Target, ErrorBody> {
        match &mut self.open {
            Some(_) => {}
            empty => *empty = Some(open(&self.request, &self.root)?),
        }
        // Just filled; the error is for the type only.
        self.open.as_mut().ok_or_else(|| refusal("write", &self.root, &ErrorKind::Other.into()))
    }
}

impl Sink for WriteSink {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ErrorBody> {
        let target = self.target()?;
        target.file.write_all(bytes).map_err(|error| refusal("write", &target.path, &error))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<u64, ErrorBody> {
        let target = self.target()?;
        if let Some(temporary) = &target.temporary {
            std::fs::rename(&temporary.path, &target.path)
                .map_err(|error| refusal("write", &target.path, &error))?;
        }
        self.open = None;
        Ok(self.bytes)
    }
}

fn open(request: &FileWrite, root: &Path) -> Result<Target, ErrorBody> {
    let path = resolve_links(absolute(&request.path)?);
    let owner = request.user.as_deref().map(|user| User::find(root, user)).transpose()?;
    if request.make_parents
        && let Some(parent) = path.parent()
    {
        make_parents(parent, DIRECTORY_MODE_DEFAULT, owner.as_ref())?;
    }
    let fail = |error: &io::Error| refusal("write", &path, error);
    let existing = match std::fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => return Err(fail(&ErrorKind::IsADirectory.into())),
        Ok(meta) => Some(meta),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(fail(&error)),
    };
    // Only a regular file can be replaced; a device or pipe is written to.
    let atomic =
        request.write_mode == WriteMode::Atomic && existing.as_ref().is_none_or(std::fs::Metadata::is_file);
    let mode =
        request.mode.or(existing.as_ref().map(|meta| meta.mode() & 0o7777)).unwrap_or(FILE_MODE_DEFAULT);
    let (file, temporary) = if atomic {
        let temporary = Temporary::next_to(&path);
        let file = create_new(&temporary.path).map_err(|error| fail(&error))?;
        (file, Some(temporary))
    } else {
        (open_in_place(&path, request.write_mode).map_err(|error| fail(&error))?, None)
    };
    let finished =
        finish_metadata(&file, mode, existing.as_ref(), owner.as_ref(), atomic, request.mode.is_some());
    finished.map_err(|error| fail(&error))?;
    Ok(Target { file, path, temporary })
}

fn finish_metadata(
    file: &File,
    mode: u32,
    existing: Option<&std::fs::Metadata>,
    owner: Option<&User>,
    replaced: bool,
    mode_asked: bool,
) -> io::Result<()> {
    let owner_ids = match (existing, owner) {
        (Some(meta), _) if replaced => Some((meta.uid(), meta.gid())),
        (None, Some(user)) => Some((user.credentials.uid, user.credentials.gid)),
        _ => None,
    };
    if let Some((uid, gid)) = owner_ids {
        fchown(file, Some(uid), Some(gid))?;
    }
    if replaced || existing.is_none() || mode_asked {
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
    }
    Ok(())
}

pub(super) fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn open_in_place(path: &Path, mode: WriteMode) -> io::Result<File> {
    let append = mode == WriteMode::Append;
    OpenOptions::new()
        .write(true)
        .append(append)
        .truncate(!append)
        .create(true)
        .mode(FILE_MODE_DEFAULT)
        // Opening a pipe without a reader would block this thread; with this flag it fails.
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

/// Replacing a link would detach it from its target. A link to nothing is followed one step, as the
/// kernel would on create.
fn resolve_links(path: PathBuf) -> PathBuf {
    match std::fs::symlink_metadata(&path) {
        Ok(meta) if meta.is_symlink() => {}
        _ => return path,
    }
    std::fs::canonicalize(&path)
        .or_else(|_| {
            std::fs::read_link(&path).map(|target| path.parent().unwrap_or(Path::new("/")).join(target))
        })
        .unwrap_or(path)
}

/// Creates the missing directories, owned by `owner`.
pub(super) fn make_parents(path: &Path, mode: u32, owner: Option<&User>) -> Result<(), ErrorBody> {
    let missing: Vec<&Path> = path.ancestors().take_while(|directory| !directory.exists()).collect();
    for directory in missing.into_iter().rev() {
        match DirBuilder::new().mode(mode).create(directory) {
            // Another process was faster, or the link is dangling; the next iteration shows which.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            made => made.map_err(|error| refusal("make", directory, &error))?,
        }
        if let Some(user) = owner {
            let (uid, gid) = (user.credentials.uid, user.credentials.gid);
            std::os::unix::fs::chown(directory, Some(uid), Some(gid))
                .map_err(|error| refusal("make", directory, &error))?;
        }
    }
    Ok(())
}
