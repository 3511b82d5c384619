//! PostgreSQL, by URL.
//!
//! A commit is on disk when it returns (unless the server itself was told otherwise). Several writers work at once and
//! lock what they change. One control server works on a database at a time: it holds a lock for as long as it is
//! connected, and a second one refuses to start.

use sqlx::any::AnyPoolOptions;
use sqlx::{AnyConnection, AnyPool, Connection};
use tokio::sync::Mutex;

use super::{code_of, database};
use crate::store::{Result, StoreError};
use pandastack_types::WorkspaceId;

/// Connections to the server, without the one that holds the lock.
const CONNECTIONS_MAX: u32 = 16;
/// Names the lock of the control server among the database's advisory locks: "pandasta" in ASCII.
const CONTROL_LOCK: i64 = 0x7061_6e64_6173_7461;

/// How long a server that starts waits for it.
const LOCK_WAIT: &str = "SET lock_timeout = '3s'";
/// `lock_not_available` of PostgreSQL's appendix A.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// What is held of a PostgreSQL database beside its connections.
pub(super) struct Postgres {
    /// Holds the lock. `None` once closed.
    lock: Mutex<Option<AnyConnection>>,
}

impl Postgres {
    /// Connects; answers the connections, and the lock.
    pub(super) async fn connect(url: &str) -> Result<(AnyPool, Self)> {
        sqlx::any::install_default_drivers();
        let mut connection = AnyConnection::connect(url).await.map_err(database)?;
        take_lock(&mut connection).await?;
        let pool =
            AnyPoolOptions::new().max_connections(CONNECTIONS_MAX).connect(url).await.map_err(database)?;
        sqlx::migrate!("./migrations/postgres").run(&pool).await?;
        Ok((pool, Self { lock: Mutex::new(Some(connection)) }))
    }

    pub(super) async fn close(&self) {
        if let Some(connection) = self.lock.lock().await.take() {
            // The server releases the lock with the connection, however that ends.
            let _ = connection.close().await;
        }
    }
}

/// A predecessor that was just killed may still hold it: the server notices the end of a connection by itself.
async fn take_lock(connection: &mut AnyConnection) -> Result<()> {
    sqlx::raw_sql(LOCK_WAIT).execute(&mut *connection).await.map_err(database)?;
    let taken = sqlx::query("SELECT pg_advisory_lock($1)").bind(CONTROL_LOCK).execute(connection).await;
    match taken {
        Ok(_) => Ok(()),
        Err(error) if code_of(&error).as_deref() == Some(LOCK_NOT_AVAILABLE) => Err(StoreError::Taken),
        Err(error) => Err(database(error)),
    }
}

/// See [`super::Write::lock_workspace`].
pub(super) async fn lock_workspace(connection: &mut AnyConnection, workspace: &WorkspaceId) -> Result<()> {
    sqlx::query("SELECT id FROM workspaces WHERE id = $1 FOR UPDATE")
        .bind(workspace.as_str())
        .execute(connection)
        .await
        .map_err(database)?;
    Ok(())
}
