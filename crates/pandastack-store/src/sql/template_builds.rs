//! Rows of builds, their tags and logs, and the end of everything that a workspace built.

use jiff::Timestamp;
use pandastack_types::limits::TAGS_PER_TEMPLATE_MAX;
use pandastack_types::{BuildId, SnapshotId, TemplateId, WorkspaceId};
use sqlx::AnyConnection;

use super::SqlStore;
use super::rows::{from_json, id, records, signed, time, unsigned};
use super::seal::{Sealer, sealed_row};
use super::sealed_columns::TEMPLATE_BUILDS;
use crate::templates::{BuildHead, BuildRecord, BuildState};
use crate::{Durability, Result, StoreError};

#[derive(sqlx::FromRow)]
struct HeadRow {
    id: String,
    template_id: String,
    state: String,
    snapshot_id: Option<String>,
    files_snapshot_id: Option<String>,
}

impl TryFrom<HeadRow> for BuildHead {
    type Error = StoreError;
    fn try_from(row: HeadRow) -> Result<Self> {
        Ok(Self {
            id: id(row.id)?,
            template: id(row.template_id)?,
            state: state(&row.state)?,
            snapshot: row.snapshot_id.map(id).transpose()?,
            files: row.files_snapshot_id.map(id).transpose()?,
        })
    }
}

/// A row of `template_builds`.
#[derive(sqlx::FromRow)]
pub(super) struct BuildRow {
    id: String,
    workspace_id: String,
    template_id: String,
    state: String,
    created_at_us: i64,
    spec: String,
}

sealed_row!(BuildRow, TEMPLATE_BUILDS);

impl TryFrom<BuildRow> for BuildRecord {
    type Error = StoreError;
    fn try_from(row: BuildRow) -> Result<Self> {
        Ok(Self {
            id: id(row.id)?,
            workspace: id(row.workspace_id)?,
            template: id(row.template_id)?,
            state: state(&row.state)?,
            created_at: time(row.created_at_us)?,
            spec: from_json("build spec", &row.spec)?,
        })
    }
}

/// The specification as its column keeps it.
pub(super) fn spec(sealer: &Sealer, record: &BuildRecord) -> Result<String> {
    sealer.to_json(&TEMPLATE_BUILDS, record.workspace.as_str(), record.id.as_str(), &record.spec)
}

/// The state of that name.
fn state(text: &str) -> Result<BuildState> {
    BuildState::parse(text).ok_or_else(|| StoreError::Corrupt {
        what: "build state",
        source: format!("`{text}` is not a state").into(),
    })
}

/// The snapshot of a build that is a version of its template.
pub(super) fn version_snapshot(record: &BuildRecord) -> Option<&str> {
    let snapshot = record.spec.snapshot.as_ref().filter(|_| record.state == BuildState::Done);
    snapshot.map(SnapshotId::as_str)
}

/// The snapshot with the files of a build.
pub(super) fn files_snapshot(record: &BuildRecord) -> Option<&str> {
    record.spec.files.as_ref().map(SnapshotId::as_str)
}

/// Deletes templates, builds, logs, tags and layers of a workspace.
pub(super) async fn delete_all(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<()> {
    for statement in [
        "DELETE FROM template_build_log \
         WHERE build_id IN (SELECT id FROM template_builds WHERE workspace_id = $1)",
        "DELETE FROM template_tags WHERE template_id IN (SELECT id FROM templates WHERE workspace_id = $1)",
        "DELETE FROM template_readers \
         WHERE template_id IN (SELECT id FROM templates WHERE workspace_id = $1)",
        "DELETE FROM template_readers WHERE reader = $1",
        "DELETE FROM template_builds WHERE workspace_id = $1",
        "DELETE FROM template_layers WHERE workspace_id = $1",
        "DELETE FROM templates WHERE workspace_id = $1",
    ] {
        sqlx::query(statement).bind(workspace.as_str()).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Points a tag to a build, if it means another one.
pub(super) async fn move_tag(
    conn: &mut AnyConnection,
    build: &BuildRecord,
    tag: &str,
    before: &BuildId,
    at: Timestamp,
) -> Result<()> {
    sqlx::query(
        "UPDATE template_tags SET build_id = $1, created_at_us = $2 \
         WHERE template_id = $3 AND tag = $4 AND build_id = $5",
    )
    .bind(build.id.as_str())
    .bind(at.as_microsecond())
    .bind(build.template.as_str())
    .bind(tag)
    .bind(before.as_str())
    .execute(conn)
    .await?;
    Ok(())
}

/// Points a tag to a build.
pub(super) async fn set_tag(
    conn: &mut AnyConnection,
    template: &TemplateId,
    tag: &str,
    build: &BuildId,
    at: Timestamp,
) -> Result<()> {
    let count: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM template_tags WHERE template_id = $1 AND tag <> $2")
            .bind(template.as_str())
            .bind(tag)
            .fetch_one(&mut *conn)
            .await?;
    if unsigned(count) >= TAGS_PER_TEMPLATE_MAX {
        return Err(StoreError::Quota { what: "tags per template", limit: TAGS_PER_TEMPLATE_MAX });
    }
    sqlx::query(
        "INSERT INTO template_tags (template_id, tag, build_id, created_at_us) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (template_id, tag) DO UPDATE SET build_id = $3, created_at_us = $4",
    )
    .bind(template.as_str())
    .bind(tag)
    .bind(build.as_str())
    .bind(at.as_microsecond())
    .execute(conn)
    .await?;
    Ok(())
}

impl SqlStore {
    pub(super) async fn list_build_heads(&self, workspace: &WorkspaceId) -> Result<Vec<BuildHead>> {
        let rows: Vec<HeadRow> = sqlx::query_as(
            "SELECT id, template_id, state, snapshot_id, files_snapshot_id FROM template_builds \
             WHERE workspace_id = $1 ORDER BY created_at_us DESC, id",
        )
        .bind(workspace.as_str())
        .fetch_all(&self.readers)
        .await?;
        records(rows)
    }

    pub(super) async fn find_template_of_snapshot(
        &self,
        workspace: &WorkspaceId,
        snapshot: &SnapshotId,
    ) -> Result<Option<String>> {
        let name = sqlx::query_scalar(
            "SELECT templates.name FROM templates \
             JOIN template_builds ON template_builds.template_id = templates.id \
             WHERE template_builds.snapshot_id = $1 AND templates.workspace_id = $2 LIMIT 1",
        );
        Ok(name.bind(snapshot.as_str()).bind(workspace.as_str()).fetch_optional(&self.readers).await?)
    }

    pub(super) async fn read_build_log(&self, id: &BuildId, first: u64, limit: u32) -> Result<Vec<String>> {
        let lines = sqlx::query_scalar(
            "SELECT line FROM template_build_log WHERE build_id = $1 AND line_number >= $2 \
             ORDER BY line_number LIMIT $3",
        );
        Ok(lines
            .bind(id.as_str())
            .bind(signed(first))
            .bind(i64::from(limit))
            .fetch_all(&self.readers)
            .await?)
    }

    pub(super) async fn count_log_lines(&self, id: &BuildId) -> Result<u64> {
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM template_build_log WHERE build_id = $1")
            .bind(id.as_str())
            .fetch_one(&self.readers)
            .await?;
        Ok(unsigned(count))
    }

    pub(super) async fn write_build_log(&self, id: &BuildId, first: u64, lines: &[String]) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        for (number, line) in (first..).zip(lines) {
            sqlx::query(
                "INSERT INTO template_build_log (build_id, line_number, line) VALUES ($1, $2, $3) \
                 ON CONFLICT DO NOTHING",
            )
            .bind(id.as_str())
            .bind(signed(number))
            .bind(line)
            .execute(write.conn())
            .await?;
        }
        write.commit().await
    }
}
