//! File operations other than reading and writing contents.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, Metadata, ReadDir};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use pandastack_guest_proto::message::{ErrorBody, Event, FileEntry, FileKind, RawPath};

use super::absolute::absolute;
use super::errors::refusal;
use super::names::Names;
use super::source::{Source, Step};
use super::write::{DIRECTORY_MODE_DEFAULT, make_parents};
use super::xattrs;
use crate::process::User;

/// A page is sent when it may have grown to this many bytes of JSON; one more entry still fits in a frame.
pub(super) const PAGE_BYTES: usize = 32 * 1024;
/// Worst growth of a byte in JSON (`\u0001`).
pub(super) const JSON_GROWTH_MAX: usize = 6;
/// Quotes and separators of an extended attribute in JSON.
const XATTR_BYTES: usize = 6;
/// The fixed part of an entry in JSON.
const ENTRY_BYTES: usize = 200;

/// Builds the entry for `path` from `meta`.
pub(super) fn describe(path: &Path, meta: &Metadata) -> FileEntry {
    let kind = match meta.file_type() {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Directory,
        kind if kind.is_symlink() => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let target = (kind == FileKind::Symlink).then(|| link_target(path)).flatten();
    FileEntry {
        name: path.file_name().map_or_else(|| RawPath::from("/"), |name| name.as_bytes().to_vec().into()),
        kind,
        size: meta.len(),
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        mtime_s: meta.mtime(),
        target,
        path: None,
        owner: None,
        group: None,
        // A link has none of this kind.
        xattrs: if kind == FileKind::Symlink { BTreeMap::new() } else { xattrs::texts(path) },
    }
}

fn link_target(path: &Path) -> Option<RawPath> {
    let target = std::fs::read_link(path).ok()?;
    Some(target.as_os_str().as_bytes().to_vec().into())
}

/// Most bytes of JSON that an entry can become.
pub(super) fn entry_bytes(entry: &FileEntry) -> usize {
    let text = entry.name.as_bytes().len()
        + entry.target.as_ref().map_or(0, |target| target.as_bytes().len())
        + entry.path.as_ref().map_or(0, |path| path.as_bytes().len())
        + entry.owner.as_ref().map_or(0, String::len)
        + entry.group.as_ref().map_or(0, String::len)
        + entry.xattrs.iter().map(|(name, value)| name.len() + value.len() + XATTR_BYTES).sum::<usize>();
    ENTRY_BYTES + text * JSON_GROWTH_MAX
}

/// Describes a path.
pub(crate) fn stat(root: &Path, path: &RawPath, no_follow: bool) -> Result<FileEntry, ErrorBody> {
    let path = absolute(path)?;
    let meta = if no_follow { std::fs::symlink_metadata(&path) } else { std::fs::metadata(&path) };
    let meta = meta.map_err(|error| refusal("stat", &path, &error))?;
    let mut entry = describe(&path, &meta);
    // The entry describes what a link points to, and where that is.
    entry.target = entry.target.or_else(|| link_target(&path));
    Ok(Names::read(root).fill(entry))
}

/// Creates a directory.
pub(crate) fn make_directory(
    root: &Path,
    path: &RawPath,
    parents: bool,
    mode: Option<u32>,
    user: Option<&str>,
) -> Result<(), ErrorBody> {
    let path = absolute(path)?;
    let owner = user.map(|user| User::find(root, user)).transpose()?;
    let mode = mode.unwrap_or(DIRECTORY_MODE_DEFAULT);
    if parents {
        make_parents(&path, mode, owner.as_ref())?;
        return if path.is_dir() {
            Ok(())
        } else {
            Err(refusal("make", &path, &ErrorKind::NotADirectory.into()))
        };
    }
    DirBuilder::new().mode(mode).create(&path).map_err(|error| refusal("make", &path, &error))?;
    let ids = owner.map(|user| (user.credentials.uid, user.credentials.gid));
    match ids {
        Some((uid, gid)) => std::os::unix::fs::chown(&path, Some(uid), Some(gid))
            .map_err(|error| refusal("make", &path, &error)),
        None => Ok(()),
    }
}

/// Removes a file, a link or a directory.
pub(crate) fn remove(path: &RawPath, recursive: bool) -> Result<(), ErrorBody> {
    let path = absolute(path)?;
    let fail = |error: &std::io::Error| refusal("remove", &path, error);
    let meta = std::fs::symlink_metadata(&path).map_err(|error| fail(&error))?;
    let removed = match (meta.is_dir(), recursive) {
        (false, _) => std::fs::remove_file(&path),
        (true, true) => std::fs::remove_dir_all(&path),
        (true, false) => std::fs::remove_dir(&path),
    };
    removed.map_err(|error| fail(&error))
}

/// A directory that is sent to the host in pages.
#[derive(Debug)]
pub(crate) struct ListSource {
    path: RawPath,
    root: PathBuf,
    open: Option<(ReadDir, PathBuf, Names)>,
}

impl ListSource {
    pub(crate) fn new(path: RawPath, root: PathBuf) -> Self {
        Self { path, root, open: None }
    }
}

impl Source for ListSource {
    fn next(&mut self, _bytes_max: usize) -> Result<Step, ErrorBody> {
        if self.open.is_none() {
            let path = absolute(&self.path)?;
            let directory = std::fs::read_dir(&path).map_err(|error| refusal("list", &path, &error))?;
            self.open = Some((directory, path, Names::read(&self.root)));
        }
        let Some((directory, path, names)) = &mut self.open else { return Ok(Step::End) };
        let mut entries = Vec::new();
        let mut bytes = 0;
        while bytes < PAGE_BYTES
            && let Some(entry) = directory.next()
        {
            let entry = entry.map_err(|error| refusal("list", path, &error))?;
            // Skip an entry that has vanished.
            let Ok(meta) = entry.metadata() else { continue };
            let described = names.fill(describe(&entry.path(), &meta));
            bytes += entry_bytes(&described);
            entries.push(described);
        }
        Ok(if entries.is_empty() { Step::End } else { Step::Event(Event::Entries { entries }) })
    }
}
