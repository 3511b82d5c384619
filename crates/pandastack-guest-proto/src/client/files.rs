//! Files in the guest.

use bytes::{Bytes, BytesMut};

use super::call::{Call, Inbound};
use super::error::ClientError;
use super::{GuestClient, LIST_BYTES_MAX};
use crate::message::{Done, Event, FileEntry, FileRead, FileWrite, FileWritten, RawPath, Request};

impl GuestClient {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// When it is missing or a directory, or the guest cannot be reached.
    pub async fn read_file(&self, read: FileRead) -> Result<FileReader, ClientError> {
        let mut call = self.open(&Request::FileRead(read)).await?;
        match call.next().await? {
            Inbound::Event(event) => match call.parse_event(&event)? {
                Event::File { file } => Ok(FileReader { call, file, done: false }),
                _ => Err(call.protocol_violation("did not describe the file first")),
            },
            Inbound::Reply(reply) => match call.finish::<Done>(&reply) {
                Ok(_) => Err(call.protocol_violation("did not describe the file first")),
                Err(error) => Err(error),
            },
            Inbound::Data { .. } => Err(call.protocol_violation("did not describe the file first")),
        }
    }

    /// Reads a whole file of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// As [`GuestClient::read_file`], and when the file is longer.
    pub async fn read_file_whole(
        &self,
        path: impl Into<RawPath>,
        bytes_max: u64,
    ) -> Result<Bytes, ClientError> {
        let mut reader = self.read_file(FileRead { path: path.into(), ..FileRead::default() }).await?;
        let mut whole = BytesMut::new();
        while let Some(bytes) = reader.next().await? {
            if (whole.len() + bytes.len()) as u64 > bytes_max {
                return Err(ClientError::FileTooLong { bytes_max });
            }
            whole.extend_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }

    /// Opens a file for writing. Nothing is visible of an atomic write until [`FileWriter::finish`].
    ///
    /// # Errors
    /// When the guest cannot be reached. A refusal is reported by the writer.
    pub async fn write_file(&self, write: FileWrite) -> Result<FileWriter, ClientError> {
        let call = self.open(&Request::FileWrite(write)).await?;
        Ok(FileWriter::new(call))
    }

    /// Writes a whole file in one round trip if it fits in the window.
    ///
    /// # Errors
    /// When the guest refuses or cannot be reached.
    pub async fn write_file_whole(&self, write: FileWrite, bytes: &[u8]) -> Result<FileWritten, ClientError> {
        let mut writer = self.write_file(write).await?;
        writer.write(bytes).await?;
        writer.finish().await
    }

    /// Describes the target of a path, or with `no_follow` the link itself.
    ///
    /// # Errors
    /// When it is missing, or the guest cannot be reached.
    pub async fn stat(&self, path: impl Into<RawPath>, no_follow: bool) -> Result<FileEntry, ClientError> {
        self.ask(&Request::FileStat { path: path.into(), no_follow }).await
    }

    /// A directory's entries, unsorted.
    ///
    /// # Errors
    /// When it is missing or not a directory, or the guest cannot be reached.
    pub async fn list(&self, path: impl Into<RawPath>) -> Result<Vec<FileEntry>, ClientError> {
        let request = Request::FileList { path: path.into() };
        self.all_pages(&request, LIST_BYTES_MAX, entries).await.map(|(items, _)| items)
    }

    /// A directory's entries, page by page: `keep` is given each page and the length of its JSON, and
    /// ends the listing by returning false. Returns whether entries are missing.
    ///
    /// # Errors
    /// As [`GuestClient::list`].
    pub async fn list_pages(
        &self,
        path: impl Into<RawPath>,
        keep: impl FnMut(Vec<FileEntry>, usize) -> bool,
    ) -> Result<bool, ClientError> {
        self.each_page(&Request::FileList { path: path.into() }, entries, keep).await
    }

    /// Creates a directory; with `parents` also its missing parents.
    ///
    /// # Errors
    /// When the guest refuses or cannot be reached.
    pub async fn mkdir(
        &self,
        path: impl Into<RawPath>,
        parents: bool,
        mode: Option<u32>,
        user: Option<String>,
    ) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::FileMkdir { path: path.into(), parents, mode, user }).await?;
        Ok(())
    }

    /// Removes a file, a link or a directory; with `recursive` everything below it.
    ///
    /// # Errors If it is missing, a directory is not empty, or the guest cannot be reached.
    pub async fn remove(&self, path: impl Into<RawPath>, recursive: bool) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::FileRemove { path: path.into(), recursive }).await?;
        Ok(())
    }

    /// Renames a file or directory; with `make_parents` also creates missing parents of the new
    /// path.
    ///
    /// # Errors
    /// When the guest refuses or cannot be reached.
    pub async fn rename(
        &self,
        from: impl Into<RawPath>,
        to: impl Into<RawPath>,
        make_parents: bool,
    ) -> Result<(), ClientError> {
        let Done {} =
            self.ask(&Request::FileRename { from: from.into(), to: to.into(), make_parents }).await?;
        Ok(())
    }
}

/// A file being read.
#[derive(Debug)]
pub struct FileReader {
    call: Call,
    file: FileEntry,
    done: bool,
}

impl FileReader {
    /// The file that is being read.
    #[must_use]
    pub fn file(&self) -> &FileEntry {
        &self.file
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// When the guest fails to read, or the connection is lost.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
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
            Inbound::Event(_) => Err(self.call.protocol_violation("sent an event inside a file")),
        }
    }
}

/// A file being written, or an archive being unpacked. Dropping it before [`FileWriter::finish`] undoes an atomic write.
#[derive(Debug)]
pub struct FileWriter {
    call: Call,
}

impl FileWriter {
    pub(super) fn new(call: Call) -> Self {
        Self { call }
    }

    /// Sends bytes, waiting while the guest is behind. If the guest has already refused, the bytes
    /// are discarded and [`FileWriter::finish`] returns the reason.
    ///
    /// # Errors
    /// When the connection is lost.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        self.call.send_data(bytes).await
    }

    /// Completes the file and waits until it is in place.
    ///
    /// # Errors
    /// When the guest refused the write, or the connection is lost.
    pub async fn finish(mut self) -> Result<FileWritten, ClientError> {
        self.call.send_end().await?;
        match self.call.next().await? {
            Inbound::Reply(reply) => self.call.finish(&reply),
            Inbound::Event(_) | Inbound::Data { .. } => {
                Err(self.call.protocol_violation("sent more than a reply"))
            }
        }
    }
}

/// The entries of a page of a listing.
pub(super) fn entries(event: Event) -> Option<Vec<FileEntry>> {
    match event {
        Event::Entries { entries } => Some(entries),
        _ => None,
    }
}
