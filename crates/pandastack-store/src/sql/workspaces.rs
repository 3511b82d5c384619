//! Workspaces: a row each, settings and quota as JSON, changed under the workspace's lock.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::WorkspaceId;
use pandastack_types::api::{PatchWorkspace, WorkspaceSettings, WorkspaceState};
use sqlx::AnyConnection;

use super::rows::{from_json, id, records, time, times, to_json};
use super::{SqlStore, corrupt};
use crate::workspaces::{WorkspaceMove, WorkspaceRecord, WorkspaceStore};
use crate::{Durability, Result, StoreError};

const COLUMNS: &str = "SELECT id, state, created_at_us, suspended_at_us, suspend_reason, quota, settings \
     FROM workspaces";

#[derive(sqlx::FromRow)]
struct WorkspaceRow {
    id: String,
    state: String,
    created_at_us: i64,
    suspended_at_us: Option<i64>,
    suspend_reason: Option<String>,
    quota: Option<String>,
    settings: Option<String>,
}

impl TryFrom<WorkspaceRow> for WorkspaceRecord {
    type Error = StoreError;
    fn try_from(row: WorkspaceRow) -> Result<Self> {
        let quota = row.quota.map(|text| from_json("quota", &text)).transpose()?;
        let settings = row.settings.map(|text| from_json("settings", &text)).transpose()?;
        Ok(Self {
            id: id(row.id)?,
            state: row.state.parse().map_err(corrupt("state of a workspace"))?,
            created_at: time(row.created_at_us)?,
            suspended_at: times(row.suspended_at_us)?,
            suspend_reason: row.suspend_reason,
            quota: quota.unwrap_or_default(),
            settings: settings.unwrap_or_default(),
        })
    }
}

#[async_trait]
impl WorkspaceStore for SqlStore {
    async fn insert_workspace(&self, record: &WorkspaceRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        let added = sqlx::query(
            "INSERT INTO workspaces (id, created_at_us, state, quota, settings) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT DO NOTHING",
        )
        .bind(record.id.as_str())
        .bind(record.created_at.as_microsecond())
        .bind(record.state.as_str())
        .bind(to_json("quota", &record.quota)?)
        .bind(to_json("settings", &record.settings)?)
        .execute(write.conn())
        .await?;
        if added.rows_affected() == 0 {
            let state: String = sqlx::query_scalar("SELECT state FROM workspaces WHERE id = $1")
                .bind(record.id.as_str())
                .fetch_one(write.conn())
                .await?;
            let name = &record.id;
            return Err(match state == WorkspaceState::Deleted.as_str() {
                true => StoreError::Held(format!(
                    "workspace `{name}` was deleted, and its name cannot be reused; choose another name"
                )),
                false => StoreError::Exists { what: "workspace", id: name.to_string() },
            });
        }
        write.commit().await
    }

    async fn workspace(&self, id: &WorkspaceId) -> Result<WorkspaceRecord> {
        let mut connection = self.readers.acquire().await?;
        find(&mut connection, id, "").await
    }

    async fn workspaces(&self) -> Result<Vec<WorkspaceRecord>> {
        let all = format!("{COLUMNS} WHERE state <> 'deleted' ORDER BY created_at_us, id");
        let rows: Vec<WorkspaceRow> =
            sqlx::query_as(sqlx::AssertSqlSafe(all)).fetch_all(&self.readers).await?;
        records(rows)
    }

    async fn closed_workspaces(&self) -> Result<Vec<WorkspaceRecord>> {
        let closed = format!("{COLUMNS} WHERE state IN ('suspended', 'deleting') ORDER BY id");
        let rows: Vec<WorkspaceRow> =
            sqlx::query_as(sqlx::AssertSqlSafe(closed)).fetch_all(&self.readers).await?;
        records(rows)
    }

    async fn move_workspace(
        &self,
        id: &WorkspaceId,
        movement: &WorkspaceMove,
        at: Timestamp,
    ) -> Result<WorkspaceRecord> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(id).await?;
        let lock = write.lock_clause();
        let before = find(write.conn(), id, lock).await?;
        let after = moved(before.clone(), movement, at)?;
        let change =
            "UPDATE workspaces SET state = $1, suspended_at_us = $2, suspend_reason = $3 WHERE id = $4";
        sqlx::query(change)
            .bind(after.state.as_str())
            .bind(after.suspended_at.map(Timestamp::as_microsecond))
            .bind(&after.suspend_reason)
            .bind(id.as_str())
            .execute(write.conn())
            .await?;
        match movement {
            WorkspaceMove::Resume => {
                if let Some(since) = before.suspended_at {
                    prolong(write.conn(), id, at.as_microsecond() - since.as_microsecond()).await?;
                }
            }
            WorkspaceMove::Delete => {
                let keys = sqlx::query("DELETE FROM tokens WHERE workspace_id = $1").bind(id.as_str());
                keys.execute(write.conn()).await?;
            }
            WorkspaceMove::Deleted => {
                for leftover in [
                    "DELETE FROM preview_repos WHERE workspace_id = $1",
                    "DELETE FROM idempotency WHERE workspace_id = $1",
                    "DELETE FROM events WHERE workspace_id = $1",
                    "DELETE FROM console_sessions WHERE workspace_id = $1",
                    "DELETE FROM members WHERE workspace_id = $1",
                    "DELETE FROM webhook_deliveries WHERE workspace_id = $1",
                    "DELETE FROM webhooks WHERE workspace_id = $1",
                ] {
                    sqlx::query(leftover).bind(id.as_str()).execute(write.conn()).await?;
                }
                super::template_builds::delete_all(write.conn(), id).await?;
            }
            WorkspaceMove::Suspend(_) => {}
        }
        write.commit().await?;
        Ok(after)
    }

    async fn workspace_settings(&self, workspace: &WorkspaceId) -> Result<WorkspaceSettings> {
        let mut connection = self.readers.acquire().await?;
        read(&mut connection, workspace).await
    }

    async fn patch_workspace(
        &self,
        workspace: &WorkspaceId,
        patch: &PatchWorkspace,
    ) -> Result<WorkspaceSettings> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(workspace).await?;
        let before = read(write.conn(), workspace).await?;
        let PatchWorkspace { default_visibility } = *patch;
        let after =
            WorkspaceSettings { default_visibility: default_visibility.unwrap_or(before.default_visibility) };
        sqlx::query("UPDATE workspaces SET settings = $1 WHERE id = $2")
            .bind(to_json("settings", &after)?)
            .bind(workspace.as_str())
            .execute(write.conn())
            .await?;
        write.commit().await?;
        Ok(after)
    }
}

/// Applies a state change to a workspace.
fn moved(record: WorkspaceRecord, movement: &WorkspaceMove, at: Timestamp) -> Result<WorkspaceRecord> {
    use WorkspaceState as S;
    let name = &record.id;
    match (movement, record.state) {
        (WorkspaceMove::Suspend(_) | WorkspaceMove::Resume, S::Deleting | S::Deleted) => {
            Err(StoreError::Held(format!("workspace `{name}` is being deleted")))
        }
        (WorkspaceMove::Suspend(reason), _) => Ok(WorkspaceRecord {
            state: S::Suspended,
            suspended_at: record.suspended_at.or(Some(at)),
            suspend_reason: reason.clone().or(record.suspend_reason),
            ..record
        }),
        (WorkspaceMove::Resume, _) => {
            Ok(WorkspaceRecord { state: S::Active, suspended_at: None, suspend_reason: None, ..record })
        }
        (WorkspaceMove::Delete, _) => Ok(WorkspaceRecord { state: S::Deleting, ..record }),
        (WorkspaceMove::Deleted, S::Deleting) => Ok(WorkspaceRecord { state: S::Deleted, ..record }),
        (WorkspaceMove::Deleted, _) => {
            Err(StoreError::Held(format!("workspace `{name}` is not being deleted")))
        }
    }
}

/// Extends lifetimes: time in which a workspace could not be used does not count.
async fn prolong(conn: &mut AnyConnection, workspace: &WorkspaceId, by_us: i64) -> Result<()> {
    for table in ["sandboxes", "snapshots"] {
        let statement = format!(
            "UPDATE {table} SET expires_at_us = expires_at_us + $1 \
             WHERE workspace_id = $2 AND expires_at_us IS NOT NULL"
        );
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .bind(by_us.max(0))
            .bind(workspace.as_str())
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

async fn find(conn: &mut AnyConnection, id: &WorkspaceId, lock: &str) -> Result<WorkspaceRecord> {
    let by_id = format!("{COLUMNS} WHERE id = $1 AND state <> 'deleted'{lock}");
    let row: Option<WorkspaceRow> =
        sqlx::query_as(sqlx::AssertSqlSafe(by_id)).bind(id.as_str()).fetch_optional(conn).await?;
    let unknown = || StoreError::NotFound { what: "workspace", id: id.to_string() };
    row.ok_or_else(unknown)?.try_into()
}

async fn read(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<WorkspaceSettings> {
    let text: Option<Option<String>> = sqlx::query_scalar("SELECT settings FROM workspaces WHERE id = $1")
        .bind(workspace.as_str())
        .fetch_optional(conn)
        .await?;
    let settings = text.flatten().map(|text| serde_json::from_str(&text).map_err(corrupt("settings")));
    Ok(settings.transpose()?.unwrap_or_default())
}
