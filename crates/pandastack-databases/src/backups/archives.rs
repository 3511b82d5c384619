//! The archives of databases and the status of their backups.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pandastack_backup::{
    Archive, ArchiveError, Catalog, Key, Login, Lsn, Password, RestoreError, Slot, Status, Timeline,
};
use pandastack_types::link::LinkKey;
use pandastack_types::{DatabaseId, Error, ErrorCode, Result};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use crate::config::BackupConfig;
use crate::credentials::administrator;

/// The slot in a server that holds its log back for the archive.
const SLOT: &str = "pandastack";
/// Age of the newest base backup at which another one is taken.
pub(super) const BASE_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// Base backups that are taken at once: each reads a whole database.
const BASES_AT_ONCE: usize = 1;
/// Longest time for a keeper to end.
const KEEPER_WAIT: Duration = Duration::from_secs(30);
/// Interval at which the restore of a database is tested.
pub(super) const DRILL_EVERY: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Time after which a failed test is repeated: perhaps the host was only full.
pub(super) const DRILL_RETRY_AFTER: Duration = Duration::from_secs(6 * 60 * 60);

/// Shared state of backups.
pub(crate) struct Backups {
    config: Option<BackupConfig>,
    pub(super) kept: Mutex<HashMap<DatabaseId, BackupStatus>>,
    /// Notified when databases may have been added, moved or deleted.
    pub(crate) changed: Notify,
    /// Notified when keepers have ended.
    pub(super) ended: Notify,
    pub(super) bases: Semaphore,
}

/// A place in the log of a database.
pub(crate) type LogPosition = (Timeline, Lsn);

/// Status of one database's backup.
#[derive(Clone)]
pub(super) struct BackupStatus {
    pub(super) log: watch::Receiver<Status>,
    /// Reason why a due base backup is missing.
    pub(super) base_error: watch::Receiver<Option<String>>,
}

impl Backups {
    /// With these settings; `None` for no backups.
    pub(crate) fn new(config: Option<BackupConfig>) -> Self {
        let bases = Semaphore::new(BASES_AT_ONCE);
        Self { config, kept: Mutex::default(), changed: Notify::new(), ended: Notify::new(), bases }
    }

    /// Returns whether backups are configured.
    pub(crate) fn are_made(&self) -> bool {
        self.config.is_some()
    }

    pub(super) fn config(&self) -> Result<&BackupConfig> {
        let message = "backups are disabled on this server; ask its operator to set --backups to a URL";
        self.config.as_ref().ok_or_else(|| Error::new(ErrorCode::NotImplemented, message))
    }

    /// The archive of a database. A rotation of the secret does not change its key, so that older backups
    /// stay readable.
    pub(super) fn archive(&self, link: &LinkKey, id: &DatabaseId) -> Result<Archive> {
        let config = self.config()?;
        let key = Sha256::digest(link.derive_lasting("database-backups", &[]).as_bytes());
        let opened = Archive::open(&config.url, &config.store_settings, id.as_str(), Key::new(key.into()));
        opened.map_err(unavailable)
    }

    /// Position up to which the log of a database is archived, as far as this server knows.
    pub(crate) fn written(&self, id: &DatabaseId) -> Option<LogPosition> {
        self.kept(id).and_then(|kept| kept.log.borrow().last_archived)
    }

    pub(super) fn kept(&self, id: &DatabaseId) -> Option<BackupStatus> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// The known contents of a database's archive.
    pub(super) async fn catalog(&self, archive: &Archive, id: &DatabaseId) -> Result<Catalog> {
        let mut catalog = Catalog::read(archive).await.map_err(unavailable)?;
        let status = self.kept(id).map(|kept| kept.log.borrow().clone()).unwrap_or_default();
        if let (Some(end), Some(until)) = (status.last_archived, status.complete_until) {
            catalog.extend(end, until);
        }
        Ok(catalog)
    }

    /// Deletes the archive of a database without machines, once no task writes into it. Safe to
    /// repeat.
    pub(crate) async fn remove(&self, link: &LinkKey, id: &DatabaseId) -> Result<()> {
        if !self.are_made() {
            return Ok(());
        }
        let deadline = Instant::now() + KEEPER_WAIT;
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            if self.kept(id).is_none() {
                break;
            }
            self.changed.notify_one();
            if tokio::time::timeout_at(deadline, ended).await.is_err() {
                let message = format!("a backup of database `{id}` is still running; try again shortly");
                return Err(Error::new(ErrorCode::Unavailable, message));
            }
        }
        self.archive(link, id)?.remove_all().await.map_err(unavailable)
    }
}

pub(super) fn login(link: &LinkKey, id: &DatabaseId) -> Result<Login> {
    let credentials = administrator(link, Some(id));
    let slot = Slot::new(SLOT).ok_or_else(|| Error::internal("the slot's name is no name"))?;
    Ok(Login { user: credentials.user, password: Password(credentials.password), slot })
}

/// Converts a failed restore to an API error.
pub(super) fn failed(error: RestoreError) -> Error {
    match error {
        RestoreError::Archive(error) => unavailable(error),
        other => Error::internal(other),
    }
}

/// Converts a failure of the archive to an API error.
pub(super) fn unavailable(error: ArchiveError) -> Error {
    Error::new(
        ErrorCode::Unavailable,
        format!("the backup archive is unavailable: {}", pandastack_types::chain(&error)),
    )
}
