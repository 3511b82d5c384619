//! Trees of files: walking, searching, copying, packing, watching.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::RawPath;

/// Change a file's owner, permissions and extended attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAttributes {
    /// The file; links are followed, except below a directory.
    pub path: RawPath,
    /// Permission bits; unset keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Owner, by name or number; unset keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Group, by name or number; unset keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Include everything below a directory. Links below are not changed.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub recursive: bool,
    /// Extended attributes `user.*` of the file itself; none for those to remove.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, Option<String>>,
}

/// Walk a directory: [`super::Event::Entries`] pages with `path`, then [`super::Event::WalkEnded`]. Links are not
/// followed and other file systems not entered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileWalk {
    /// The directory.
    pub path: RawPath,
    /// Levels to go down; 1 is the directory's own entries. All when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
    /// Only entries that match. A pattern without `/` is matched with names, one with `/` with relative paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// Most entries to send.
    pub entries_max: u32,
}

/// Search files for lines: [`super::Event::Matches`] pages, then [`super::Event::WalkEnded`]. Files with zero bytes
/// near their beginning are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileGrep {
    /// A file, or a directory to walk.
    pub path: RawPath,
    /// A regular expression.
    pub pattern: String,
    /// Only files that match, as in [`FileWalk::glob`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// Capital and small letters are equal.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub ignore_case: bool,
    /// The pattern is plain text.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub fixed: bool,
    /// Most matches to send.
    pub matches_max: u32,
}

/// A line that matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrepMatch {
    /// The file, relative to the directory that was searched; empty when a file was searched.
    pub path: RawPath,
    /// The line's number, from 1.
    pub line: u64,
    /// The line without its end; long ones are cut, invalid UTF-8 is replaced.
    pub text: String,
}

/// Watch a directory or file: [`super::Event::Watching`], then [`super::Event::Changes`] until
/// cancelled or until it is gone. The watch outlives the call for a while, so that it can be
/// resumed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileWatch {
    /// Path to watch; links are followed.
    pub path: RawPath,
    /// Include everything below.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub recursive: bool,
    /// Resume this watch after that change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<WatchPosition>,
}

/// A place in a watch's changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchPosition {
    /// The watch.
    pub watch: u64,
    /// Sequence number of the last change that was seen; 0 before the first.
    pub sequence: u64,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The entry was created.
    Created,
    /// The content changed.
    Modified,
    /// The entry was removed.
    Removed,
    /// The entry was renamed; its new name is in `to`.
    Renamed,
    /// Permissions, owner or times changed.
    Attributes,
    /// Changes were lost: rescan everything. Also what an unknown newer kind decodes to.
    #[serde(other)]
    Overflow,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Counts the changes of a watch from 1, without gaps.
    pub sequence: u64,
    /// Kind of change.
    pub kind: ChangeKind,
    /// New path of a rename, relative to the watched path; empty for that path itself.
    pub path: RawPath,
    /// New name, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<RawPath>,
    /// Whether the entry is a directory.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub is_directory: bool,
}
