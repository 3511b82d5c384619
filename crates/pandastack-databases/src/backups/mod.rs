//! Backups of databases: their log and base backups go into an archive, and databases are made from it.
//!
//! ```text
//!   leader: for every database that is ready, a keeper: log, always while it is awake; a base backup at once, then daily
//!   restore: machine like a new database's -> base and log from the archive -> the server recovers -> its own passwords
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `keeper` | who archives what, base backups in time, deleting what retention lets go |
//! | `way` | connections that do not wake a machine, nor keep it awake |
//! | `restore` | a machine's server made into what the archive says |
//! | `feed` | its log, as it asks for it |
//! | `failover` | a restored copy in place of a database that is out of reach |
//! | `drill` | restores that only prove that they work |
//! | `routes` | the API |
//!
//! Must hold: a database that sleeps is never woken for its backups; one that is deleted takes its archive with it; a copy has an archive of its own.
//! The archive alone says what is there: nothing about it is kept elsewhere, but the outcome of the last drill.

mod drill;
mod failover;
mod feed;
pub mod keeper;
mod restore;
pub mod routes;
mod way;

pub(super) use drill::remove_left;
pub(super) use failover::{fail_over, is_possible as can_fail_over};
pub(super) use restore::restored;
pub(super) use way::{Purpose, connect as connect_awake};

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pandastack_backup::{Archive, ArchiveError, Catalog, Key, Login, Lsn, Password, Slot, Status, Timeline};
use pandastack_types::link::LinkKey;
use pandastack_types::{DatabaseId, Error, ErrorCode, Result};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use super::credentials::administrator;
use crate::config::BackupConfig;
use crate::service::ManagedDatabases;

/// The slot in a server that holds its log back for the archive.
const SLOT: &str = "pandastack";
/// Age of the newest base backup at which another one is taken.
const BASE_EVERY: Duration = Duration::from_secs(24 * 60 * 60);
/// Base backups that are taken at once: each reads a whole database.
const BASES_AT_ONCE: usize = 1;
/// How long a keeper may take to end.
const KEEPER_WAIT: Duration = Duration::from_secs(30);
/// How often the restore of a database is tried.
const DRILL_EVERY: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// When it is tried again after it failed: a host may only have been full.
const DRILL_AGAIN_AFTER: Duration = Duration::from_secs(6 * 60 * 60);

/// What is shared about backups.
pub(crate) struct Backups {
    config: Option<BackupConfig>,
    kept: Mutex<HashMap<DatabaseId, Kept>>,
    /// Told when databases may have come, moved or gone.
    pub(super) changed: Notify,
    /// Told when keepers have ended.
    ended: Notify,
    bases: Semaphore,
}

/// A place in the log of a database.
pub(super) type Written = (Timeline, Lsn);

/// How the backup of one database goes.
#[derive(Clone)]
struct Kept {
    log: watch::Receiver<Status>,
    /// Why there is no base backup though one is due.
    base_error: watch::Receiver<Option<String>>,
}

impl Backups {
    /// With these settings; `None` for no backups.
    pub(crate) fn new(config: Option<BackupConfig>) -> Self {
        let bases = Semaphore::new(BASES_AT_ONCE);
        Self { config, kept: Mutex::default(), changed: Notify::new(), ended: Notify::new(), bases }
    }

    /// Whether there are any.
    pub(super) fn are_made(&self) -> bool {
        self.config.is_some()
    }

    fn config(&self) -> Result<&BackupConfig> {
        let message = "this server makes no backups; ask its operator to set --backups to a URL";
        self.config.as_ref().ok_or_else(|| Error::new(ErrorCode::NotImplemented, message))
    }

    /// The archive of a database.
    fn archive(&self, link: &LinkKey, id: &DatabaseId) -> Result<Archive> {
        let config = self.config()?;
        let key = Sha256::digest(link.derive("database-backups", &[]).as_bytes());
        let opened = Archive::open(&config.url, &config.store_settings, id.as_str(), Key::new(key.into()));
        opened.map_err(unavailable)
    }

    /// How far the log of a database was written, as far as the archive knows.
    pub(super) fn written(&self, id: &DatabaseId) -> Option<Written> {
        self.kept(id).and_then(|kept| kept.log.borrow().last_archived)
    }

    fn kept(&self, id: &DatabaseId) -> Option<Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }
}

/// What the archive of a database holds, as far as everybody knows.
async fn catalog(app: &ManagedDatabases, archive: &Archive, id: &DatabaseId) -> Result<Catalog> {
    let mut catalog = Catalog::read(archive).await.map_err(unavailable)?;
    let status = app.backups.kept(id).map(|kept| kept.log.borrow().clone()).unwrap_or_default();
    if let (Some(end), Some(until)) = (status.last_archived, status.complete_until) {
        catalog.extend(end, until);
    }
    Ok(catalog)
}

/// Deletes the archive of a database whose machines are gone, once nobody writes into it. Safe to repeat.
pub(super) async fn remove(app: &ManagedDatabases, id: &DatabaseId) -> Result<()> {
    if !app.backups.are_made() {
        return Ok(());
    }
    let deadline = Instant::now() + KEEPER_WAIT;
    loop {
        let ended = app.backups.ended.notified();
        tokio::pin!(ended);
        ended.as_mut().enable();
        if app.backups.kept(id).is_none() {
            break;
        }
        app.backups.changed.notify_one();
        if tokio::time::timeout_at(deadline, ended).await.is_err() {
            let message = format!("a backup of database `{id}` is still running; try again shortly");
            return Err(Error::new(ErrorCode::Unavailable, message));
        }
    }
    app.backups.archive(&app.sandboxes.link, id)?.remove_all().await.map_err(unavailable)
}

fn login(link: &LinkKey, id: &DatabaseId) -> Result<Login> {
    let credentials = administrator(link, Some(id));
    let slot = Slot::new(SLOT).ok_or_else(|| Error::internal("the slot's name is no name"))?;
    Ok(Login { user: credentials.user, password: Password(credentials.password), slot })
}

/// An archive that fails, as the API says it.
fn unavailable(error: ArchiveError) -> Error {
    Error::new(ErrorCode::Unavailable, format!("the backup archive is unavailable: {error}"))
}
