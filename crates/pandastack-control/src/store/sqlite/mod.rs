//! The store on SQLite: one file, write-ahead log, one writer at a time, readers beside it.
//!
//! Two write connections exist, equal but for `synchronous`: `FULL` syncs the log at each commit (and with it whatever
//! the other one wrote before), `NORMAL` leaves that to the next one. Both survive `kill -9`: the log is in the page
//! cache. [`Durability`](super::Durability) says which commit needs which, so a create pays for one sync, not two.

mod history;
mod hosts;
mod rows;
mod sandboxes;
mod snapshots;
mod tokens;

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
    synced: SqlitePool,
    unsynced: SqlitePool,
    turn: Arc<Mutex<()>>,
}

/// A write transaction and the turn to write.
struct Write {
    tx: Transaction<'static, Sqlite>,
    _turn: OwnedMutexGuard<()>,
}

impl Write {
    fn conn(&mut self) -> &mut SqliteConnection {
        &mut self.tx
    }

    async fn commit(self) -> Result<()> {
        self.tx.commit().await.map_err(database)
    }
}

impl SqliteStore {
    /// Opens the file, making it and bringing its schema up to date where needed.
    pub async fn open(path: &Path) -> Result<Self> {
        let options = |synchronous| {
            SqliteConnectOptions::new()
                .filename(path)
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(synchronous)
                .foreign_keys(true)
                .busy_timeout(BUSY_WAIT)
        };
        let pool = |connections| SqlitePoolOptions::new().max_connections(connections);
        let synced = pool(1).connect_with(options(SqliteSynchronous::Full)).await.map_err(database)?;
        sqlx::migrate!("./migrations/sqlite").run(&synced).await?;
        let unsynced = pool(1).connect_with(options(SqliteSynchronous::Normal)).await.map_err(database)?;
        let reading = options(SqliteSynchronous::Normal).pragma("query_only", "true");
        let readers = pool(READERS_MAX).connect_with(reading).await.map_err(database)?;
        Ok(Self { readers, synced, unsynced, turn: Arc::new(Mutex::new(())) })
    }

    async fn write(&self, durability: Durability) -> Result<Write> {
        // SQLite has one writer anyway; taking turns here is fair, and never waits on its busy timer.
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let pool = match durability {
            Durability::Power => &self.synced,
            Durability::Process => &self.unsynced,
        };
        let tx = pool.begin_with("BEGIN IMMEDIATE").await.map_err(database)?;
        Ok(Write { tx, _turn: turn })
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&self.readers).await.map_err(database)?;
        Ok(())
    }

    async fn close(&self) {
        self.readers.close().await;
        self.unsynced.close().await;
        self.synced.close().await;
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
