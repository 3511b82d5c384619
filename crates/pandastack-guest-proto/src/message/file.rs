//! Files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::RawPath;

/// The type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, pipe or socket; also what an unknown newer kind decodes to.
    #[serde(other)]
    Other,
}

/// A file's description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Last component of the path.
    pub name: RawPath,
    /// Kind of file. In listings a link is a link; `stat` follows it.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits, including set-id and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content, seconds since 1970.
    pub mtime_s: i64,
    /// Target of the link that the path is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<RawPath>,
    /// Path relative to the directory that a walk began at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<RawPath>,
    /// Name of the owner, if `/etc/passwd` has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Name of the group, if `/etc/group` has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Extended attributes `user.*` whose values are text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, String>,
}

/// Read a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRead {
    /// The file; links are followed.
    pub path: RawPath,
    /// First byte.
    #[serde(default)]
    pub offset: u64,
    /// Maximum number of bytes; unset for all up to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
}

/// Handling of an existing file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// Written beside and renamed over it when complete: readers see the old file or the new one. Keeps the
    /// permissions and owner of a file that is replaced.
    #[default]
    Atomic,
    /// Emptied first, then written in place: keeps hard links, works on devices.
    Truncate,
    /// Keep the file, and append to it.
    Append,
}

/// Write a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileWrite {
    /// The file; links are followed.
    pub path: RawPath,
    /// Handling of an existing file.
    #[serde(default)]
    pub write_mode: WriteMode,
    /// Permission bits; unset keeps those of an existing file and gives 0644 to a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Make missing parent directories.
    #[serde(default)]
    pub make_parents: bool,
    /// Owner of a new file and of new parents; root when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A file was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileWritten {
    /// Bytes that arrived and are in the file.
    pub bytes: u64,
}
