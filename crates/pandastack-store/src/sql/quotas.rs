//! Quotas: read and counted within the write that adds something, under the workspace's lock, so
//! that two at once cannot both take the last place.

use async_trait::async_trait;
use pandastack_types::WorkspaceId;
use pandastack_types::api::{Quota, QuotaUse, WorkspaceState};
use pandastack_types::limits::SANDBOXES_PER_WORKSPACE_MAX;
use sqlx::AnyConnection;

use super::rows::{to_json, unsigned};
use super::{SqlStore, corrupt};
use crate::quotas::QuotaStore;
use crate::{Durability, Result, SandboxRecord, SnapshotRecord, StoreError};

const BYTES_PER_MIB: u64 = 1024 * 1024;

#[async_trait]
impl QuotaStore for SqlStore {
    async fn quota(&self, workspace: &WorkspaceId) -> Result<Quota> {
        let mut connection = self.readers.acquire().await?;
        read(&mut connection, workspace).await
    }

    async fn set_quota(&self, workspace: &WorkspaceId, quota: &Quota) -> Result<()> {
        let text = to_json("quota", quota)?;
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("UPDATE workspaces SET quota = $1 WHERE id = $2")
            .bind(text)
            .bind(workspace.as_str())
            .execute(write.conn())
            .await?;
        write.commit().await
    }

    async fn quota_use(&self, workspace: &WorkspaceId) -> Result<QuotaUse> {
        let mut connection = self.readers.acquire().await?;
        let (sandboxes, cpu, memory_mb) = machines(&mut connection, workspace).await?;
        let snapshot_mb = snapshot_bytes(&mut connection, workspace).await?.div_ceil(BYTES_PER_MIB);
        Ok(QuotaUse { sandboxes, cpu, memory_mb, snapshot_mb })
    }
}

/// Refuses a sandbox that the workspace may not have.
pub(super) async fn admit_sandbox(conn: &mut AnyConnection, record: &SandboxRecord) -> Result<()> {
    admit_any(conn, &record.workspace).await?;
    let quota = read(conn, &record.workspace).await?;
    let (sandboxes, cpu, memory_mb) = match (quota.cpu, quota.memory_mb) {
        (None, None) => (count(conn, &record.workspace).await?, 0, 0),
        _ => machines(conn, &record.workspace).await?,
    };
    if sandboxes >= SANDBOXES_PER_WORKSPACE_MAX {
        return Err(StoreError::Quota { what: "sandboxes", limit: SANDBOXES_PER_WORKSPACE_MAX });
    }
    within("sandboxes", quota.sandboxes, sandboxes, 1)?;
    within("cpu", quota.cpu, cpu, u64::from(record.spec.cpu))?;
    within("memory_mb", quota.memory_mb, memory_mb, u64::from(record.spec.memory_mb))
}

/// Refuses to create anything in a workspace that is suspended or being deleted.
pub(super) async fn admit_any(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<()> {
    let row: Option<(String, Option<String>)> =
        sqlx::query_as("SELECT state, suspend_reason FROM workspaces WHERE id = $1")
            .bind(workspace.as_str())
            .fetch_optional(conn)
            .await?;
    match row {
        Some((state, reason)) if state != WorkspaceState::Active.as_str() => {
            Err(StoreError::Closed { workspace: workspace.clone(), reason })
        }
        _ => Ok(()),
    }
}

/// Refuses a snapshot that the workspace may not have.
pub(super) async fn admit_snapshot(conn: &mut AnyConnection, record: &SnapshotRecord) -> Result<()> {
    admit_any(conn, &record.workspace).await?;
    let quota = read(conn, &record.workspace).await?;
    if quota.snapshot_mb.is_none() {
        return Ok(());
    }
    let used = snapshot_bytes(conn, &record.workspace).await?.div_ceil(BYTES_PER_MIB);
    within("snapshot_mb", quota.snapshot_mb, used, record.spec.size_bytes.div_ceil(BYTES_PER_MIB))
}

fn within(name: &'static str, limit: Option<u64>, used: u64, wanted: u64) -> Result<()> {
    match limit {
        Some(limit) if used.saturating_add(wanted) > limit => {
            Err(StoreError::OverQuota { name, limit, used, wanted })
        }
        _ => Ok(()),
    }
}

async fn read(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<Quota> {
    let text: Option<Option<String>> = sqlx::query_scalar("SELECT quota FROM workspaces WHERE id = $1")
        .bind(workspace.as_str())
        .fetch_optional(conn)
        .await?;
    let quota = text.flatten().map(|text| serde_json::from_str(&text).map_err(corrupt("quota")));
    Ok(quota.transpose()?.unwrap_or_default())
}

async fn count(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<u64> {
    let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM sandboxes WHERE workspace_id = $1")
        .bind(workspace.as_str())
        .fetch_one(conn)
        .await?;
    Ok(unsigned(count))
}

/// Sandboxes of a workspace, their processors and memory; sleeping ones count, because they may
/// wake at any time.
async fn machines(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<(u64, u64, u64)> {
    let (count, cpu, memory_mb): (i64, i64, i64) = sqlx::query_as(
        "SELECT COUNT(*), CAST(COALESCE(SUM(cpu), 0) AS BIGINT), CAST(COALESCE(SUM(memory_mb), 0) AS BIGINT) \
         FROM sandboxes WHERE workspace_id = $1",
    )
    .bind(workspace.as_str())
    .fetch_one(conn)
    .await?;
    Ok((unsigned(count), unsigned(cpu), unsigned(memory_mb)))
}

async fn snapshot_bytes(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<u64> {
    let bytes: i64 = sqlx::query_scalar(
        "SELECT CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT) FROM snapshots WHERE workspace_id = $1",
    )
    .bind(workspace.as_str())
    .fetch_one(conn)
    .await?;
    Ok(unsigned(bytes))
}
