//! Sessions of the web console, and the events of a workspace.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::WorkspaceId;
use pandastack_types::api::Event;

use super::SqlStore;
use super::rows::{EventRow, id, records, time};
use crate::console::{CONSOLE_SESSIONS_PER_KEY_MAX, ConsoleSession, ConsoleStore};
use crate::{Durability, Result, StoreError};

#[derive(sqlx::FromRow)]
struct SessionRow {
    hash: Vec<u8>,
    id: String,
    workspace_id: String,
    token_prefix: String,
    browser: String,
    created_at_us: i64,
    last_used_at_us: i64,
    expires_at_us: i64,
}

impl TryFrom<SessionRow> for ConsoleSession {
    type Error = StoreError;
    fn try_from(row: SessionRow) -> Result<Self> {
        Ok(Self {
            hash: row.hash,
            id: row.id,
            workspace: id(row.workspace_id)?,
            token_prefix: row.token_prefix,
            browser: row.browser,
            created_at: time(row.created_at_us)?,
            last_used_at: time(row.last_used_at_us)?,
            expires_at: time(row.expires_at_us)?,
        })
    }
}

#[async_trait]
impl ConsoleStore for SqlStore {
    async fn insert_console_session(&self, session: &ConsoleSession) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        write.lock_workspace(&session.workspace).await?;
        sqlx::query(
            "INSERT INTO console_sessions (hash, id, workspace_id, token_prefix, browser, created_at_us, \
             last_used_at_us, expires_at_us) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(&session.hash)
        .bind(&session.id)
        .bind(session.workspace.as_str())
        .bind(&session.token_prefix)
        .bind(&session.browser)
        .bind(session.created_at.as_microsecond())
        .bind(session.last_used_at.as_microsecond())
        .bind(session.expires_at.as_microsecond())
        .execute(write.conn())
        .await?;
        sqlx::query(
            "DELETE FROM console_sessions WHERE id IN (SELECT id FROM (SELECT id, ROW_NUMBER() OVER \
             (ORDER BY last_used_at_us DESC) AS place FROM console_sessions WHERE token_prefix = $1) \
             AS placed WHERE place > $2)",
        )
        .bind(&session.token_prefix)
        .bind(i64::from(CONSOLE_SESSIONS_PER_KEY_MAX))
        .execute(write.conn())
        .await?;
        write.commit().await
    }

    async fn console_session(&self, hash: &[u8]) -> Result<Option<ConsoleSession>> {
        let row: Option<SessionRow> = sqlx::query_as("SELECT * FROM console_sessions WHERE hash = $1")
            .bind(hash)
            .fetch_optional(&self.readers)
            .await?;
        row.map(ConsoleSession::try_from).transpose()
    }

    async fn console_sessions(&self, workspace: &WorkspaceId) -> Result<Vec<ConsoleSession>> {
        let rows: Vec<SessionRow> = sqlx::query_as(
            "SELECT * FROM console_sessions WHERE workspace_id = $1 ORDER BY created_at_us DESC, id",
        )
        .bind(workspace.as_str())
        .fetch_all(&self.readers)
        .await?;
        records(rows)
    }

    async fn touch_console_session(&self, id: &str, at: Timestamp) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        sqlx::query("UPDATE console_sessions SET last_used_at_us = $1 WHERE id = $2")
            .bind(at.as_microsecond())
            .bind(id)
            .execute(write.conn())
            .await?;
        write.commit().await
    }

    async fn delete_console_session(&self, workspace: &WorkspaceId, id: &str) -> Result<()> {
        // On disk before the response: a revoked session must not reappear after a power loss.
        let mut write = self.write(Durability::Power).await?;
        let done = sqlx::query("DELETE FROM console_sessions WHERE workspace_id = $1 AND id = $2")
            .bind(workspace.as_str())
            .bind(id)
            .execute(write.conn())
            .await?;
        if done.rows_affected() == 0 {
            return Err(StoreError::NotFound { what: "console session", id: id.to_owned() });
        }
        write.commit().await
    }

    async fn prune_console_sessions(&self, at: Timestamp, unused_since: Timestamp) -> Result<u64> {
        let mut write = self.write(Durability::Process).await?;
        let done =
            sqlx::query("DELETE FROM console_sessions WHERE expires_at_us <= $1 OR last_used_at_us < $2")
                .bind(at.as_microsecond())
                .bind(unused_since.as_microsecond())
                .execute(write.conn())
                .await?;
        write.commit().await?;
        Ok(done.rows_affected())
    }

    async fn workspace_events_after(
        &self,
        workspace: &WorkspaceId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Event>> {
        let rows: Vec<EventRow> = sqlx::query_as(
            "SELECT id, sandbox_id, kind, at_us, detail FROM events \
             WHERE workspace_id = $1 AND id > $2 ORDER BY id LIMIT $3",
        )
        .bind(workspace.as_str())
        .bind(after)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        records(rows)
    }

    async fn workspace_events_tail(&self, workspace: &WorkspaceId, limit: u32) -> Result<Vec<Event>> {
        let rows: Vec<EventRow> = sqlx::query_as(
            "SELECT id, sandbox_id, kind, at_us, detail FROM events \
             WHERE workspace_id = $1 ORDER BY id DESC LIMIT $2",
        )
        .bind(workspace.as_str())
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        let mut events: Vec<Event> = records(rows)?;
        events.reverse();
        Ok(events)
    }
}
