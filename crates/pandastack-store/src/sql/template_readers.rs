//! Sharing of templates: a row for each other workspace that may use a template.

use async_trait::async_trait;
use pandastack_types::api::TemplateSharing;
use pandastack_types::limits::SHARED_TEMPLATES_LISTED_MAX;
use pandastack_types::{TemplateId, WorkspaceId};
use sqlx::AnyConnection;

use super::SqlStore;
use super::rows::{id, records, signed};
use super::templates::TemplateRow;
use crate::template_readers::TemplateReaderStore;
use crate::templates::TemplateRecord;
use crate::{Durability, Result, StoreError};

/// The reader that means all workspaces. No workspace has this name.
const EVERYBODY: &str = "*";

/// Selects templates, joined with their workspaces for `workspaces.state`.
const WITH_OWNERS: &str = "SELECT templates.* FROM templates \
     JOIN workspaces ON workspaces.id = templates.workspace_id";

#[async_trait]
impl TemplateReaderStore for SqlStore {
    async fn readable_template(
        &self,
        reader: &WorkspaceId,
        owner: &WorkspaceId,
        name: &str,
    ) -> Result<Option<TemplateRecord>> {
        let statement = format!(
            "{WITH_OWNERS} WHERE templates.workspace_id = $2 AND templates.name = $3 \
             AND (templates.workspace_id = $1 OR (workspaces.state = 'active' AND EXISTS \
             (SELECT 1 FROM template_readers WHERE template_readers.template_id = templates.id \
             AND template_readers.reader IN ($1, $4))))"
        );
        let row: Option<TemplateRow> = sqlx::query_as(sqlx::AssertSqlSafe(statement))
            .bind(reader.as_str())
            .bind(owner.as_str())
            .bind(name)
            .bind(EVERYBODY)
            .fetch_optional(&self.readers)
            .await?;
        row.map(TemplateRecord::try_from).transpose()
    }

    async fn shared_templates(&self, reader: &WorkspaceId) -> Result<Vec<TemplateRecord>> {
        let statement = format!(
            "{WITH_OWNERS} JOIN template_readers ON template_readers.template_id = templates.id \
             WHERE template_readers.reader = $1 AND templates.workspace_id <> $1 \
             AND workspaces.state = 'active' ORDER BY templates.workspace_id, templates.name LIMIT $2"
        );
        let rows: Vec<TemplateRow> = sqlx::query_as(sqlx::AssertSqlSafe(statement))
            .bind(reader.as_str())
            .bind(signed(SHARED_TEMPLATES_LISTED_MAX))
            .fetch_all(&self.readers)
            .await?;
        records(rows)
    }

    async fn template_sharing(&self, template: &TemplateId) -> Result<TemplateSharing> {
        let readers: Vec<String> =
            sqlx::query_scalar("SELECT reader FROM template_readers WHERE template_id = $1 ORDER BY reader")
                .bind(template.as_str())
                .fetch_all(&self.readers)
                .await?;
        let public = readers.iter().any(|reader| reader == EVERYBODY);
        let others = readers.into_iter().filter(|reader| reader != EVERYBODY);
        Ok(TemplateSharing { public, workspaces: others.map(id).collect::<Result<_>>()? })
    }

    async fn set_template_sharing(&self, template: &TemplateRecord, sharing: &TemplateSharing) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&template.workspace).await?;
        let known: Option<String> = sqlx::query_scalar("SELECT id FROM templates WHERE id = $1")
            .bind(template.id.as_str())
            .fetch_optional(write.conn())
            .await?;
        if known.is_none() {
            return Err(StoreError::NotFound { what: "template", id: template.name.clone() });
        }
        sqlx::query("DELETE FROM template_readers WHERE template_id = $1")
            .bind(template.id.as_str())
            .execute(write.conn())
            .await?;
        let everybody = sharing.public.then_some(EVERYBODY);
        for reader in sharing.workspaces.iter().map(WorkspaceId::as_str).chain(everybody) {
            insert(write.conn(), &template.id, reader).await?;
        }
        write.commit().await
    }
}

async fn insert(conn: &mut AnyConnection, template: &TemplateId, reader: &str) -> Result<()> {
    sqlx::query("INSERT INTO template_readers (template_id, reader) VALUES ($1, $2) ON CONFLICT DO NOTHING")
        .bind(template.as_str())
        .bind(reader)
        .execute(conn)
        .await?;
    Ok(())
}
