//! Volumes and their attachments.

use async_trait::async_trait;
use pandastack_types::api::AttachedVolume;
use pandastack_types::limits::VOLUMES_PER_WORKSPACE_MAX;
use pandastack_types::{HostId, VolumeId, WorkspaceId};
use sqlx::{AnyConnection, AssertSqlSafe};

use super::quotas::admit_any;
use super::rows::{VolumeHolderRow, VolumeRow, records, signed, to_json, unsigned};
use super::{SqlStore, Write};
use crate::names::choose;
use crate::volumes::{VolumeHolderRecord, VolumeRecord, VolumeSpecRecord, VolumeState, VolumeStore};
use crate::{Durability, Result, SandboxRecord, StoreError};

/// Current holders: a deleted sandbox holds nothing.
const HOLDERS: &str = "SELECT h.volume_id, h.sandbox_id, h.read_only FROM volume_holders h \
     JOIN sandboxes s ON s.id = h.sandbox_id";

#[async_trait]
impl VolumeStore for SqlStore {
    async fn insert_volumes(&self, volumes: &[VolumeRecord]) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        for volume in volumes {
            write.lock_workspace(&volume.workspace).await?;
            admit_any(write.conn(), &volume.workspace).await?;
            check_quota(write.conn(), &volume.workspace).await?;
            check_name(write.conn(), &volume.workspace, &volume.name).await?;
            insert(write.conn(), volume).await?;
        }
        write.commit().await
    }

    async fn volume(&self, workspace: &WorkspaceId, name: &str) -> Result<VolumeRecord> {
        let rows: Vec<VolumeRow> = sqlx::query_as(
            "SELECT * FROM volumes WHERE workspace_id = $1 AND state <> 'deleting' \
             AND (name = $2 OR substr(id, 1, length($2)) = $2) \
             ORDER BY CASE WHEN name = $2 THEN 0 WHEN id = $2 THEN 1 ELSE 2 END, id LIMIT 3",
        )
        .bind(workspace.as_str())
        .bind(name)
        .fetch_all(&self.readers)
        .await?;
        let found = records::<VolumeRow, VolumeRecord>(rows)?;
        let texts = found.iter().map(|volume| (volume.id.to_string(), Some(volume.name.clone())));
        let id = choose("volume", name, texts.collect())?.ok_or_else(|| unknown(name))?;
        found.into_iter().find(|volume| volume.id.as_str() == id).ok_or_else(|| unknown(name))
    }

    async fn volumes(&self, workspace: &WorkspaceId) -> Result<Vec<VolumeRecord>> {
        let rows: Vec<VolumeRow> = sqlx::query_as(
            "SELECT * FROM volumes WHERE workspace_id = $1 AND state <> 'deleting' ORDER BY name",
        )
        .bind(workspace.as_str())
        .fetch_all(&self.readers)
        .await?;
        records(rows)
    }

    async fn volumes_on(&self, host: &HostId) -> Result<Vec<VolumeRecord>> {
        let rows: Vec<VolumeRow> = sqlx::query_as("SELECT * FROM volumes WHERE host_id = $1 ORDER BY id")
            .bind(host.as_str())
            .fetch_all(&self.readers)
            .await?;
        records(rows)
    }

    async fn volume_holders(&self, workspace: &WorkspaceId) -> Result<Vec<VolumeHolderRecord>> {
        let text = format!("{HOLDERS} WHERE s.workspace_id = $1 ORDER BY h.volume_id, h.sandbox_id");
        let rows: Vec<VolumeHolderRow> =
            sqlx::query_as(AssertSqlSafe(text)).bind(workspace.as_str()).fetch_all(&self.readers).await?;
        records(rows)
    }

    async fn update_volume(&self, id: &VolumeId, spec: &VolumeSpecRecord) -> Result<()> {
        let spec = to_json("volume spec", spec)?;
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("UPDATE volumes SET state = 'ready', spec = $2 WHERE id = $1 AND state <> 'deleting'")
            .bind(id.as_str())
            .bind(spec)
            .execute(write.conn())
            .await?;
        write.commit().await
    }

    async fn delete_volume(&self, id: &VolumeId) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        let volume = find(&mut write, id).await?;
        if let Some(holder) = holders(write.conn(), id).await?.into_iter().next() {
            return Err(already_attached(&volume.name, &holder));
        }
        sqlx::query("UPDATE volumes SET state = 'deleting' WHERE id = $1")
            .bind(id.as_str())
            .execute(write.conn())
            .await?;
        write.commit().await
    }

    async fn remove_volume(&self, id: &VolumeId) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        for text in [
            "DELETE FROM volume_holders WHERE volume_id = $1",
            "DELETE FROM volumes WHERE id = $1 AND state <> 'ready'",
        ] {
            sqlx::query(text).bind(id.as_str()).execute(write.conn()).await?;
        }
        write.commit().await
    }
}

/// Attaches the volumes of a new sandbox, within the transaction that adds its row.
pub(super) async fn attach(write: &mut Write, sandbox: &SandboxRecord) -> Result<()> {
    for wanted in &sandbox.spec.volumes {
        let volume = find(write, &wanted.id).await?;
        check_usable(&volume, wanted)?;
        let holders = holders(write.conn(), &wanted.id).await?;
        if let Some(holder) = holders.iter().find(|holder| !(holder.read_only && wanted.read_only)) {
            return Err(already_attached(&volume.name, holder));
        }
        // Rows of deleted sandboxes have no effect; remove them so that they do not pile up.
        sqlx::query(
            "DELETE FROM volume_holders WHERE volume_id = $1 AND sandbox_id NOT IN (SELECT id FROM sandboxes)",
        )
        .bind(wanted.id.as_str())
        .execute(write.conn())
        .await?;
        sqlx::query("INSERT INTO volume_holders (volume_id, sandbox_id, read_only) VALUES ($1, $2, $3)")
            .bind(wanted.id.as_str())
            .bind(sandbox.id.as_str())
            .bind(i64::from(wanted.read_only))
            .execute(write.conn())
            .await?;
        sqlx::query("UPDATE volumes SET generation = $2 WHERE id = $1")
            .bind(wanted.id.as_str())
            .bind(signed(wanted.generation))
            .execute(write.conn())
            .await?;
    }
    Ok(())
}

/// Checks that the volume is unchanged since the change was planned: another request may have used
/// it.
fn check_usable(volume: &VolumeRecord, wanted: &AttachedVolume) -> Result<()> {
    let before = wanted.generation.saturating_sub(u64::from(!wanted.read_only));
    if volume.state == VolumeState::Ready && volume.generation == before {
        return Ok(());
    }
    Err(StoreError::Held(format!("another request changed volume `{}`; try again", volume.name)))
}

fn already_attached(name: &str, holder: &VolumeHolderRecord) -> StoreError {
    let does = if holder.read_only { "reads from" } else { "writes to" };
    StoreError::Held(format!(
        "volume `{name}` is attached to sandbox `{}`, which {does} it; delete that sandbox first{}",
        holder.sandbox,
        if holder.read_only { "" } else { ", or attach a clone of the volume" }
    ))
}

async fn find(write: &mut Write, id: &VolumeId) -> Result<VolumeRecord> {
    let text = format!("SELECT * FROM volumes WHERE id = $1{}", write.lock_clause());
    let row: Option<VolumeRow> =
        sqlx::query_as(AssertSqlSafe(text)).bind(id.as_str()).fetch_optional(write.conn()).await?;
    row.ok_or_else(|| unknown(id.as_str()))?.try_into()
}

async fn holders(conn: &mut AnyConnection, id: &VolumeId) -> Result<Vec<VolumeHolderRecord>> {
    let text = format!("{HOLDERS} WHERE h.volume_id = $1 ORDER BY h.sandbox_id");
    let rows: Vec<VolumeHolderRow> =
        sqlx::query_as(AssertSqlSafe(text)).bind(id.as_str()).fetch_all(conn).await?;
    records(rows)
}

async fn insert(conn: &mut AnyConnection, volume: &VolumeRecord) -> Result<()> {
    sqlx::query(
        "INSERT INTO volumes (id, workspace_id, name, host_id, state, generation, created_at_us, spec) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
    )
    .bind(volume.id.as_str())
    .bind(volume.workspace.as_str())
    .bind(&volume.name)
    .bind(volume.host.as_str())
    .bind(volume.state.as_str())
    .bind(signed(volume.generation))
    .bind(volume.created_at.as_microsecond())
    .bind(to_json("volume spec", &volume.spec)?)
    .execute(conn)
    .await?;
    Ok(())
}

async fn check_name(conn: &mut AnyConnection, workspace: &WorkspaceId, name: &str) -> Result<()> {
    let taken: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM volumes WHERE workspace_id = $1 AND name = $2")
        .bind(workspace.as_str())
        .bind(name)
        .fetch_one(conn)
        .await?;
    match taken {
        0 => Ok(()),
        _ => Err(StoreError::Held(format!("a volume `{name}` already exists; choose another name"))),
    }
}

async fn check_quota(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<()> {
    let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM volumes WHERE workspace_id = $1")
        .bind(workspace.as_str())
        .fetch_one(conn)
        .await?;
    if unsigned(count) >= VOLUMES_PER_WORKSPACE_MAX {
        return Err(StoreError::Quota { what: "volumes", limit: VOLUMES_PER_WORKSPACE_MAX });
    }
    Ok(())
}

fn unknown(name: &str) -> StoreError {
    StoreError::NotFound { what: "volume", id: name.chars().take(80).collect() }
}
