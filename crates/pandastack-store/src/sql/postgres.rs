//! PostgreSQL, by URL.
//!
//! A commit is on disk when it returns (unless the server is configured otherwise). Several writers
//! work at once and lock what they change; they may be of several control servers
//! ([`super::replicas`]).

use sqlx::any::AnyPoolOptions;
use sqlx::{AnyConnection, AnyPool};

use crate::Result;
use pandastack_types::WorkspaceId;

/// Connections to the server, without the one of the replica's session.
const CONNECTIONS_MAX: u32 = 16;

/// State of a PostgreSQL database besides its connections.
pub(super) struct Postgres {
    url: String,
}

impl Postgres {
    /// Connects, and migrates the schema; concurrent starts are serialized.
    pub(super) async fn connect(url: &str) -> Result<(AnyPool, Self)> {
        sqlx::any::install_default_drivers();
        let pool = AnyPoolOptions::new().max_connections(CONNECTIONS_MAX).connect(url).await?;
        sqlx::migrate!("./migrations/postgres").run(&pool).await?;
        Ok((pool, Self { url: url.to_owned() }))
    }

    /// Address of the database, with a password.
    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

/// See [`super::Write::lock_workspace`].
pub(super) async fn lock_workspace(connection: &mut AnyConnection, workspace: &WorkspaceId) -> Result<()> {
    sqlx::query("SELECT id FROM workspaces WHERE id = $1 FOR UPDATE")
        .bind(workspace.as_str())
        .execute(connection)
        .await?;
    Ok(())
}
