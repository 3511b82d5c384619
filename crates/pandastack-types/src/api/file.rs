//! Files and trees of files.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a directory entry is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    #[default]
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, pipe or socket.
    Other,
}

/// A file or directory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Last part of the path.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// True for directories.
    pub is_dir: bool,
    /// What it is; in listings a link is a link.
    #[serde(default)]
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permissions, such as `-rw-r--r--`.
    pub mode: String,
    /// The permission bits as a number.
    #[serde(default)]
    pub permissions: u32,
    /// Owner's number.
    #[serde(default)]
    pub uid: u32,
    /// Group's number.
    #[serde(default)]
    pub gid: u32,
    /// Owner's name, if the sandbox has one for the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Group's name, if the sandbox has one for the number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Modification time, Unix seconds.
    pub mtime: i64,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
}

/// `GET /v1/sandboxes/{id}/fs/dir` and `.../fs/find`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DirectoryListing {
    /// The directory.
    pub path: String,
    /// Its entries, by path.
    pub entries: Vec<FileEntry>,
    /// There are more than the limit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// Answer of `PUT /v1/sandboxes/{id}/fs` and `.../fs/tar`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileWritten {
    /// Where.
    pub path: String,
    /// How much.
    pub bytes: u64,
}

/// `POST /v1/sandboxes/{id}/fs/rename`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RenameFile {
    /// Old absolute path.
    pub from: String,
    /// New absolute path.
    pub to: String,
    /// Make missing parents of the new path.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub make_parents: bool,
}

/// `POST /v1/sandboxes/{id}/fs/copy`. Files and whole trees, with permissions and owners.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CopyFile {
    /// The original.
    pub from: String,
    /// The copy's own path, not the directory it goes into; its parents are made.
    pub to: String,
}

/// `PATCH /v1/sandboxes/{id}/fs`. What is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SetAttributes {
    /// Permissions in octal, such as `0644`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Owner, by name or number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Group, by name or number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Everything below a directory, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
}

/// A line that matches a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GrepMatch {
    /// Absolute path of the file.
    pub path: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// The line without its end; long ones are cut, invalid UTF-8 is replaced.
    pub text: String,
}

/// `GET /v1/sandboxes/{id}/fs/grep`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GrepResult {
    /// Lines that match, by path and number.
    pub matches: Vec<GrepMatch>,
    /// There are more than the limit.
    pub truncated: bool,
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It is there now.
    Created,
    /// Its content changed.
    Modified,
    /// It is gone.
    Removed,
    /// It has another name now, in `to`.
    Renamed,
    /// Its permissions, owner or times changed.
    Attributes,
    /// Changes were lost: look again at everything.
    Overflow,
}

/// A `change` event of `GET /v1/sandboxes/{id}/fs/watch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileChange {
    /// Counts the changes of a watch from 1.
    pub sequence: u64,
    /// What happened.
    pub kind: ChangeKind,
    /// Absolute path.
    pub path: String,
    /// Absolute path after a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// It is a directory.
    pub is_dir: bool,
}

/// `POST /v1/sandboxes/{id}/fs/sign`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SignFile {
    /// Absolute path.
    pub path: String,
    /// `GET` to read it, `PUT` to write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// How long the URL works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
}

/// A URL that works without a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SignedUrl {
    /// The whole URL, made from the address that this request came to.
    pub url: String,
    /// Path and query alone, for callers that know a better address.
    pub target: String,
    /// The one method it works for.
    pub method: String,
    /// When it stops working. It also stops when the key that signed it is deleted.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}
