//! Snapshots.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::{Event, SnapshotKind};
use pandastack_types::limits::SNAPSHOTS_PER_WORKSPACE_MAX;
use pandastack_types::{HostId, SandboxId, SnapshotId, WorkspaceId};
use sqlx::AnyConnection;

use super::quotas::admit_snapshot;
use super::rows::{SnapshotRow, signed, time, unsigned};
use super::sandboxes::find;
use super::seal::Sealer;
use super::sealed_columns::SNAPSHOTS;
use super::{SqlStore, Write, corrupt, insert_event, names};
use crate::names::Named;
use crate::{Durability, Result, SnapshotRecord, SnapshotStore, StoreError};

#[async_trait]
impl SnapshotStore for SqlStore {
    async fn insert_snapshot(&self, snapshot: &SnapshotRecord, replace_name: bool) -> Result<Event> {
        let spec = spec(&self.sealer, snapshot)?;
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&snapshot.workspace).await?;
        check_quota(write.conn(), &snapshot.workspace).await?;
        admit_snapshot(write.conn(), snapshot).await?;
        // Services name theirs as they like.
        let by_user = snapshot.spec.kind == SnapshotKind::Manual;
        let name = snapshot.spec.name.as_deref().filter(|_| by_user);
        if let Some(name) = name.filter(|_| replace_name) {
            release_name(&mut write, &snapshot.workspace, name).await?;
        }
        names::check_free(&mut write, Named::Snapshot, &snapshot.workspace, name).await?;
        sqlx::query(
            "INSERT INTO snapshots (id, workspace_id, sandbox_id, host_id, created_at_us, expires_at_us, spec, \
             size_bytes, name) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(snapshot.id.as_str())
        .bind(snapshot.workspace.as_str())
        .bind(snapshot.sandbox.as_str())
        .bind(snapshot.host.as_str())
        .bind(snapshot.created_at.as_microsecond())
        .bind(snapshot.expires_at.map(Timestamp::as_microsecond))
        .bind(spec)
        .bind(signed(snapshot.spec.size_bytes))
        .bind(name)
        .execute(write.conn())
        .await?;
        // Events of a sandbox are committed in the order of their ids.
        find(&mut write, &snapshot.sandbox).await?;
        let event = insert_event(
            write.conn(),
            &snapshot.workspace,
            &snapshot.sandbox,
            "snapshot_created",
            snapshot.created_at,
            Some(snapshot.id.as_str()),
        )
        .await?;
        write.commit().await?;
        Ok(event)
    }

    async fn snapshot(&self, workspace: &WorkspaceId, id: &SnapshotId) -> Result<SnapshotRecord> {
        let row: Option<SnapshotRow> =
            sqlx::query_as("SELECT * FROM snapshots WHERE workspace_id = $1 AND id = $2")
                .bind(workspace.as_str())
                .bind(id.as_str())
                .fetch_optional(&self.readers)
                .await?;
        self.sealer.record(row.ok_or_else(|| unknown(id))?)
    }

    async fn snapshots(
        &self,
        workspace: &WorkspaceId,
        sandbox: Option<&SandboxId>,
    ) -> Result<Vec<SnapshotRecord>> {
        let rows: Vec<SnapshotRow> = sqlx::query_as(
            "SELECT * FROM snapshots WHERE workspace_id = $1 AND (CAST($2 AS TEXT) IS NULL OR sandbox_id = $2) \
             ORDER BY created_at_us DESC, id",
        )
        .bind(workspace.as_str())
        .bind(sandbox.map(SandboxId::as_str))
        .fetch_all(&self.readers)
        .await?;
        self.sealer.records(rows)
    }

    async fn snapshot_ids(&self, host: &HostId) -> Result<Vec<SnapshotId>> {
        let ids: Vec<String> = sqlx::query_scalar("SELECT id FROM snapshots WHERE host_id = $1")
            .bind(host.as_str())
            .fetch_all(&self.readers)
            .await?;
        ids.into_iter().map(|id| id.parse().map_err(corrupt("snapshot id"))).collect()
    }

    async fn snapshots_due(&self, at: Timestamp) -> Result<Vec<SnapshotRecord>> {
        let rows: Vec<SnapshotRow> = sqlx::query_as(concat!(
            "SELECT * FROM snapshots WHERE expires_at_us <= $1",
            in_open_workspace!(),
            " ORDER BY expires_at_us"
        ))
        .bind(at.as_microsecond())
        .fetch_all(&self.readers)
        .await?;
        self.sealer.records(rows)
    }

    async fn next_snapshot_expiry(&self) -> Result<Option<Timestamp>> {
        let us: Option<i64> = sqlx::query_scalar(concat!(
            "SELECT MIN(expires_at_us) FROM snapshots WHERE expires_at_us IS NOT NULL",
            in_open_workspace!()
        ))
        .fetch_one(&self.readers)
        .await?;
        us.map(time).transpose()
    }

    async fn delete_snapshot(
        &self,
        workspace: &WorkspaceId,
        id: &SnapshotId,
        at: Timestamp,
    ) -> Result<(SnapshotRecord, Event)> {
        let mut write = self.write(Durability::Power).await?;
        let row: Option<SnapshotRow> =
            sqlx::query_as("DELETE FROM snapshots WHERE workspace_id = $1 AND id = $2 RETURNING *")
                .bind(workspace.as_str())
                .bind(id.as_str())
                .fetch_optional(write.conn())
                .await?;
        let snapshot: SnapshotRecord = self.sealer.record(row.ok_or_else(|| unknown(id))?)?;
        let detail = Some(id.as_str());
        find(&mut write, &snapshot.sandbox).await?;
        let event =
            insert_event(write.conn(), workspace, &snapshot.sandbox, "snapshot_deleted", at, detail).await?;
        write.commit().await?;
        Ok((snapshot, event))
    }
}

/// Leaves the snapshot of a name without one.
async fn release_name(write: &mut Write, workspace: &WorkspaceId, name: &str) -> Result<()> {
    let row: Option<SnapshotRow> =
        sqlx::query_as("SELECT * FROM snapshots WHERE workspace_id = $1 AND name = $2")
            .bind(workspace.as_str())
            .bind(name)
            .fetch_optional(write.conn())
            .await?;
    let sealer = write.sealer.clone();
    let Some(row) = row else { return Ok(()) };
    let mut snapshot: SnapshotRecord = sealer.record(row)?;
    snapshot.spec.name = None;
    sqlx::query("UPDATE snapshots SET name = NULL, spec = $1 WHERE id = $2")
        .bind(spec(&sealer, &snapshot)?)
        .bind(snapshot.id.as_str())
        .execute(write.conn())
        .await?;
    Ok(())
}

fn spec(sealer: &Sealer, snapshot: &SnapshotRecord) -> Result<String> {
    sealer.to_json(&SNAPSHOTS, snapshot.workspace.as_str(), snapshot.id.as_str(), &snapshot.spec)
}

fn unknown(id: &SnapshotId) -> StoreError {
    StoreError::NotFound { what: "snapshot", id: id.to_string() }
}

async fn check_quota(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<()> {
    let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM snapshots WHERE workspace_id = $1")
        .bind(workspace.as_str())
        .fetch_one(conn)
        .await?;
    if unsigned(count) >= SNAPSHOTS_PER_WORKSPACE_MAX {
        return Err(StoreError::Quota { what: "snapshots", limit: SNAPSHOTS_PER_WORKSPACE_MAX });
    }
    Ok(())
}
