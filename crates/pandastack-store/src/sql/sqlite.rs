//! SQLite: one file, write-ahead log, one writer at a time, readers beside it.
//!
//! SQLite itself runs with `synchronous=NORMAL`: a commit survives `kill -9` (the log is in the
//! page cache), but is on disk only after the next checkpoint. For a commit that must survive power
//! loss ([`Durability`]), the log file is synced here, after the commit and outside the writer's
//! turn. `synchronous=FULL` would give the same guarantee but sync while holding the turn, so that
//! one slow disk flush stands in the way of every other write, and a create could not wait for the
//! disk and for its machine at the same time.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use sqlx::any::AnyPoolOptions;
use sqlx::{Any, AnyPool, Transaction};
use tokio::sync::{Mutex, OwnedMutexGuard};
use url::Url;

use crate::{Durability, Result};

/// Connections that read.
const READERS_MAX: u32 = 4;
/// For every connection. The busy timeout is how long a statement waits for a lock that only a
/// foreign process (a backup) can hold.
const SETTINGS: &str = "PRAGMA busy_timeout = 5000; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; \
                        PRAGMA foreign_keys = ON;";
/// For connections that read.
const READING: &str = "PRAGMA busy_timeout = 5000; PRAGMA query_only = ON;";

/// The writing side of a file.
pub(super) struct Sqlite {
    writer: AnyPool,
    /// The write-ahead log. SQLite keeps this file while a connection is open, and holds no lock on it.
    log: Arc<File>,
    turn: Arc<Mutex<()>>,
}

/// The turn to write.
pub(super) struct WriteTurn {
    held: OwnedMutexGuard<()>,
    /// Write-ahead log to sync after the commit.
    log: Option<Arc<File>>,
}

impl WriteTurn {
    /// Ends the turn after a commit.
    pub(super) async fn end(self) -> Result<()> {
        drop(self.held);
        match self.log {
            Some(log) => sync(log).await,
            None => Ok(()),
        }
    }
}

impl Sqlite {
    /// Opens the file; answers connections that read, and the writing side.
    pub(super) async fn open(path: &Path) -> Result<(AnyPool, Self)> {
        let writer = pool(path, 1, SETTINGS).await?;
        sqlx::migrate!("./migrations/sqlite").run(&writer).await?;
        let readers = pool(path, READERS_MAX, READING).await?;
        let log = open_log(path).map_err(sqlx::Error::Io)?;
        Ok((readers, Self { writer, log: Arc::new(log), turn: Arc::new(Mutex::new(())) }))
    }

    pub(super) async fn begin(
        &self,
        durability: Durability,
    ) -> Result<(Transaction<'static, Any>, WriteTurn)> {
        // SQLite has one writer anyway; taking turns here is fair, and never waits on its busy timer.
        let held = Arc::clone(&self.turn).lock_owned().await;
        let tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        let log = (durability == Durability::Power).then(|| Arc::clone(&self.log));
        Ok((tx, WriteTurn { held, log }))
    }

    pub(super) async fn sync(&self) -> Result<()> {
        sync(Arc::clone(&self.log)).await
    }

    /// Rewrites the file and empties the log, so that neither has what rows had before.
    pub(super) async fn vacuum(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        sqlx::raw_sql("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);").execute(&self.writer).await?;
        Ok(())
    }

    pub(super) async fn close(&self) {
        self.writer.close().await;
    }
}

/// Waits until everything committed so far is on disk. Frames that a concurrent checkpoint moved
/// are in the database file, which SQLite syncs before it reuses the log.
async fn sync(log: Arc<File>) -> Result<()> {
    let synced = tokio::task::spawn_blocking(move || log.sync_data()).await;
    Ok(synced.unwrap_or_else(|failed| Err(std::io::Error::other(failed))).map_err(sqlx::Error::Io)?)
}

/// Connections to a file. They are never closed early: with the last one SQLite removes the log,
/// and the handle in [`Sqlite`] would sync a deleted file.
async fn pool(path: &Path, connections: u32, settings: &'static str) -> Result<AnyPool> {
    sqlx::any::install_default_drivers();
    let not_absolute = || sqlx::Error::Configuration("the database's path is not absolute".into());
    let path = std::path::absolute(path).ok().and_then(|path| Url::from_file_path(path).ok());
    let url = format!("sqlite://{}?mode=rwc", path.ok_or_else(not_absolute)?.path());
    let options = AnyPoolOptions::new().max_connections(connections).idle_timeout(None).max_lifetime(None);
    let options = options.after_connect(move |connection, _| {
        Box::pin(async move { sqlx::raw_sql(settings).execute(connection).await.map(drop) })
    });
    Ok(options.connect(&url).await?)
}

/// Opens the log for syncing, and makes sure that its name and the database's are on disk.
fn open_log(path: &Path) -> std::io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    // SQLite creates the log with the first write; creating the migrations table was one, unless it
    // already existed.
    let log = File::options().create(true).truncate(false).write(true).open(name)?;
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(log)
}
