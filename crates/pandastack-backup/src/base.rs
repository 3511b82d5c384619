//! Taking a base backup into the archive.
//!
//! Must hold: the description is put last, when every other object is durable, so an incomplete base does
//! not count. Memory is bounded by one part.

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use pandastack_postgres::ByteStream;
use tokio::sync::watch;

use crate::archive::{Archive, ArchiveError};
use crate::layout::Entry;
use crate::limits::{BASE_PART_BYTES, SERVER_MANIFEST_BYTES_MAX};
use crate::position::{Lsn, Timeline};
use crate::replication::{BasePart, BaseStream, Login, Replication, ReplicationError, System};
use crate::window::BaseBackup;

/// Progress of a base backup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BaseProgress {
    /// Bytes that the server has read.
    pub read_bytes: u64,
}

/// Reason why a base backup failed.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// The server.
    #[error(transparent)]
    Replication(#[from] ReplicationError),
    /// The archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The server ended before it was done.
    #[error("the server ended the base backup {label} without {missing}; try again")]
    Incomplete {
        /// Label of the base.
        label: String,
        /// The missing part.
        missing: &'static str,
    },
    /// There are too many files.
    #[error(
        "the server's list of files is larger than {SERVER_MANIFEST_BYTES_MAX} bytes; drop tables that are not needed"
    )]
    ManifestTooLarge,
    /// The description could not be written.
    #[error("the base backup could not be described")]
    Description(#[from] serde_json::Error),
}

/// Takes a base backup over a stream that leads to the server. Creates the slot if it is missing,
/// so that the log that the base needs is retained until the archiver connects. Dropping the future
/// abandons the base.
pub async fn take_base(
    stream: Box<dyn ByteStream>,
    login: &Login,
    archive: &Archive,
    progress: Option<watch::Sender<BaseProgress>>,
) -> Result<BaseBackup, BaseError> {
    let mut replication = Replication::open(stream, login).await?;
    let system = replication.identify().await?;
    replication.ensure_slot(&login.slot).await?;
    let started_at = Timestamp::now();
    let label = started_at.strftime("%Y%m%dT%H%M%S%3fZ").to_string();
    let mut stream = replication.base_backup(&label).await?;
    let mut taking = BaseUpload::new(archive, label, started_at);
    while let Some(part) = stream.next().await? {
        if let (BasePart::Progress(read_bytes), Some(progress)) = (&part, &progress) {
            progress.send_replace(BaseProgress { read_bytes: *read_bytes });
        }
        taking.take(part).await?;
    }
    let base = taking.finish(system).await?;
    BaseStream::close(stream).await;
    Ok(base)
}

/// A base backup in progress.
struct BaseUpload<'a> {
    archive: &'a Archive,
    label: String,
    started_at: Timestamp,
    begin: Option<(Lsn, Timeline)>,
    stop: Option<(Lsn, Timestamp)>,
    tar: BytesMut,
    parts: u32,
    tar_bytes: u64,
    manifest: BytesMut,
}

impl<'a> BaseUpload<'a> {
    fn new(archive: &'a Archive, label: String, started_at: Timestamp) -> Self {
        let (tar, manifest) = (BytesMut::new(), BytesMut::new());
        Self { archive, label, started_at, begin: None, stop: None, tar, parts: 0, tar_bytes: 0, manifest }
    }

    async fn take(&mut self, part: BasePart) -> Result<(), BaseError> {
        match part {
            BasePart::Begin { start, timeline } => self.begin = Some((start, timeline)),
            BasePart::Tar(bytes) => {
                self.tar.extend_from_slice(&bytes);
                while self.tar.len() >= BASE_PART_BYTES {
                    let part = self.tar.split_to(BASE_PART_BYTES).freeze();
                    self.put_part(part).await?;
                }
            }
            BasePart::Manifest(bytes) if self.manifest.len() + bytes.len() > SERVER_MANIFEST_BYTES_MAX => {
                return Err(BaseError::ManifestTooLarge);
            }
            BasePart::Manifest(bytes) => self.manifest.extend_from_slice(&bytes),
            BasePart::Progress(_) => {}
            BasePart::End { stop } => self.stop = Some((stop, Timestamp::now())),
        }
        Ok(())
    }

    async fn put_part(&mut self, bytes: Bytes) -> Result<(), BaseError> {
        self.tar_bytes += bytes.len() as u64;
        let entry = Entry::BasePart { label: self.label.clone(), number: self.parts };
        self.archive.put(&entry, self.started_at, bytes).await?;
        self.parts += 1;
        Ok(())
    }

    async fn finish(mut self, system: System) -> Result<BaseBackup, BaseError> {
        let incomplete = |missing| BaseError::Incomplete { label: self.label.clone(), missing };
        let (start, timeline) = self.begin.ok_or_else(|| incomplete("a beginning"))?;
        let (stop, stopped_at) = self.stop.ok_or_else(|| incomplete("an end"))?;
        if self.manifest.is_empty() {
            return Err(incomplete("its list of files"));
        }
        let rest = self.tar.split().freeze();
        self.put_part(rest).await?;
        let manifest = Entry::ServerManifest { label: self.label.clone() };
        self.archive.put(&manifest, self.started_at, self.manifest.freeze()).await?;
        let base = BaseBackup {
            label: self.label.clone(),
            server_version: system.version,
            system_id: system.id,
            timeline,
            start,
            stop,
            started_at: self.started_at,
            stopped_at,
            parts: self.parts,
            tar_bytes: self.tar_bytes,
        };
        let description = Bytes::from(serde_json::to_vec_pretty(&base)?);
        self.archive.put(&Entry::Base { label: self.label }, stopped_at, description).await?;
        Ok(base)
    }
}
