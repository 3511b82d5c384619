//! Trees of files in the guest: walking, searching, copying, archives, watching.

use bytes::Bytes;

use super::call::{Call, Inbound};
use super::error::ClientError;
use super::files::{FileWriter, entries};
use super::{GuestClient, LIST_BYTES_MAX};
use crate::message::{
    Change, Done, Event, FileAttributes, FileEntry, FileGrep, FileWalk, FileWatch, GrepMatch, RawPath,
    Request, WatchPosition,
};

/// Results of a walk or search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchResults<T> {
    /// In the order of the walk.
    pub items: Vec<T>,
    /// Whether the result was cut at a limit.
    pub truncated: bool,
}

impl GuestClient {
    /// Copies a file or a tree.
    ///
    /// # Errors
    /// When the guest refuses or cannot be reached.
    pub async fn copy(&self, from: impl Into<RawPath>, to: impl Into<RawPath>) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::FileCopy { from: from.into(), to: to.into() }).await?;
        Ok(())
    }

    /// Changes permissions and owners.
    ///
    /// # Errors
    /// When the guest refuses or cannot be reached.
    pub async fn set_attributes(&self, attributes: FileAttributes) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::FileSetAttributes(attributes)).await?;
        Ok(())
    }

    /// Walks a directory.
    ///
    /// # Errors
    /// When the guest refuses or cannot be reached.
    pub async fn walk(&self, walk: FileWalk) -> Result<SearchResults<FileEntry>, ClientError> {
        let (items, truncated) = self.all_pages(&Request::FileWalk(walk), LIST_BYTES_MAX, entries).await?;
        Ok(SearchResults { items, truncated })
    }

    /// Walks a directory page by page: `keep` is given each page and the length of its JSON, and ends
    /// the walk by returning false. Returns whether entries are missing.
    ///
    /// # Errors
    /// When the guest refuses or cannot be reached.
    pub async fn walk_pages(
        &self,
        walk: FileWalk,
        keep: impl FnMut(Vec<FileEntry>, usize) -> bool,
    ) -> Result<bool, ClientError> {
        self.each_page(&Request::FileWalk(walk), entries, keep).await
    }

    /// Searches files for lines.
    ///
    /// # Errors
    /// When the guest refuses or cannot be reached.
    pub async fn grep(&self, grep: FileGrep) -> Result<SearchResults<GrepMatch>, ClientError> {
        let (items, truncated) = self.all_pages(&Request::FileGrep(grep), LIST_BYTES_MAX, matches).await?;
        Ok(SearchResults { items, truncated })
    }

    /// Searches files for lines, page by page, as [`GuestClient::walk_pages`] walks.
    ///
    /// # Errors
    /// When the guest refuses or cannot be reached.
    pub async fn grep_pages(
        &self,
        grep: FileGrep,
        keep: impl FnMut(Vec<GrepMatch>, usize) -> bool,
    ) -> Result<bool, ClientError> {
        self.each_page(&Request::FileGrep(grep), matches, keep).await
    }

    /// Starts to read a tar archive of a directory or file. The first piece is awaited, so that a missing
    /// path is known before any of it is passed on.
    ///
    /// # Errors
    /// When it is missing, or the guest cannot be reached.
    pub async fn pack(&self, path: impl Into<RawPath>) -> Result<ArchiveReader, ClientError> {
        let call = self.open(&Request::FilePack { path: path.into() }).await?;
        let mut reader = ArchiveReader { call, first: None, done: false };
        reader.first = reader.receive().await?;
        Ok(reader)
    }

    /// Starts to unpack a tar archive into a directory. Files that were unpacked before a refusal stay.
    ///
    /// # Errors
    /// When the guest cannot be reached. A refusal is reported by the writer.
    pub async fn unpack(
        &self,
        path: impl Into<RawPath>,
        user: Option<String>,
    ) -> Result<FileWriter, ClientError> {
        let call = self.open(&Request::FileUnpack { path: path.into(), user }).await?;
        Ok(FileWriter::new(call))
    }

    /// Watches a directory or file, or resumes a watch.
    ///
    /// # Errors
    /// When it is missing, there are too many watches, or the guest cannot be reached.
    pub async fn watch(&self, watch: FileWatch) -> Result<WatchStream, ClientError> {
        let mut call = self.open(&Request::FileWatch(watch)).await?;
        match call.next().await? {
            Inbound::Event(event) => match call.parse_event(&event)? {
                Event::Watching { position, resumed } => Ok(WatchStream { call, position, resumed }),
                _ => Err(call.protocol_violation("did not start a watch")),
            },
            Inbound::Reply(reply) => match call.finish::<Done>(&reply) {
                Ok(_) => Err(call.protocol_violation("did not start a watch")),
                Err(error) => Err(error),
            },
            Inbound::Data { .. } => Err(call.protocol_violation("sent data in a watch")),
        }
    }
}

/// A tar archive being read.
#[derive(Debug)]
pub struct ArchiveReader {
    call: Call,
    first: Option<Bytes>,
    done: bool,
}

impl ArchiveReader {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// When the guest fails to read, or the connection is lost.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.receive().await,
        }
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, ClientError> {
        if self.done {
            return Ok(None);
        }
        match self.call.next().await? {
            Inbound::Data { bytes, .. } => Ok(Some(bytes)),
            Inbound::Reply(reply) => {
                self.done = true;
                let Done {} = self.call.finish(&reply)?;
                Ok(None)
            }
            Inbound::Event(_) => Err(self.call.protocol_violation("sent an event inside an archive")),
        }
    }
}

/// Changes of a watched path. Dropping it leaves the watch in place for a while.
#[derive(Debug)]
pub struct WatchStream {
    call: Call,
    position: WatchPosition,
    resumed: bool,
}

impl WatchStream {
    /// Position of the watch: the last change before the ones that this stream returns.
    #[must_use]
    pub fn position(&self) -> WatchPosition {
        self.position
    }

    /// Returns whether an earlier watch continues with nothing missed.
    #[must_use]
    pub fn resumed(&self) -> bool {
        self.resumed
    }

    /// The next changes; `None` when the watched path is gone.
    ///
    /// # Errors
    /// When the watch was ended by the guest, or the connection is lost.
    pub async fn next(&mut self) -> Result<Option<Vec<Change>>, ClientError> {
        match self.call.next().await? {
            Inbound::Event(event) => match self.call.parse_event(&event)? {
                Event::Changes { changes } => Ok(Some(changes)),
                _ => Err(self.call.protocol_violation("sent an event of another kind")),
            },
            Inbound::Reply(reply) => {
                let Done {} = self.call.finish(&reply)?;
                Ok(None)
            }
            Inbound::Data { .. } => Err(self.call.protocol_violation("sent data in a watch")),
        }
    }
}

/// The matches of a page of a search.
fn matches(event: Event) -> Option<Vec<GrepMatch>> {
    match event {
        Event::Matches { matches } => Some(matches),
        _ => None,
    }
}
