//! Managed databases.

use async_trait::async_trait;
use pandastack_types::api::DatabaseDrill;
use pandastack_types::limits::DATABASES_PER_WORKSPACE_MAX;
use pandastack_types::{DatabaseId, SandboxId, WorkspaceId};

use super::quotas::admit_any;
use super::rows::{from_json, id, records, time, to_json, unsigned};
use super::{SqlStore, names};
use crate::databases::{DatabaseRecord, DatabaseState, DatabaseStore};
use crate::names::Named;
use crate::{Durability, Result, StoreError};

#[derive(sqlx::FromRow)]
struct DatabaseRow {
    id: String,
    workspace_id: String,
    state: String,
    sandbox_id: Option<String>,
    created_at_us: i64,
    spec: String,
    drill: Option<String>,
}

impl TryFrom<DatabaseRow> for DatabaseRecord {
    type Error = StoreError;
    fn try_from(row: DatabaseRow) -> Result<Self> {
        let state = DatabaseState::parse(&row.state).ok_or_else(|| StoreError::Corrupt {
            what: "database state",
            source: format!("`{}` is not a state", row.state).into(),
        })?;
        Ok(Self {
            id: id(row.id)?,
            workspace: id(row.workspace_id)?,
            state,
            sandbox: row.sandbox_id.map(id).transpose()?,
            created_at: time(row.created_at_us)?,
            drill: row.drill.map(|drill| from_json("database drill", &drill)).transpose()?,
            spec: from_json("database spec", &row.spec)?,
        })
    }
}

#[async_trait]
impl DatabaseStore for SqlStore {
    async fn insert_database(&self, record: &DatabaseRecord) -> Result<()> {
        let spec = to_json("database spec", &record.spec)?;
        // The creation of the machine waits for the sync; a row lost before that has no machine.
        let mut write = self.write(Durability::Process).await?;
        write.lock_workspace(&record.workspace).await?;
        admit_any(write.conn(), &record.workspace).await?;
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM databases WHERE workspace_id = $1")
            .bind(record.workspace.as_str())
            .fetch_one(write.conn())
            .await?;
        if unsigned(count) >= DATABASES_PER_WORKSPACE_MAX {
            return Err(StoreError::Quota { what: "databases", limit: DATABASES_PER_WORKSPACE_MAX });
        }
        let name = record.spec.name.as_deref();
        names::check_free(&mut write, Named::Database, &record.workspace, name).await?;
        sqlx::query(
            "INSERT INTO databases (id, workspace_id, state, sandbox_id, created_at_us, spec, name) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(record.id.as_str())
        .bind(record.workspace.as_str())
        .bind(record.state.as_str())
        .bind(record.sandbox.as_ref().map(SandboxId::as_str))
        .bind(record.created_at.as_microsecond())
        .bind(spec)
        .bind(name)
        .execute(write.conn())
        .await?;
        write.commit().await
    }

    async fn database(&self, workspace: Option<&WorkspaceId>, id: &DatabaseId) -> Result<DatabaseRecord> {
        let row: Option<DatabaseRow> = sqlx::query_as("SELECT * FROM databases WHERE id = $1")
            .bind(id.as_str())
            .fetch_optional(&self.readers)
            .await?;
        let record = row.map(DatabaseRecord::try_from).transpose()?;
        let known = record.filter(|record| workspace.is_none_or(|w| *w == record.workspace));
        known.ok_or_else(|| StoreError::NotFound { what: "database", id: id.to_string() })
    }

    async fn databases(&self, workspace: &WorkspaceId) -> Result<Vec<DatabaseRecord>> {
        let rows: Vec<DatabaseRow> =
            sqlx::query_as("SELECT * FROM databases WHERE workspace_id = $1 ORDER BY created_at_us, id")
                .bind(workspace.as_str())
                .fetch_all(&self.readers)
                .await?;
        records(rows)
    }

    async fn databases_in(&self, state: DatabaseState) -> Result<Vec<DatabaseRecord>> {
        let rows: Vec<DatabaseRow> =
            sqlx::query_as("SELECT * FROM databases WHERE state = $1 ORDER BY created_at_us, id")
                .bind(state.as_str())
                .fetch_all(&self.readers)
                .await?;
        records(rows)
    }

    async fn update_database(&self, record: &DatabaseRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        let done = sqlx::query("UPDATE databases SET state = $1, sandbox_id = $2, spec = $3 WHERE id = $4")
            .bind(record.state.as_str())
            .bind(record.sandbox.as_ref().map(SandboxId::as_str))
            .bind(to_json("database spec", &record.spec)?)
            .bind(record.id.as_str())
            .execute(write.conn())
            .await?;
        if done.rows_affected() == 0 {
            return Err(StoreError::NotFound { what: "database", id: record.id.to_string() });
        }
        write.commit().await
    }

    async fn note_drill(&self, id: &DatabaseId, drill: &DatabaseDrill) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        let done = sqlx::query("UPDATE databases SET drill = $1 WHERE id = $2")
            .bind(to_json("database drill", drill)?)
            .bind(id.as_str())
            .execute(write.conn())
            .await?;
        if done.rows_affected() == 0 {
            return Err(StoreError::NotFound { what: "database", id: id.to_string() });
        }
        write.commit().await
    }

    async fn delete_database(&self, id: &DatabaseId) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("DELETE FROM databases WHERE id = $1").bind(id.as_str()).execute(write.conn()).await?;
        write.commit().await
    }
}
