//! The store on SQL: one set of statements for SQLite and PostgreSQL.
//!
//! The statements keep to what both understand (`$1` parameters, `RETURNING`, `ON CONFLICT`, 64-bit
//! integers, text and bytes); what differs is here: opening, taking turns, and when a commit is on
//! disk.
//!
//! | | SQLite | PostgreSQL |
//! |---|---|---|
//! | for | one box, nothing to run beside it | a database that is backed up and run already |
//! | one writer at a time | on the whole file, by a turn taken here | on what is changed: the sandbox's row, or the workspace's for what is counted ([`Write::lock_workspace`]) |
//! | survives power loss | when the log is synced, see [`Durability`] | when it is committed, always |

/// A condition: the row's workspace is neither suspended nor being deleted. Otherwise no work falls
/// due in it.
macro_rules! in_open_workspace {
    () => {
        " AND workspace_id NOT IN (SELECT id FROM workspaces WHERE state <> 'active')"
    };
}

mod app_rows;
mod apps;
mod audit;
mod console;
mod databases;
mod deployments;
mod functions;
mod history;
mod host_identities;
mod hosts;
mod installation;
mod ledger;
mod members;
mod names;
mod postgres;
mod preview_repos;
mod quotas;
mod replicas;
mod rows;
mod runs;
mod sandboxes;
mod schedule_runs;
mod schedules;
mod seal;
mod sealed_columns;
mod snapshots;
mod sqlite;
mod template_builds;
mod template_layers;
mod template_readers;
mod templates;
mod tokens;
mod volumes;
mod webhook_claims;
mod webhook_rows;
mod webhooks;
mod workspaces;

use std::path::Path;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::Event;
use pandastack_types::link::LinkKey;
use pandastack_types::{SandboxId, WorkspaceId};
use sqlx::{Any, AnyConnection, AnyPool, Transaction};
use tokio::sync::watch;

use super::{Durability, Result, Store, StoreError};
use postgres::Postgres;
use seal::Sealer;
use sqlite::Sqlite;

/// The store on a database.
pub struct SqlStore {
    /// Connections for looking.
    readers: AnyPool,
    backend: Backend,
    /// Changes of functions that were committed here.
    function_changes: AtomicU64,
    /// Commits of this process that queued deliveries to webhooks.
    deliveries: watch::Sender<u64>,
    sealer: Sealer,
}

enum Backend {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

/// A write transaction, and the work at its end.
struct Write {
    tx: Transaction<'static, Any>,
    end: End,
    sealer: Sealer,
    /// Whether it queues deliveries to webhooks, and where their sender is notified.
    has_deliveries: bool,
    deliveries: watch::Sender<u64>,
}

enum End {
    Sqlite(sqlite::WriteTurn),
    Postgres,
}

impl Write {
    fn conn(&mut self) -> &mut AnyConnection {
        &mut self.tx
    }

    /// Locks the workspace: no other writer can count or change its resources until the end of this write.
    /// SQLite has one writer at a time anyway.
    async fn lock_workspace(&mut self, workspace: &WorkspaceId) -> Result<()> {
        match self.end {
            End::Sqlite(_) => Ok(()),
            End::Postgres => postgres::lock_workspace(&mut self.tx, workspace).await,
        }
    }

    /// Returns whether another server with this instance name is alive. SQLite supports only one
    /// server.
    async fn is_alive(&mut self, instance: &str) -> Result<bool> {
        match self.end {
            End::Sqlite(_) => Ok(false),
            End::Postgres => replicas::is_alive(&mut self.tx, instance).await,
        }
    }

    /// Appended to a `SELECT` of a row that this write changes.
    fn lock_clause(&self) -> &'static str {
        match self.end {
            End::Sqlite(_) => "",
            End::Postgres => " FOR UPDATE",
        }
    }

    async fn commit(self) -> Result<()> {
        self.tx.commit().await?;
        let ended = match self.end {
            End::Sqlite(turn) => turn.end().await,
            End::Postgres => Ok(()),
        };
        if self.has_deliveries {
            self.deliveries.send_modify(|commits| *commits += 1);
        }
        ended
    }
}

impl SqlStore {
    /// Opens a SQLite file, making it and bringing its schema up to date where needed. Secrets in rows are
    /// sealed with the join secret.
    pub async fn sqlite(path: &Path, secret: &LinkKey) -> Result<Self> {
        let (readers, sqlite) = Sqlite::open(path).await?;
        Ok(Self::new(readers, Backend::Sqlite(sqlite), secret))
    }

    /// Connects to a PostgreSQL database (`postgres://...`) and brings its schema up to date where needed.
    pub async fn postgres(url: &str, secret: &LinkKey) -> Result<Self> {
        let (readers, postgres) = Postgres::connect(url).await?;
        Ok(Self::new(readers, Backend::Postgres(postgres), secret))
    }

    fn new(readers: AnyPool, backend: Backend, secret: &LinkKey) -> Self {
        let (deliveries, sealer) = (watch::Sender::new(0), Sealer::new(secret));
        Self { readers, backend, function_changes: AtomicU64::new(0), deliveries, sealer }
    }

    async fn write(&self, durability: Durability) -> Result<Write> {
        let (tx, end) = match &self.backend {
            Backend::Sqlite(sqlite) => {
                let (tx, turn) = sqlite.begin(durability).await?;
                (tx, End::Sqlite(turn))
            }
            Backend::Postgres(_) => (self.readers.begin().await?, End::Postgres),
        };
        let (sealer, deliveries) = (self.sealer.clone(), self.deliveries.clone());
        Ok(Write { tx, end, sealer, has_deliveries: false, deliveries })
    }
}

#[async_trait]
impl Store for SqlStore {
    async fn ping(&self) -> Result<()> {
        sqlx::query("SELECT 1").execute(&self.readers).await?;
        Ok(())
    }

    async fn sync(&self) -> Result<()> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.sync().await,
            // A committed write is on disk.
            Backend::Postgres(_) => Ok(()),
        }
    }

    async fn close(&self) {
        self.readers.close().await;
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.close().await,
            Backend::Postgres(_) => {}
        }
    }
}

fn corrupt<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> StoreError {
    move |source| StoreError::Corrupt { what, source: Box::new(source) }
}

/// Appends an event within a transaction.
async fn insert_event(
    conn: &mut AnyConnection,
    workspace: &WorkspaceId,
    sandbox: &SandboxId,
    kind: &str,
    at: Timestamp,
    detail: Option<&str>,
) -> Result<Event> {
    let id: i64 = sqlx::query_scalar(
        "INSERT INTO events (workspace_id, sandbox_id, kind, at_us, detail) VALUES ($1, $2, $3, $4, $5) RETURNING id",
    )
    .bind(workspace.as_str())
    .bind(sandbox.as_str())
    .bind(kind)
    .bind(at.as_microsecond())
    .bind(detail)
    .fetch_one(conn)
    .await?;
    Ok(Event {
        id,
        sandbox_id: sandbox.clone(),
        event_type: kind.to_owned(),
        kind: kind.to_owned(),
        at,
        detail: detail.map(str::to_owned),
    })
}
