//! Walking a tree, step by step.
//!
//! Links are not followed and other file systems (`/proc`, volumes) are not entered, so a walk always ends.
//! One open directory per level is all it holds.

use std::fs::{Metadata, ReadDir};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pandastack_guest_proto::message::{ErrorBody, Event, FileEntry, FileWalk};

use super::absolute::absolute;
use super::directory::{PAGE_BYTES, describe, entry_bytes};
use super::errors::refusal;
use super::glob::Glob;
use super::names::Names;
use super::source::{Source, Step};

/// Maximum depth; a deeper tree is reported as truncated.
const DEPTH_MAX: usize = 256;
/// Entries visited in one step, so that a worker is soon free for others.
pub(super) const STEP_ENTRIES: usize = 1024;

/// An entry that a walk visits.
#[derive(Debug)]
pub(super) struct WalkItem {
    pub(super) path: PathBuf,
    pub(super) relative: PathBuf,
    /// Metadata of the entry itself, not of a link's target.
    pub(super) meta: Metadata,
}

/// A walk; directories come before their contents.
#[derive(Debug)]
pub(super) struct Walker {
    device: u64,
    depth: usize,
    open: Vec<Level>,
    pub(super) visited: u64,
    pub(super) truncated: bool,
}

#[derive(Debug)]
struct Level {
    entries: ReadDir,
    relative: PathBuf,
}

impl Walker {
    /// Starts in a directory, which is itself not visited.
    pub(super) fn open(root: &Path, depth: Option<u32>) -> io::Result<Self> {
        let device = std::fs::metadata(root)?.dev();
        let top = Level { entries: std::fs::read_dir(root)?, relative: PathBuf::new() };
        let depth = depth.map_or(usize::MAX, |depth| depth as usize);
        Ok(Self { device, depth, open: vec![top], visited: 0, truncated: false })
    }

    fn descend(&mut self, visited: &WalkItem) {
        if !visited.meta.is_dir() || visited.meta.dev() != self.device || self.open.len() >= self.depth {
            return;
        }
        if self.open.len() >= DEPTH_MAX {
            self.truncated = true;
            return;
        }
        // A directory that vanished or cannot be read has no entries.
        if let Ok(entries) = std::fs::read_dir(&visited.path) {
            self.open.push(Level { entries, relative: visited.relative.clone() });
        }
    }
}

impl Iterator for Walker {
    type Item = WalkItem;

    fn next(&mut self) -> Option<WalkItem> {
        loop {
            let level = self.open.last_mut()?;
            let Some(entry) = level.entries.next() else {
                self.open.pop();
                continue;
            };
            // Skip an entry that has vanished.
            let Ok(entry) = entry else { continue };
            let Ok(meta) = entry.metadata() else { continue };
            let visited =
                WalkItem { path: entry.path(), relative: level.relative.join(entry.file_name()), meta };
            self.visited += 1;
            self.descend(&visited);
            return Some(visited);
        }
    }
}

/// A walk that is sent to the host in pages.
#[derive(Debug)]
pub(crate) struct WalkSource {
    request: FileWalk,
    root: PathBuf,
    open: Option<ListState>,
    ended: bool,
}

#[derive(Debug)]
struct ListState {
    walker: Walker,
    glob: Option<Glob>,
    names: Names,
    left: u32,
}

impl WalkSource {
    pub(crate) fn new(request: FileWalk, root: PathBuf) -> Self {
        Self { request, root, open: None, ended: false }
    }

    fn open(&self) -> Result<ListState, ErrorBody> {
        let path = absolute(&self.request.path)?;
        let glob = self.request.glob.as_deref().map(Glob::new).transpose()?;
        let walker =
            Walker::open(&path, self.request.depth).map_err(|error| refusal("list", &path, &error))?;
        Ok(ListState { walker, glob, names: Names::read(&self.root), left: self.request.entries_max })
    }
}

impl ListState {
    /// A page of entries, and whether the walk is complete.
    fn page(&mut self) -> (Vec<FileEntry>, bool) {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for _ in 0..STEP_ENTRIES {
            if bytes >= PAGE_BYTES {
                break;
            }
            let Some(visited) = self.walker.next() else { return (entries, true) };
            if self.glob.as_ref().is_some_and(|glob| !glob.matches(&visited.relative)) {
                continue;
            }
            if self.left == 0 {
                self.walker.truncated = true;
                return (entries, true);
            }
            self.left -= 1;
            let mut entry = self.names.fill(describe(&visited.path, &visited.meta));
            entry.path = Some(visited.relative.as_os_str().as_bytes().to_vec().into());
            bytes += entry_bytes(&entry);
            entries.push(entry);
        }
        (entries, false)
    }
}

impl Source for WalkSource {
    fn next(&mut self, _bytes_max: usize) -> Result<Step, ErrorBody> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None if self.ended => return Ok(Step::End),
            None => self.open()?,
        };
        if self.ended {
            let Walker { visited, truncated, .. } = open.walker;
            return Ok(Step::Event(Event::WalkEnded { visited, truncated }));
        }
        let (entries, ended) = open.page();
        self.ended = ended;
        self.open = Some(open);
        Ok(if entries.is_empty() { Step::Idle } else { Step::Event(Event::Entries { entries }) })
    }
}
