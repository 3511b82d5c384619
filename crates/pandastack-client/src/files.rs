//! Files in a sandbox. Bodies are streamed in both directions.

use bytes::Bytes;
use pandastack_types::SandboxId;
use pandastack_types::api::{DirectoryListing, FileEntry, FileWritten};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;

use crate::client::{Call, Chunks, Client, WRITE_SECONDS};
use crate::error::Result;

/// Timeout of an upload; enough for the largest file at 1 MB/s.
pub(crate) const UPLOAD_SECONDS: u64 = 6 * 3600;

/// Bytes of a file in a sandbox.
pub struct FileBytes(pub(crate) Chunks);

impl FileBytes {
    /// The next bytes; `None` at the end of the file.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        self.0.next().await
    }
}

impl Client {
    /// Streams a file.
    pub async fn read_file(&self, id: &SandboxId, path: &str) -> Result<FileBytes> {
        let call = self.open_ended_call(Method::GET, &["sandboxes", id.as_str(), "fs"]);
        call.query(&[("path", path)]).chunks().await.map(FileBytes)
    }

    /// Writes a file; creates parent directories.
    pub async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        body: impl Into<reqwest::Body>,
    ) -> Result<FileWritten> {
        let call = self.call(Method::PUT, &["sandboxes", id.as_str(), "fs"], UPLOAD_SECONDS);
        let octets = |builder: reqwest::RequestBuilder| {
            builder.header(CONTENT_TYPE, "application/octet-stream").body(body)
        };
        call.query(&[("path", path)]).with(octets).receive().await
    }

    /// Removes a file or a whole directory.
    pub async fn remove_file(&self, id: &SandboxId, path: &str) -> Result<()> {
        self.file_call(Method::DELETE, id, "", path).finish().await
    }

    /// Metadata of a path.
    pub async fn stat_file(&self, id: &SandboxId, path: &str) -> Result<FileEntry> {
        self.file_call(Method::GET, id, "stat", path).receive().await
    }

    /// Entries of a directory.
    pub async fn list_directory(&self, id: &SandboxId, path: &str) -> Result<DirectoryListing> {
        self.file_call(Method::GET, id, "dir", path).receive().await
    }

    /// Creates a directory and its parents.
    pub async fn make_directory(&self, id: &SandboxId, path: &str) -> Result<()> {
        self.file_call(Method::POST, id, "mkdir", path).finish().await
    }

    fn file_call(&self, method: Method, id: &SandboxId, action: &str, path: &str) -> Call {
        let mut segments = vec!["sandboxes", id.as_str(), "fs"];
        segments.extend((!action.is_empty()).then_some(action));
        self.call(method, &segments, WRITE_SECONDS).query(&[("path", path)])
    }
}
