//! The archive of one database: sealed objects in a store, and the listing of them.
//!
//! Must hold: an object that was put is durable when [`Archive::put`] returns (a local store syncs
//! files and directories); objects are never replaced: putting the same content again is fine,
//! putting other content under the same name is an error.
//!
//! Out of scope: deciding what to archive ([`Archiver`](crate::Archiver),
//! [`take_base`](crate::take_base)), and interpreting a listing ([`Catalog`](crate::Catalog)).

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use jiff::Timestamp;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use url::Url;

use crate::layout::{Entry, Piece, is_label};
use crate::limits::{
    BASE_PART_BYTES, DESCRIPTION_BYTES_MAX, SEGMENT_BYTES, SERVER_MANIFEST_BYTES_MAX, STORE_WAIT,
};
use crate::position::Timeline;
use crate::seal::{self, Bound, Key, UnsealedObject};

mod error;
#[cfg(test)]
mod stores;

pub use self::error::ArchiveError;

/// The archive of one database.
#[derive(Debug, Clone)]
pub struct Archive {
    store: Arc<dyn ObjectStore>,
    root: Path,
    /// The folder of it, if the store is one.
    folder: Option<PathBuf>,
    database: String,
    key: Key,
}

/// An object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedObject {
    /// The entry.
    pub entry: Entry,
    /// When it was put, by the store's clock.
    pub put_at: Timestamp,
    /// Bytes in the store.
    pub bytes: u64,
}

impl Archive {
    /// Opens the archive of `database` at an address: `file:///folder`, or `s3://`, `gs://`,
    /// `az://bucket/folder`. `settings` are those of `object_store` (`aws_access_key_id`,
    /// `google_service_account`, `azure_storage_endpoint`, ...).
    pub fn open(
        url: &Url,
        settings: &[(String, String)],
        database: &str,
        key: Key,
    ) -> Result<Self, ArchiveError> {
        // The object store's client uses the process's TLS provider.
        pandastack_http::install_tls_provider();
        let bad = |reason: String| {
            // The store's sentence may repeat the address as it was given.
            let shown = address(url);
            ArchiveError::Address { reason: reason.replace(url.as_str(), &shown), url: shown }
        };
        if url.scheme() == "file" {
            let folder = url.to_file_path().map_err(|()| bad("it is no path on this machine".to_owned()))?;
            std::fs::create_dir_all(&folder).map_err(|error| bad(error.to_string()))?;
            let store = LocalFileSystem::new_with_prefix(&folder).map_err(|error| bad(error.to_string()))?;
            let archive = Self::over(Arc::new(store.with_fsync(true)), Path::default(), database, key)?;
            return Ok(Self { folder: Some(folder.join(database)), ..archive });
        }
        let settings = settings.iter().map(|(name, value)| (name, value));
        let (store, prefix) =
            object_store::parse_url_opts(url, settings).map_err(|error| bad(error.to_string()))?;
        Self::over(Arc::from(store), prefix, database, key)
    }

    /// The archive of `database` below `prefix` of a store.
    pub fn over(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        database: &str,
        key: Key,
    ) -> Result<Self, ArchiveError> {
        if !is_label(database) {
            return Err(ArchiveError::Database(database.to_owned()));
        }
        let root = prefix.join(database);
        Ok(Self { store, root, folder: None, database: database.to_owned(), key })
    }

    /// Seals and puts an object with a time. It is durable when this returns.
    pub(crate) async fn put(&self, entry: &Entry, time: Timestamp, plain: Bytes) -> Result<(), ArchiveError> {
        let sealed = self.sealed(entry, time, plain.clone()).await?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let path = self.path(entry);
        let put = self.store.put_opts(&path, PutPayload::from(sealed), options);
        match in_time("write", entry, put).await {
            Err(ArchiveError::Store { reason: object_store::Error::AlreadyExists { .. }, .. }) => {
                let same = self.get(entry).await?.plain == plain;
                if same { Ok(()) } else { Err(ArchiveError::Conflict(entry.name())) }
            }
            put => put.map(drop),
        }
    }

    /// Gets and opens an object.
    pub(crate) async fn get(&self, entry: &Entry) -> Result<UnsealedObject, ArchiveError> {
        let path = self.path(entry);
        let get = async { self.store.get(&path).await?.bytes().await };
        let sealed = in_time("read", entry, get).await?;
        let (archive, name, plain_max) = (self.clone(), entry.name(), plain_bytes_max(entry));
        let open = move || seal::open(archive.bound(&name), sealed.into(), plain_max);
        let opened = aside(entry, open).await?;
        opened.map_err(|reason| ArchiveError::Sealed { name: entry.name(), reason })
    }

    /// Removes an object. Succeeds if it does not exist.
    pub async fn remove(&self, entry: &Entry) -> Result<(), ArchiveError> {
        match in_time("remove", entry, self.store.delete(&self.path(entry))).await {
            Err(error) if error.is_missing() => Ok(()),
            removed => removed,
        }
    }

    /// Removes the whole archive of this database.
    pub async fn remove_all(&self) -> Result<(), ArchiveError> {
        for listed in self.list().await? {
            self.remove(&listed.entry).await?;
        }
        self.remove_folder().await
    }

    /// Object stores have no folders, but a local store keeps empty ones. Foreign objects stay, and
    /// so does their folder.
    async fn remove_folder(&self) -> Result<(), ArchiveError> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let name = folder.display().to_string();
        let removed = tokio::task::spawn_blocking(move || remove_empty(&folder)).await;
        let reason = match removed {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => return Err(ArchiveError::GivenUp(name)),
        };
        let reason = object_store::Error::Generic { store: "LocalFileSystem", source: reason.into() };
        Err(ArchiveError::Store { act: "remove", name, reason })
    }

    /// All entries, in the order of names. Foreign objects are left out.
    pub async fn list(&self) -> Result<Vec<ArchivedObject>, ArchiveError> {
        self.list_below(None).await
    }

    /// The log of one timeline.
    pub(crate) async fn list_wal(&self, timeline: Timeline) -> Result<Vec<ArchivedObject>, ArchiveError> {
        self.list_below(Some(format!("wal/{timeline}"))).await
    }

    async fn list_below(&self, folder: Option<String>) -> Result<Vec<ArchivedObject>, ArchiveError> {
        let prefix = folder
            .iter()
            .flat_map(|folder| folder.split('/'))
            .fold(self.root.clone(), |path, part| path.join(part));
        let failed = |reason| ArchiveError::Store { act: "list", name: prefix.to_string(), reason };
        let mut objects = self.store.list(Some(&prefix));
        let mut listed = Vec::new();
        while let Some(object) = objects.try_next().await.map_err(failed)? {
            let parts: Vec<_> = object.location.prefix_match(&self.root).into_iter().flatten().collect();
            let name = parts.iter().map(AsRef::as_ref).collect::<Vec<_>>().join("/");
            let time = Timestamp::from_millisecond(object.last_modified.timestamp_millis());
            let (Some(entry), Ok(put_at)) = (Entry::from_name(&name), time) else { continue };
            listed.push(ArchivedObject { entry, put_at, bytes: object.size });
        }
        listed.sort_by(|one, other| one.entry.cmp(&other.entry));
        Ok(listed)
    }

    async fn sealed(&self, entry: &Entry, time: Timestamp, plain: Bytes) -> Result<Vec<u8>, ArchiveError> {
        let (archive, name) = (self.clone(), entry.name());
        let sealed = aside(entry, move || seal::seal(archive.bound(&name), time, &plain)).await?;
        sealed.map_err(|reason| ArchiveError::Sealed { name: entry.name(), reason })
    }

    fn bound<'a>(&'a self, name: &'a str) -> Bound<'a> {
        Bound { key: &self.key, database: &self.database, name }
    }

    fn path(&self, entry: &Entry) -> Path {
        entry.name().split('/').fold(self.root.clone(), |path, part| path.join(part))
    }
}

/// Removes a folder and the folders below it, if they are empty.
fn remove_empty(folder: &std::path::Path) -> std::io::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_empty(&entry.path())?;
        }
    }
    match std::fs::remove_dir(folder) {
        Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => Ok(()),
        removed => removed,
    }
}

/// Compression takes tens of milliseconds: not on a thread that serves others.
async fn aside<T: Send + 'static>(
    entry: &Entry,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ArchiveError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ArchiveError::GivenUp(entry.name()))
}

async fn in_time<T>(
    act: &'static str,
    entry: &Entry,
    work: impl Future<Output = Result<T, object_store::Error>>,
) -> Result<T, ArchiveError> {
    match tokio::time::timeout(STORE_WAIT, work).await {
        Ok(done) => done.map_err(|reason| ArchiveError::Store { act, name: entry.name(), reason }),
        Err(_) => Err(ArchiveError::Late { act, name: entry.name() }),
    }
}

fn plain_bytes_max(entry: &Entry) -> usize {
    match entry {
        Entry::BasePart { .. } => BASE_PART_BYTES,
        Entry::ServerManifest { .. } => SERVER_MANIFEST_BYTES_MAX,
        Entry::Base { .. } | Entry::History(_) => DESCRIPTION_BYTES_MAX,
        Entry::Segment(_) => usize::try_from(SEGMENT_BYTES).unwrap_or(usize::MAX),
        Entry::Piece(Piece { from, to, .. }) => usize::try_from(to - from).unwrap_or(usize::MAX),
    }
}

/// An address for display: without parts that may hold a password.
fn address(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    format!("{}://{host}{}", url.scheme(), url.path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::{Lsn, Segment};
    use crate::seal::SealError;

    fn history() -> Entry {
        Entry::History(Timeline(2))
    }

    fn archive(folder: &std::path::Path, database: &str) -> Archive {
        let url = Url::from_directory_path(folder).unwrap();
        Archive::open(&url, &[], database, Key::new([1; 32])).unwrap()
    }

    #[tokio::test]
    async fn archived_objects_are_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let archive = archive(folder.path(), "db-1");
        let now = Timestamp::now();
        archive.put(&history(), now, Bytes::from_static(b"one")).await.unwrap();
        archive.put(&history(), now, Bytes::from_static(b"one")).await.unwrap();
        let other = archive.put(&history(), now, Bytes::from_static(b"two")).await;
        assert!(matches!(other, Err(ArchiveError::Conflict(_))), "{other:?}");
        assert_eq!(archive.get(&history()).await.unwrap().plain, b"one");
    }

    #[tokio::test]
    async fn database_archives_are_isolated() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (archive(folder.path(), "db-1"), archive(folder.path(), "db-2"));
        one.put(&history(), Timestamp::now(), Bytes::from_static(b"one")).await.unwrap();
        assert!(other.list().await.unwrap().is_empty());
        assert!(other.get(&history()).await.unwrap_err().is_missing());
        // An attacker with access to the store, but without the key, moves an object.
        std::fs::create_dir_all(folder.path().join("db-2/wal")).unwrap();
        let name = history().name();
        std::fs::copy(folder.path().join("db-1").join(&name), folder.path().join("db-2").join(&name))
            .unwrap();
        let moved = other.get(&history()).await;
        assert!(matches!(moved, Err(ArchiveError::Sealed { reason: SealError::Altered, .. })), "{moved:?}");
    }

    #[tokio::test]
    async fn listings_contain_only_archive_entries() {
        let folder = tempfile::tempdir().unwrap();
        let archive = archive(folder.path(), "db-1");
        assert!(archive.list().await.unwrap().is_empty());
        let segment = Entry::Segment(Segment::at(Timeline(1), Lsn(0)));
        archive.put(&history(), Timestamp::now(), Bytes::new()).await.unwrap();
        archive.put(&segment, Timestamp::now(), Bytes::new()).await.unwrap();
        std::fs::write(folder.path().join("db-1/wal/notes.txt"), "mine").unwrap();
        let entries: Vec<_> = archive.list().await.unwrap().into_iter().map(|listed| listed.entry).collect();
        assert_eq!(entries, [segment.clone(), history()]);
        assert_eq!(archive.list_wal(Timeline(1)).await.unwrap().len(), 1);
        archive.remove(&segment).await.unwrap();
        archive.remove(&segment).await.unwrap();
        archive.remove_all().await.unwrap();
        assert!(archive.list().await.unwrap().is_empty());
        assert!(folder.path().join("db-1/wal/notes.txt").is_file(), "what is none of ours stays");
    }

    #[tokio::test]
    async fn a_removed_archive_leaves_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (archive(folder.path(), "db-1"), archive(folder.path(), "db-2"));
        for archive in [&one, &other] {
            archive.put(&history(), Timestamp::now(), Bytes::new()).await.unwrap();
        }
        one.remove_all().await.unwrap();
        one.remove_all().await.unwrap();
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["db-2"]);
    }

    #[tokio::test]
    async fn every_documented_archive_store_can_be_opened() {
        let settings = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let keys = [("aws_region", "eu-1"), ("aws_access_key_id", "id"), ("aws_secret_access_key", "key")];
        for (url, settings) in [
            ("s3://bucket/folder", settings(&keys)),
            ("gs://bucket/folder", settings(&[])),
            ("az://container/folder", settings(&[("azure_storage_account_name", "name")])),
        ] {
            let archive = Archive::open(&url.parse().unwrap(), &settings, "db-1", Key::new([1; 32])).unwrap();
            assert_eq!(archive.path(&history()).to_string(), "folder/db-1/wal/00000002.history", "{url}");
        }
    }

    #[test]
    fn invalid_archive_urls_are_reported_without_secrets() {
        let url: Url = "ftp://user:secret@host/folder".parse().unwrap();
        let error = Archive::open(&url, &[], "db", Key::new([1; 32])).unwrap_err().to_string();
        assert!(error.contains("ftp://host/folder") && !error.contains("secret"), "{error}");
        // Azure's own command line would be content with this.
        let settings = [("azure_storage_account".to_owned(), "name".to_owned())];
        let url: Url = "az://container/folder".parse().unwrap();
        let error = Archive::open(&url, &settings, "db", Key::new([1; 32])).unwrap_err().to_string();
        assert!(
            error.contains("Account must be specified") && error.contains("docs/reference/backup-archive.md"),
            "{error}"
        );
        let folder: Url = "memory:///".parse().unwrap();
        assert!(matches!(
            Archive::open(&folder, &[], "../x", Key::new([1; 32])),
            Err(ArchiveError::Database(_))
        ));
    }
}
