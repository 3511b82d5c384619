//! Templates, their builds, tags and logs.

use async_trait::async_trait;
use pandastack_types::limits::{
    TEMPLATE_BUILDS_IN_PROGRESS_MAX, TEMPLATE_BUILDS_LISTED_MAX, TEMPLATES_PER_WORKSPACE_MAX,
};
use pandastack_types::{BuildId, SnapshotId, TemplateId, WorkspaceId};
use sqlx::AnyConnection;

use super::quotas::admit_any;
use super::rows::{from_json, id, records, signed, time, to_json, unsigned};
use super::template_builds::{
    BuildRow, delete_all, files_snapshot, move_tag, set_tag, spec, version_snapshot,
};
use super::{SqlStore, Write};
use crate::templates::{
    BuildHead, BuildRecord, BuildState, LayerRecord, TagRecord, TemplateRecord, TemplateStore,
};
use crate::{Durability, Result, StoreError};

/// States of builds that have not ended.
const UNDER_WAY: &str = "state IN ('waiting', 'queued', 'running')";

#[derive(sqlx::FromRow)]
pub(super) struct TemplateRow {
    id: String,
    workspace_id: String,
    name: String,
    created_at_us: i64,
    spec: String,
}

impl TryFrom<TemplateRow> for TemplateRecord {
    type Error = StoreError;
    fn try_from(row: TemplateRow) -> Result<Self> {
        Ok(Self {
            id: id(row.id)?,
            workspace: id(row.workspace_id)?,
            name: row.name,
            created_at: time(row.created_at_us)?,
            spec: from_json("template spec", &row.spec)?,
        })
    }
}

#[derive(sqlx::FromRow)]
struct TagRow {
    template_id: String,
    tag: String,
    build_id: String,
    created_at_us: i64,
}

impl TryFrom<TagRow> for TagRecord {
    type Error = StoreError;
    fn try_from(row: TagRow) -> Result<Self> {
        Ok(Self {
            template: id(row.template_id)?,
            tag: row.tag,
            build: id(row.build_id)?,
            created_at: time(row.created_at_us)?,
        })
    }
}

#[async_trait]
impl TemplateStore for SqlStore {
    async fn ensure_template(&self, record: &TemplateRecord) -> Result<TemplateRecord> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&record.workspace).await?;
        if let Some(found) = template_named(write.conn(), &record.workspace, &record.name).await? {
            return Ok(found);
        }
        admit_any(write.conn(), &record.workspace).await?;
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM templates WHERE workspace_id = $1")
            .bind(record.workspace.as_str())
            .fetch_one(write.conn())
            .await?;
        if unsigned(count) >= TEMPLATES_PER_WORKSPACE_MAX {
            return Err(StoreError::Quota { what: "templates", limit: TEMPLATES_PER_WORKSPACE_MAX });
        }
        sqlx::query(
            "INSERT INTO templates (id, workspace_id, name, created_at_us, spec) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(record.id.as_str())
        .bind(record.workspace.as_str())
        .bind(&record.name)
        .bind(record.created_at.as_microsecond())
        .bind(to_json("template spec", &record.spec)?)
        .execute(write.conn())
        .await?;
        write.commit().await?;
        Ok(record.clone())
    }

    async fn template(&self, workspace: &WorkspaceId, name: &str) -> Result<Option<TemplateRecord>> {
        let mut connection = self.readers.acquire().await?;
        template_named(&mut connection, workspace, name).await
    }

    async fn templates(&self, workspace: &WorkspaceId) -> Result<Vec<TemplateRecord>> {
        let rows: Vec<TemplateRow> =
            sqlx::query_as("SELECT * FROM templates WHERE workspace_id = $1 ORDER BY name")
                .bind(workspace.as_str())
                .fetch_all(&self.readers)
                .await?;
        records(rows)
    }

    async fn update_template(&self, record: &TemplateRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("UPDATE templates SET spec = $1 WHERE id = $2")
            .bind(to_json("template spec", &record.spec)?)
            .bind(record.id.as_str())
            .execute(write.conn())
            .await?;
        write.commit().await
    }

    async fn delete_template(&self, id: &TemplateId) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        for statement in [
            "DELETE FROM template_build_log \
             WHERE build_id IN (SELECT id FROM template_builds WHERE template_id = $1)",
            "DELETE FROM template_builds WHERE template_id = $1",
            "DELETE FROM template_tags WHERE template_id = $1",
            "DELETE FROM template_readers WHERE template_id = $1",
            "DELETE FROM templates WHERE id = $1",
        ] {
            sqlx::query(statement).bind(id.as_str()).execute(write.conn()).await?;
        }
        write.commit().await
    }

    async fn delete_templates(&self, workspace: &WorkspaceId) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        delete_all(write.conn(), workspace).await?;
        write.commit().await
    }

    async fn insert_build(&self, record: &BuildRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&record.workspace).await?;
        admit_any(write.conn(), &record.workspace).await?;
        let counted = "SELECT COUNT(*) FROM template_builds WHERE workspace_id = $1 AND ";
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("{counted}{UNDER_WAY}")))
            .bind(record.workspace.as_str())
            .fetch_one(write.conn())
            .await?;
        if unsigned(count) >= TEMPLATE_BUILDS_IN_PROGRESS_MAX && record.state.is_in_progress() {
            let what = "template builds in progress";
            return Err(StoreError::Quota { what, limit: TEMPLATE_BUILDS_IN_PROGRESS_MAX });
        }
        sqlx::query(
            "INSERT INTO template_builds \
             (id, workspace_id, template_id, state, created_at_us, spec, snapshot_id, files_snapshot_id) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(record.id.as_str())
        .bind(record.workspace.as_str())
        .bind(record.template.as_str())
        .bind(record.state.as_str())
        .bind(record.created_at.as_microsecond())
        .bind(spec(&write.sealer, record)?)
        .bind(version_snapshot(record))
        .bind(files_snapshot(record))
        .execute(write.conn())
        .await?;
        write.commit().await
    }

    async fn build(&self, workspace: &WorkspaceId, id: &BuildId) -> Result<BuildRecord> {
        let row: Option<BuildRow> =
            sqlx::query_as("SELECT * FROM template_builds WHERE id = $1 AND workspace_id = $2")
                .bind(id.as_str())
                .bind(workspace.as_str())
                .fetch_optional(&self.readers)
                .await?;
        let unknown = || StoreError::NotFound { what: "build", id: id.to_string() };
        self.sealer.record(row.ok_or_else(unknown)?)
    }

    async fn builds(&self, workspace: &WorkspaceId) -> Result<Vec<BuildRecord>> {
        let rows: Vec<BuildRow> = sqlx::query_as(
            "SELECT * FROM template_builds WHERE workspace_id = $1 ORDER BY created_at_us DESC, id LIMIT $2",
        )
        .bind(workspace.as_str())
        .bind(signed(TEMPLATE_BUILDS_LISTED_MAX))
        .fetch_all(&self.readers)
        .await?;
        self.sealer.records(rows)
    }

    async fn build_heads(&self, workspace: &WorkspaceId) -> Result<Vec<BuildHead>> {
        self.list_build_heads(workspace).await
    }

    async fn template_of_snapshot(
        &self,
        workspace: &WorkspaceId,
        snapshot: &SnapshotId,
    ) -> Result<Option<String>> {
        self.find_template_of_snapshot(workspace, snapshot).await
    }

    async fn builds_in_progress(&self) -> Result<Vec<BuildRecord>> {
        let statement = format!("SELECT * FROM template_builds WHERE {UNDER_WAY} ORDER BY created_at_us, id");
        let rows: Vec<BuildRow> =
            sqlx::query_as(sqlx::AssertSqlSafe(statement)).fetch_all(&self.readers).await?;
        self.sealer.records(rows)
    }

    async fn put_build(&self, record: &BuildRecord, from: BuildState) -> Result<bool> {
        let mut write = self.write(Durability::Power).await?;
        let written = put(&mut write, record, from).await?;
        write.commit().await?;
        Ok(written)
    }

    async fn publish_build(&self, record: &BuildRecord, from: BuildState, tags: &[String]) -> Result<bool> {
        let mut write = self.write(Durability::Power).await?;
        let written = put(&mut write, record, from).await?;
        if written {
            let at = record.spec.ended_at.unwrap_or(record.created_at);
            for tag in record.published_tags(tags) {
                match &record.spec.rebuild_of {
                    Some(before) => move_tag(write.conn(), record, tag, before, at).await?,
                    None => set_tag(write.conn(), &record.template, tag, &record.id, at).await?,
                }
            }
        }
        write.commit().await?;
        Ok(written)
    }

    async fn delete_build(&self, id: &BuildId) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        for statement in [
            "DELETE FROM template_build_log WHERE build_id = $1",
            "DELETE FROM template_tags WHERE build_id = $1",
            "DELETE FROM template_builds WHERE id = $1",
        ] {
            sqlx::query(statement).bind(id.as_str()).execute(write.conn()).await?;
        }
        write.commit().await
    }

    async fn tagged_build(&self, template: &TemplateId, tag: &str) -> Result<Option<BuildRecord>> {
        let row: Option<BuildRow> = sqlx::query_as(
            "SELECT template_builds.* FROM template_builds \
             JOIN template_tags ON template_tags.build_id = template_builds.id \
             WHERE template_tags.template_id = $1 AND template_tags.tag = $2",
        )
        .bind(template.as_str())
        .bind(tag)
        .fetch_optional(&self.readers)
        .await?;
        row.map(|row| self.sealer.record(row)).transpose()
    }

    async fn tags(&self, template: &TemplateId) -> Result<Vec<TagRecord>> {
        let rows: Vec<TagRow> =
            sqlx::query_as("SELECT * FROM template_tags WHERE template_id = $1 ORDER BY tag")
                .bind(template.as_str())
                .fetch_all(&self.readers)
                .await?;
        records(rows)
    }

    async fn set_tags(&self, tags: &[TagRecord]) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        for tag in tags {
            set_tag(write.conn(), &tag.template, &tag.tag, &tag.build, tag.created_at).await?;
        }
        write.commit().await
    }

    async fn delete_tag(&self, template: &TemplateId, tag: &str) -> Result<bool> {
        let mut write = self.write(Durability::Power).await?;
        let done = sqlx::query("DELETE FROM template_tags WHERE template_id = $1 AND tag = $2")
            .bind(template.as_str())
            .bind(tag)
            .execute(write.conn())
            .await?;
        write.commit().await?;
        Ok(done.rows_affected() > 0)
    }

    async fn build_log(&self, id: &BuildId, first: u64, limit: u32) -> Result<Vec<String>> {
        self.read_build_log(id, first, limit).await
    }

    async fn count_build_log(&self, id: &BuildId) -> Result<u64> {
        self.count_log_lines(id).await
    }

    async fn append_build_log(&self, id: &BuildId, first: u64, lines: &[String]) -> Result<()> {
        self.write_build_log(id, first, lines).await
    }

    async fn layer(&self, workspace: &WorkspaceId, key: &str) -> Result<Option<LayerRecord>> {
        self.find_layer(workspace, key).await
    }

    async fn put_layer(&self, layer: &LayerRecord) -> Result<()> {
        self.write_layer(layer).await
    }

    async fn layers(&self, workspace: &WorkspaceId) -> Result<Vec<LayerRecord>> {
        self.list_layers(workspace).await
    }

    async fn delete_layer(&self, workspace: &WorkspaceId, key: &str) -> Result<()> {
        self.remove_layer(workspace, key).await
    }

    async fn template_workspaces(&self) -> Result<Vec<WorkspaceId>> {
        let ids: Vec<String> = sqlx::query_scalar(
            "SELECT workspace_id FROM templates UNION SELECT workspace_id FROM template_layers",
        )
        .fetch_all(&self.readers)
        .await?;
        ids.into_iter().map(id).collect()
    }
}

async fn template_named(
    conn: &mut AnyConnection,
    workspace: &WorkspaceId,
    name: &str,
) -> Result<Option<TemplateRecord>> {
    let row: Option<TemplateRow> =
        sqlx::query_as("SELECT * FROM templates WHERE workspace_id = $1 AND name = $2")
            .bind(workspace.as_str())
            .bind(name)
            .fetch_optional(conn)
            .await?;
    row.map(TemplateRecord::try_from).transpose()
}

async fn put(write: &mut Write, record: &BuildRecord, from: BuildState) -> Result<bool> {
    let done = sqlx::query(
        "UPDATE template_builds SET state = $1, spec = $2, snapshot_id = $3, files_snapshot_id = $4 \
         WHERE id = $5 AND state = $6",
    )
    .bind(record.state.as_str())
    .bind(spec(&write.sealer, record)?)
    .bind(version_snapshot(record))
    .bind(files_snapshot(record))
    .bind(record.id.as_str())
    .bind(from.as_str())
    .execute(write.conn())
    .await?;
    Ok(done.rows_affected() > 0)
}
