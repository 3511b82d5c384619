//! Files and trees of files.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Type of a directory entry.
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
    /// File name, without its directory.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// Whether this is a directory.
    pub is_dir: bool,
    /// Type of the entry. Listings do not follow symbolic links.
    #[serde(default)]
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permissions, such as `-rw-r--r--`.
    pub mode: String,
    /// Permission bits as a number.
    #[serde(default)]
    pub permissions: u32,
    /// User ID of the owner.
    #[serde(default)]
    pub uid: u32,
    /// Group ID.
    #[serde(default)]
    pub gid: u32,
    /// Name of the owner, if the sandbox has a user with this ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Name of the group, if the sandbox has a group with this ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Modification time in Unix seconds.
    pub mtime: i64,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
    /// Extended attributes whose names begin with `user.` and whose values are text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, String>,
}

/// Response of `GET /v1/sandboxes/{id}/fs/dir` and `.../fs/find`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DirectoryListing {
    /// Path of the directory.
    pub path: String,
    /// Entries, sorted by path.
    pub entries: Vec<FileEntry>,
    /// Whether entries beyond the limit were omitted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// Response of `PUT /v1/sandboxes/{id}/fs` and `.../fs/tar`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileWritten {
    /// Path that was written.
    pub path: String,
    /// Number of bytes written.
    pub bytes: u64,
}

/// Request body of `POST /v1/sandboxes/{id}/fs/rename`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RenameFile {
    /// Old absolute path.
    pub from: String,
    /// New absolute path.
    pub to: String,
    /// Create missing parent directories of the new path.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub make_parents: bool,
}

/// Request body of `POST /v1/sandboxes/{id}/fs/copy`. Copies files and directory trees, with permissions and
/// owners.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CopyFile {
    /// Path to copy from.
    pub from: String,
    /// Path of the copy itself, not of the directory to copy into. Parent directories are created.
    pub to: String,
}

/// Request body of `PATCH /v1/sandboxes/{id}/fs`. Omitted attributes are kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SetAttributes {
    /// Permissions in octal, such as `0644`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Owner, by name or ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Group, by name or ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Also change everything below a directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
    /// Extended attributes of the file itself to set; `null` removes one. Names begin with `user.`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub xattrs: BTreeMap<String, Option<String>>,
}

/// A matching line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GrepMatch {
    /// Absolute path of the file.
    pub path: String,
    /// Line number, from 1.
    pub line: u64,
    /// Text of the line; long lines are truncated, and invalid UTF-8 is replaced.
    pub text: String,
}

/// Response of `GET /v1/sandboxes/{id}/fs/grep`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GrepResult {
    /// Matching lines, sorted by path and line number.
    pub matches: Vec<GrepMatch>,
    /// Whether matches beyond the limit were omitted.
    pub truncated: bool,
}

/// Kind of change to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The file was created.
    Created,
    /// The content changed.
    Modified,
    /// The file was deleted.
    Removed,
    /// The file was renamed to `to`.
    Renamed,
    /// The permissions, owner or times changed.
    Attributes,
    /// Some changes were lost; list the directory again.
    Overflow,
}

/// A `change` event of `GET /v1/sandboxes/{id}/fs/watch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileChange {
    /// Number of the change in this watch, from 1.
    pub sequence: u64,
    /// Kind of change.
    pub kind: ChangeKind,
    /// Absolute path.
    pub path: String,
    /// Absolute path after a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Whether the path is a directory.
    pub is_dir: bool,
}

/// Request body of `POST /v1/sandboxes/{id}/fs/sign`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SignFile {
    /// Absolute path.
    pub path: String,
    /// `GET` to read the file, `PUT` to write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Seconds until the URL expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
}

/// A signed URL, which works without an API key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SignedUrl {
    /// Complete URL, based on the address that the request was sent to.
    pub url: String,
    /// Path and query only, for callers that use another address.
    pub target: String,
    /// HTTP method that the URL is valid for.
    pub method: String,
    /// Time when the URL expires. It also stops working when the key that signed it is deleted.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}
