//! Settings of workspaces: one JSON value per row, changed under the workspace's lock.

use async_trait::async_trait;
use pandastack_types::WorkspaceId;
use pandastack_types::api::{PatchWorkspace, WorkspaceSettings};
use sqlx::AnyConnection;

use super::rows::to_json;
use super::{SqlStore, corrupt};
use crate::workspaces::WorkspaceStore;
use crate::{Durability, Result};

#[async_trait]
impl WorkspaceStore for SqlStore {
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

async fn read(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<WorkspaceSettings> {
    let text: Option<Option<String>> = sqlx::query_scalar("SELECT settings FROM workspaces WHERE id = $1")
        .bind(workspace.as_str())
        .fetch_optional(conn)
        .await?;
    let settings = text.flatten().map(|text| serde_json::from_str(&text).map_err(corrupt("settings")));
    Ok(settings.transpose()?.unwrap_or_default())
}
