//! The kernel's watches on one path, and what its events mean.
//!
//! The kernel watches single directories. For a tree, each directory has a watch of its own; new ones get theirs when
//! they appear, and what was put into them before that is reported as created. Files that are written under a
//! temporary name are reported under their own, as created and modified.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use pandastack_guest_proto::message::{ChangeKind, RawPath};

use super::ring::NewChange;
use crate::files::{TemporaryKind, temporary};

/// The two halves of a rename are consecutive, but may be read separately; this is the wait for the
/// second.
const SECOND_HALF_WAIT_MS: u8 = 10;

/// A watched path.
pub(super) struct Tree {
    inotify: Inotify,
    root: PathBuf,
    recursive: bool,
    directories_max: usize,
    /// Relative paths of the watched directories.
    directories: HashMap<WatchDescriptor, PathBuf>,
}

fn watch_flags() -> AddWatchFlags {
    AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_MODIFY
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
}

impl Tree {
    pub(super) fn open(root: &Path, recursive: bool, directories_max: usize) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let directories = HashMap::new();
        let mut tree = Self { inotify, root: root.to_owned(), recursive, directories_max, directories };
        tree.add(Path::new(""), &mut Vec::new())?;
        Ok(tree)
    }

    pub(super) fn inotify(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Watches a directory and, in a recursive watch, those below it; records existing entries.
    fn add(&mut self, relative: &Path, present: &mut Vec<NewChange>) -> io::Result<()> {
        let mut waiting = vec![relative.to_owned()];
        while let Some(relative) = waiting.pop() {
            if self.directories.len() >= self.directories_max {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            let path = self.root.join(&relative);
            match self.inotify.add_watch(&path, watch_flags()) {
                Ok(descriptor) => self.directories.insert(descriptor, relative.clone()),
                // An entry below the top may have vanished; the top itself must exist.
                Err(nix::errno::Errno::ENOENT | nix::errno::Errno::ENOTDIR)
                    if !relative.as_os_str().is_empty() =>
                {
                    continue;
                }
                Err(errno) => return Err(errno.into()),
            };
            if !self.recursive {
                continue;
            }
            for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                if temporary(&entry.file_name()).is_some() {
                    continue;
                }
                let relative = relative.join(entry.file_name());
                let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
                present.push(change(ChangeKind::Created, &relative, is_directory));
                if is_directory {
                    waiting.push(relative);
                }
            }
        }
        Ok(())
    }

    /// Changes since the last read, and whether the watched path itself is gone.
    pub(super) fn read(&mut self) -> (Vec<NewChange>, bool) {
        let mut events = self.inotify.read_events().unwrap_or_default();
        if events.last().is_some_and(|last| last.mask.contains(AddWatchFlags::IN_MOVED_FROM)) {
            let mut ready = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
            if poll(&mut ready, PollTimeout::from(SECOND_HALF_WAIT_MS)).is_ok_and(|count| count > 0) {
                events.extend(self.inotify.read_events().unwrap_or_default());
            }
        }
        let (mut changes, mut gone) = (Vec::new(), false);
        let mut events = events.into_iter().peekable();
        while let Some(event) = events.next() {
            let second = |next: &InotifyEvent| {
                event.mask.contains(AddWatchFlags::IN_MOVED_FROM)
                    && next.cookie == event.cookie
                    && next.mask.contains(AddWatchFlags::IN_MOVED_TO)
            };
            match events.next_if(second) {
                Some(second) => self.renamed(&event, &second, &mut changes),
                None => gone |= self.happened(&event, &mut changes),
            }
        }
        (changes, gone)
    }

    fn place(&self, descriptor: WatchDescriptor, name: Option<&OsString>) -> Option<PathBuf> {
        let directory = self.directories.get(&descriptor)?;
        Some(name.map_or_else(|| directory.clone(), |name| directory.join(name)))
    }

    fn renamed(&mut self, from: &InotifyEvent, to: &InotifyEvent, changes: &mut Vec<NewChange>) {
        let is_directory = from.mask.contains(AddWatchFlags::IN_ISDIR);
        if let Some(becomes) = from.name.as_deref().and_then(temporary) {
            return self.written(becomes, to, changes);
        }
        let (Some(old), Some(new)) =
            (self.place(from.wd, from.name.as_ref()), self.place(to.wd, to.name.as_ref()))
        else {
            return changes.push(NewChange::overflow());
        };
        if is_directory {
            for directory in self.directories.values_mut() {
                if let Ok(rest) = directory.strip_prefix(&old) {
                    *directory = new.join(rest);
                }
            }
        }
        let to = Some(raw(&new));
        changes.push(NewChange { to, ..change(ChangeKind::Renamed, &old, is_directory) });
    }

    /// A file that was written under another name took its own.
    fn written(&self, kind: TemporaryKind, to: &InotifyEvent, changes: &mut Vec<NewChange>) {
        let Some(path) = self.place(to.wd, to.name.as_ref()) else {
            return changes.push(NewChange::overflow());
        };
        if kind == TemporaryKind::New {
            changes.push(change(ChangeKind::Created, &path, false));
        }
        changes.push(change(ChangeKind::Modified, &path, false));
    }

    /// Handles one event; true if the watched path itself is gone.
    fn happened(&mut self, event: &InotifyEvent, changes: &mut Vec<NewChange>) -> bool {
        let has = |flag| event.mask.contains(flag);
        if has(AddWatchFlags::IN_Q_OVERFLOW) {
            changes.push(NewChange::overflow());
            return false;
        }
        if event.name.as_deref().and_then(temporary).is_some() {
            return false;
        }
        let Some(path) = self.place(event.wd, event.name.as_ref()) else { return false };
        if has(AddWatchFlags::IN_IGNORED) {
            self.directories.remove(&event.wd);
            return false;
        }
        let is_directory = has(AddWatchFlags::IN_ISDIR);
        if has(AddWatchFlags::IN_DELETE_SELF) || has(AddWatchFlags::IN_MOVE_SELF) {
            // For a directory below, its parent reports the event.
            let is_top = path.as_os_str().is_empty();
            if is_top {
                changes.push(change(ChangeKind::Removed, &path, is_directory));
            }
            return is_top;
        }
        let kind = match () {
            () if has(AddWatchFlags::IN_CREATE) || has(AddWatchFlags::IN_MOVED_TO) => ChangeKind::Created,
            () if has(AddWatchFlags::IN_DELETE) || has(AddWatchFlags::IN_MOVED_FROM) => ChangeKind::Removed,
            () if has(AddWatchFlags::IN_ATTRIB) => ChangeKind::Attributes,
            () => ChangeKind::Modified,
        };
        changes.push(change(kind, &path, is_directory));
        if is_directory && kind == ChangeKind::Created && self.recursive && self.add(&path, changes).is_err()
        {
            changes.push(NewChange::overflow());
        }
        if is_directory && has(AddWatchFlags::IN_MOVED_FROM) {
            self.forget(&path);
        }
        false
    }

    /// A directory was moved away: stop reporting its changes.
    fn forget(&mut self, path: &Path) {
        let gone = self.directories.extract_if(|_, directory| directory.starts_with(path));
        for (descriptor, _) in gone.collect::<Vec<_>>() {
            // The kernel may have dropped it already.
            let _ = self.inotify.rm_watch(descriptor);
        }
    }
}

fn change(kind: ChangeKind, path: &Path, is_directory: bool) -> NewChange {
    NewChange { kind, path: raw(path), to: None, is_directory }
}

fn raw(path: &Path) -> RawPath {
    path.as_os_str().as_bytes().to_vec().into()
}
