//! The store on SQLite: one file, write-ahead log, one writer at a time, readers beside it.
//!
//! SQLite itself runs with `synchronous=NORMAL`: a commit survives `kill -9` (the log is in the page cache), but is on
//! disk only after the next checkpoint. Where a commit must survive power loss ([`Durability`](super::Durability)), the
//! log file is synced here, after the commit and outside the writer's turn. `synchronous=FULL` would give the same
//! guarantee but sync while holding the turn, so that one slow disk flush stands in the way of every other write, and a
//! create could not wait for the disk and for its machine at the same time.

mod history;
mod hosts;
mod ledger;
mod rows;
mod sandboxes;
mod snapshots;
mod tokens;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::Event;
use pandastack_types::{SandboxId, WorkspaceId};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{Sqlite, Transaction};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{Durability, Result, Store, StoreError};

/// Connections that read.
const READERS_MAX: u32 = 4;
/// How long a statement waits for a lock that only a foreign process (a backup) can hold.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// The store on one SQLite file.
pub struct SqliteStore {
    readers: SqlitePool,
    writer: SqlitePool,
    /// The write-ahead log. SQLite keeps this file while a connection is open, and holds no lock on it.
    log: Arc<File>,
    turn: Arc<Mutex<()>>,
}

/// A write transaction and the turn to write.
struct Write {
    tx: Transaction<'static, Sqlite>,
    turn: OwnedMutexGuard<()>,
    log: Option<Arc<File>>,
}

impl Write {
    fn conn(&mut self) -> &mut SqliteConnection {
        &mut self.tx
    }

    async fn commit(self) -> Result<()> {
        self.tx.commit().await.map_err(database)?;
        drop(self.turn);
        match self.log {
            Some(log) => sync(log).await,
            None => Ok(()),
        }
    }
}

/// Waits until everything committed so far is on disk. Frames that a checkpoint moved meanwhile are in the database
/// file, which SQLite syncs before it reuses the log.
async fn sync(log: Arc<File>) -> Result<()> {
    let synced = tokio::task::spawn_blocking(move || log.sync_data()).await;
    synced
        .unwrap_or_else(|failed| Err(std::io::Error::other(failed)))
        .map_err(|e| database(sqlx::Error::Io(e)))
}

impl SqliteStore {
    /// Opens the file, making it and bringing its schema up to date where needed.
    pub async fn open(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(BUSY_WAIT);
        // Connections are never retired: with the last one SQLite removes the log, and the handle held here would sync
        // a file that is gone.
        let pool = |connections| {
            SqlitePoolOptions::new().max_connections(connections).idle_timeout(None).max_lifetime(None)
        };
        let writer = pool(1).connect_with(options.clone()).await.map_err(database)?;
        sqlx::migrate!("./migrations/sqlite").run(&writer).await?;
        let reading = options.pragma("query_only", "true");
        let readers = pool(READERS_MAX).connect_with(reading).await.map_err(database)?;
        let log = open_log(path).map_err(|error| database(sqlx::Error::Io(error)))?;
        Ok(Self { readers, writer, log: Arc::new(log), turn: Arc::new(Mutex::new(())) })
    }

    async fn write(&self, durability: Durability) -> Result<Write> {
        // SQLite has one writer anyway; taking turns here is fair, and never waits on its busy timer.
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let tx = self.writer.begin_with("BEGIN IMMEDIATE").await.map_err(database)?;
        let log = (durability == Durability::Power).then(|| Arc::clone(&self.log));
        Ok(Write { tx, turn, log })
    }
}

/// Opens the log for syncing, and makes sure that its name and the database's are on disk.
fn open_log(path: &Path) -> std::io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    // SQLite makes the log with the first write; the migrations table was one, unless it was there already.
    let log = File::options().create(true).truncate(false).write(true).open(name)?;
    if let Some(dir) = path.parent() {
        File::open(dir)?.sync_all()?;
    }
    Ok(log)
}

#[async_trait]
impl Store for SqliteStore {
    async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&self.readers).await.map_err(database)?;
        Ok(())
    }

    async fn sync(&self) -> Result<()> {
        sync(Arc::clone(&self.log)).await
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// `SQLITE_FULL`: <https://www.sqlite.org/rescode.html#full>.
const SQLITE_FULL: &str = "13";

fn database(source: sqlx::Error) -> StoreError {
    let full = source.as_database_error().and_then(|error| error.code()).is_some_and(|c| c == SQLITE_FULL);
    if full { StoreError::DiskFull } else { StoreError::Database(source) }
}

fn corrupt<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> StoreError {
    move |source| StoreError::Corrupt { what, source: Box::new(source) }
}

/// Appends an event within a transaction.
async fn insert_event(
    conn: &mut SqliteConnection,
    workspace: &WorkspaceId,
    sandbox: &SandboxId,
    kind: &str,
    at: Timestamp,
    detail: Option<&str>,
) -> Result<Event> {
    let done = sqlx::query(
        "INSERT INTO events (workspace_id, sandbox_id, kind, at_us, detail) VALUES (?, ?, ?, ?, ?)",
    )
    .bind(workspace.as_str())
    .bind(sandbox.as_str())
    .bind(kind)
    .bind(at.as_microsecond())
    .bind(detail)
    .execute(conn)
    .await
    .map_err(database)?;
    Ok(Event {
        id: done.last_insert_rowid(),
        sandbox_id: sandbox.clone(),
        kind: kind.to_owned(),
        at,
        detail: detail.map(str::to_owned),
    })
}
