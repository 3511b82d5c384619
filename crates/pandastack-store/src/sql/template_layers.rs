//! Layers of template builds.

use pandastack_types::WorkspaceId;

use super::SqlStore;
use super::rows::{from_json, id, records, time, to_json};
use crate::templates::LayerRecord;
use crate::{Durability, Result, StoreError};

#[derive(sqlx::FromRow)]
struct LayerRow {
    workspace_id: String,
    key: String,
    snapshot_id: String,
    used_at_us: i64,
    config: String,
}

impl TryFrom<LayerRow> for LayerRecord {
    type Error = StoreError;
    fn try_from(row: LayerRow) -> Result<Self> {
        Ok(Self {
            workspace: id(row.workspace_id)?,
            key: row.key,
            snapshot: id(row.snapshot_id)?,
            used_at: time(row.used_at_us)?,
            config: from_json("layer config", &row.config)?,
        })
    }
}

impl SqlStore {
    pub(super) async fn find_layer(&self, workspace: &WorkspaceId, key: &str) -> Result<Option<LayerRecord>> {
        let row: Option<LayerRow> =
            sqlx::query_as("SELECT * FROM template_layers WHERE workspace_id = $1 AND key = $2")
                .bind(workspace.as_str())
                .bind(key)
                .fetch_optional(&self.readers)
                .await?;
        row.map(LayerRecord::try_from).transpose()
    }

    pub(super) async fn write_layer(&self, layer: &LayerRecord) -> Result<()> {
        // Losing one costs time and nothing else.
        let mut write = self.write(Durability::Process).await?;
        sqlx::query(
            "INSERT INTO template_layers (workspace_id, key, snapshot_id, used_at_us, config) \
             VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (workspace_id, key) DO UPDATE SET snapshot_id = $3, used_at_us = $4, config = $5",
        )
        .bind(layer.workspace.as_str())
        .bind(&layer.key)
        .bind(layer.snapshot.as_str())
        .bind(layer.used_at.as_microsecond())
        .bind(to_json("layer config", &layer.config)?)
        .execute(write.conn())
        .await?;
        write.commit().await
    }

    pub(super) async fn list_layers(&self, workspace: &WorkspaceId) -> Result<Vec<LayerRecord>> {
        let rows: Vec<LayerRow> = sqlx::query_as(
            "SELECT * FROM template_layers WHERE workspace_id = $1 ORDER BY used_at_us DESC, key",
        )
        .bind(workspace.as_str())
        .fetch_all(&self.readers)
        .await?;
        records(rows)
    }

    pub(super) async fn remove_layer(&self, workspace: &WorkspaceId, key: &str) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        sqlx::query("DELETE FROM template_layers WHERE workspace_id = $1 AND key = $2")
            .bind(workspace.as_str())
            .bind(key)
            .execute(write.conn())
            .await?;
        write.commit().await
    }
}
