//! Directory trees in a sandbox: find, grep, copy, archives, watches and signed URLs.

use pandastack_types::SandboxId;
use pandastack_types::api::{
    CopyFile, DirectoryListing, FileChange, FileEntry, FileWritten, GrepResult, RenameFile, SetAttributes,
    SignFile, SignedUrl,
};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;

use crate::client::{Call, Client, Events, READ_SECONDS, WRITE_SECONDS};
use crate::error::{ClientError, Result};
use crate::files::{FileBytes, UPLOAD_SECONDS};

/// Arguments of [`Client::find_files`].
#[derive(Debug, Clone, Default)]
pub struct FindFiles {
    /// The directory.
    pub path: String,
    /// Glob pattern for names, or for relative paths if it contains a `/`.
    pub glob: Option<String>,
    /// Maximum depth.
    pub depth: Option<u32>,
    /// Maximum number of entries.
    pub limit: Option<u32>,
}

/// Arguments of [`Client::grep_files`].
#[derive(Debug, Clone, Default)]
pub struct GrepFiles {
    /// A directory or file.
    pub path: String,
    /// A regular expression, or plain text.
    pub pattern: String,
    /// Glob pattern for files.
    pub glob: Option<String>,
    /// Ignores case.
    pub ignore_case: bool,
    /// Treats the pattern as plain text.
    pub fixed: bool,
    /// Maximum number of matches.
    pub limit: Option<u32>,
}

/// Events of a watch.
pub struct WatchStream(Events);

/// An event of a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent {
    /// The watch is active; all later changes are reported.
    Watching {
        /// Whether an earlier watch was resumed without missing changes.
        resumed: bool,
    },
    /// A file changed.
    Changed(FileChange),
}

#[derive(Default, Deserialize)]
struct Notice {
    #[serde(default)]
    resumed: bool,
    error: Option<String>,
}

impl Client {
    /// Files below a directory.
    pub async fn find_files(&self, id: &SandboxId, find: &FindFiles) -> Result<DirectoryListing> {
        let mut query = vec![("path", find.path.clone())];
        query.extend(find.glob.clone().map(|glob| ("glob", glob)));
        query.extend(find.depth.map(|depth| ("depth", depth.to_string())));
        query.extend(find.limit.map(|limit| ("limit", limit.to_string())));
        self.tree_call(Method::GET, id, "find").with(|builder| builder.query(&query)).receive().await
    }

    /// Searches file contents.
    pub async fn grep_files(&self, id: &SandboxId, grep: &GrepFiles) -> Result<GrepResult> {
        let mut query = vec![("path", grep.path.clone()), ("pattern", grep.pattern.clone())];
        query.extend(grep.glob.clone().map(|glob| ("glob", glob)));
        query.extend(grep.ignore_case.then(|| ("ignore_case", "1".to_owned())));
        query.extend(grep.fixed.then(|| ("fixed", "1".to_owned())));
        query.extend(grep.limit.map(|limit| ("limit", limit.to_string())));
        self.tree_call(Method::GET, id, "grep").with(|builder| builder.query(&query)).receive().await
    }

    /// Copies a file or tree within the sandbox.
    pub async fn copy_file(&self, id: &SandboxId, copy: &CopyFile) -> Result<()> {
        self.tree_call(Method::POST, id, "copy").json(copy).finish().await
    }

    /// Moves a file or tree within the sandbox.
    pub async fn rename_file(&self, id: &SandboxId, rename: &RenameFile) -> Result<()> {
        self.tree_call(Method::POST, id, "rename").json(rename).finish().await
    }

    /// Changes permissions and owner.
    pub async fn set_attributes(
        &self,
        id: &SandboxId,
        path: &str,
        attributes: &SetAttributes,
    ) -> Result<FileEntry> {
        let call = self.call(Method::PATCH, &["sandboxes", id.as_str(), "fs"], WRITE_SECONDS);
        call.query(&[("path", path)]).json(attributes).receive().await
    }

    /// Downloads a directory or file as a tar archive.
    pub async fn read_archive(&self, id: &SandboxId, path: &str) -> Result<FileBytes> {
        let call = self.open_ended_call(Method::GET, &["sandboxes", id.as_str(), "fs", "tar"]);
        call.query(&[("path", path)]).chunks().await.map(FileBytes)
    }

    /// Unpacks a tar archive into a directory.
    pub async fn write_archive(
        &self,
        id: &SandboxId,
        path: &str,
        body: impl Into<reqwest::Body>,
    ) -> Result<FileWritten> {
        let call = self.call(Method::PUT, &["sandboxes", id.as_str(), "fs", "tar"], UPLOAD_SECONDS);
        let archive =
            |builder: reqwest::RequestBuilder| builder.header(CONTENT_TYPE, "application/x-tar").body(body);
        call.query(&[("path", path)]).with(archive).receive().await
    }

    /// Watches a path for changes.
    pub async fn watch_files(&self, id: &SandboxId, path: &str, recursive: bool) -> Result<WatchStream> {
        let call = self.open_ended_call(Method::GET, &["sandboxes", id.as_str(), "fs", "watch"]);
        let recursive = if recursive { "1" } else { "0" };
        call.query(&[("path", path), ("recursive", recursive)]).events().await.map(WatchStream)
    }

    /// Creates a signed URL.
    pub async fn sign_file(&self, id: &SandboxId, sign: &SignFile) -> Result<SignedUrl> {
        let call = self.call(Method::POST, &["sandboxes", id.as_str(), "fs", "sign"], READ_SECONDS);
        call.json(sign).receive().await
    }

    fn tree_call(&self, method: Method, id: &SandboxId, action: &str) -> Call {
        self.call(method, &["sandboxes", id.as_str(), "fs", action], WRITE_SECONDS)
    }
}

impl WatchStream {
    /// The next event; `None` if the path was deleted or the server stopped.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>> {
        while let Some(event) = self.0.next().await? {
            match event.name.as_str() {
                "change" => {
                    let bad = |error: serde_json::Error| self.0.interrupted(error.to_string());
                    return serde_json::from_str(&event.data)
                        .map(|change| Some(WatchEvent::Changed(change)))
                        .map_err(bad);
                }
                "watching" => {
                    let notice: Notice = serde_json::from_str(&event.data).unwrap_or_default();
                    return Ok(Some(WatchEvent::Watching { resumed: notice.resumed }));
                }
                "error" => return Err(self.error(&event.data)),
                _ => {}
            }
        }
        Ok(None)
    }

    fn error(&self, data: &str) -> ClientError {
        let notice: Notice = serde_json::from_str(data).unwrap_or_default();
        self.0.interrupted(notice.error.unwrap_or_else(|| "the watch ended".to_owned()))
    }
}
