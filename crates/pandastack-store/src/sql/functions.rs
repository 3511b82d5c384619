//! Functions, versions and bundles.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::DeployStatus;
use pandastack_types::limits::FUNCTIONS_PER_WORKSPACE_MAX;
use pandastack_types::{FunctionId, WorkspaceId};
use sqlx::AssertSqlSafe;

use super::quotas::admit_any;
use super::rows::{from_json, id, signed, time, unsigned};
use super::seal::{SealedRow, sealed_row};
use super::sealed_columns::{Column, FUNCTION_VERSIONS, FUNCTIONS};
use super::{SqlStore, Write};
use crate::functions::{FunctionRecord, FunctionStore, VersionRecord};
use crate::{Durability, Result, StoreError};

#[derive(sqlx::FromRow)]
struct FunctionRow {
    id: String,
    workspace_id: String,
    name: String,
    version: i64,
    created_at_us: i64,
    updated_at_us: i64,
    spec: String,
}

sealed_row!(FunctionRow, FUNCTIONS);

impl TryFrom<FunctionRow> for FunctionRecord {
    type Error = StoreError;
    fn try_from(row: FunctionRow) -> Result<Self> {
        Ok(Self {
            id: id(row.id)?,
            workspace: id(row.workspace_id)?,
            name: row.name,
            version: number(row.version),
            created_at: time(row.created_at_us)?,
            updated_at: time(row.updated_at_us)?,
            spec: from_json("function spec", &row.spec)?,
        })
    }
}

#[derive(sqlx::FromRow)]
struct VersionRow {
    function_id: String,
    version: i64,
    workspace_id: String,
    state: String,
    layer_key: Option<String>,
    created_at_us: i64,
    spec: String,
}

impl SealedRow for VersionRow {
    const COLUMN: &'static Column = &FUNCTION_VERSIONS;
    fn parts(&mut self) -> (&str, String, &mut String) {
        (&self.workspace_id, version_id(&self.function_id, self.version), &mut self.spec)
    }
}

impl TryFrom<VersionRow> for VersionRecord {
    type Error = StoreError;
    fn try_from(row: VersionRow) -> Result<Self> {
        let state = match row.state.as_str() {
            "ready" => DeployStatus::Ready,
            "failed" => DeployStatus::Failed,
            _ => DeployStatus::Building,
        };
        Ok(Self {
            function: id(row.function_id)?,
            version: number(row.version),
            workspace: id(row.workspace_id)?,
            state,
            layer_key: row.layer_key,
            created_at: time(row.created_at_us)?,
            spec: from_json("function version", &row.spec)?,
        })
    }
}

fn version_id(function: &str, version: i64) -> String {
    format!("{function}:{version}")
}

fn number(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn unknown(id: &FunctionId) -> StoreError {
    StoreError::NotFound { what: "function", id: id.to_string() }
}

const FUNCTION: &str =
    "SELECT id, workspace_id, name, version, created_at_us, updated_at_us, spec FROM functions";
const VERSION: &str = "SELECT function_id, version, workspace_id, state, layer_key, created_at_us, spec \
                       FROM function_versions";

impl SqlStore {
    /// Commits a change of a function. A change with an unknown outcome counts as well.
    async fn commit_function(&self, write: Write) -> Result<()> {
        let committed = write.commit().await;
        self.function_changes.fetch_add(1, Ordering::Release);
        committed
    }

    fn function_spec(&self, record: &FunctionRecord) -> Result<String> {
        self.sealer.to_json(&FUNCTIONS, record.workspace.as_str(), record.id.as_str(), &record.spec)
    }

    fn version_spec(&self, record: &VersionRecord, version: i64) -> Result<String> {
        let id = version_id(record.function.as_str(), version);
        self.sealer.to_json(&FUNCTION_VERSIONS, record.workspace.as_str(), &id, &record.spec)
    }

    async fn some_versions(&self, tail: &str, binds: &[&str]) -> Result<Vec<VersionRecord>> {
        let mut query = sqlx::query_as(AssertSqlSafe(format!("{VERSION} {tail}")));
        for bind in binds {
            query = query.bind((*bind).to_owned());
        }
        let rows: Vec<VersionRow> = query.fetch_all(&self.readers).await?;
        self.sealer.records(rows)
    }
}

#[async_trait]
impl FunctionStore for SqlStore {
    async fn insert_function(&self, record: &FunctionRecord) -> Result<()> {
        let spec = self.function_spec(record)?;
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&record.workspace).await?;
        admit_any(write.conn(), &record.workspace).await?;
        let (count, same): (i64, i64) = sqlx::query_as(
            "SELECT COUNT(*), CAST(COALESCE(SUM(CASE WHEN name = $2 THEN 1 ELSE 0 END), 0) AS BIGINT) \
             FROM functions WHERE workspace_id = $1",
        )
        .bind(record.workspace.as_str())
        .bind(&record.name)
        .fetch_one(write.conn())
        .await?;
        if same > 0 {
            return Err(StoreError::Exists { what: "a function", id: record.name.clone() });
        }
        if unsigned(count) >= FUNCTIONS_PER_WORKSPACE_MAX {
            return Err(StoreError::Quota { what: "functions", limit: FUNCTIONS_PER_WORKSPACE_MAX });
        }
        sqlx::query(
            "INSERT INTO functions (id, workspace_id, name, version, versions, created_at_us, updated_at_us, spec) \
             VALUES ($1, $2, $3, $4, 0, $5, $6, $7)",
        )
        .bind(record.id.as_str())
        .bind(record.workspace.as_str())
        .bind(&record.name)
        .bind(i64::from(record.version))
        .bind(record.created_at.as_microsecond())
        .bind(record.updated_at.as_microsecond())
        .bind(spec)
        .execute(write.conn())
        .await?;
        self.commit_function(write).await
    }

    async fn function(&self, workspace: Option<&WorkspaceId>, id: &FunctionId) -> Result<FunctionRecord> {
        let row: Option<FunctionRow> = sqlx::query_as(AssertSqlSafe(format!("{FUNCTION} WHERE id = $1")))
            .bind(id.as_str())
            .fetch_optional(&self.readers)
            .await?;
        let record: Option<FunctionRecord> = row.map(|row| self.sealer.record(row)).transpose()?;
        record.filter(|record| workspace.is_none_or(|w| *w == record.workspace)).ok_or_else(|| unknown(id))
    }

    async fn function_named(&self, workspace: &WorkspaceId, text: &str) -> Result<Option<FunctionRecord>> {
        let row: Option<FunctionRow> = sqlx::query_as(AssertSqlSafe(format!(
            "{FUNCTION} WHERE workspace_id = $1 AND (id = $2 OR name = $2) \
             ORDER BY CASE WHEN id = $2 THEN 0 ELSE 1 END LIMIT 1"
        )))
        .bind(workspace.as_str())
        .bind(text)
        .fetch_optional(&self.readers)
        .await?;
        row.map(|row| self.sealer.record(row)).transpose()
    }

    fn function_changes(&self) -> u64 {
        self.function_changes.load(Ordering::Acquire)
    }

    async fn functions(&self, workspace: Option<&WorkspaceId>) -> Result<Vec<FunctionRecord>> {
        let rows: Vec<FunctionRow> = sqlx::query_as(AssertSqlSafe(format!(
            "{FUNCTION} WHERE CAST($1 AS TEXT) IS NULL OR workspace_id = $1 ORDER BY name, id"
        )))
        .bind(workspace.map(WorkspaceId::as_str))
        .fetch_all(&self.readers)
        .await?;
        self.sealer.records(rows)
    }

    async fn update_function(&self, record: &FunctionRecord) -> Result<()> {
        let spec = self.function_spec(record)?;
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&record.workspace).await?;
        let other: Option<String> =
            sqlx::query_scalar("SELECT id FROM functions WHERE workspace_id = $1 AND name = $2 AND id <> $3")
                .bind(record.workspace.as_str())
                .bind(&record.name)
                .bind(record.id.as_str())
                .fetch_optional(write.conn())
                .await?;
        if other.is_some() {
            return Err(StoreError::Exists { what: "a function", id: record.name.clone() });
        }
        sqlx::query("UPDATE functions SET name = $1, updated_at_us = $2, spec = $3 WHERE id = $4")
            .bind(&record.name)
            .bind(record.updated_at.as_microsecond())
            .bind(spec)
            .bind(record.id.as_str())
            .execute(write.conn())
            .await?;
        self.commit_function(write).await
    }

    async fn call_version(&self, id: &FunctionId, version: u32, at: Timestamp) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("UPDATE functions SET version = $1, updated_at_us = $2 WHERE id = $3")
            .bind(i64::from(version))
            .bind(at.as_microsecond())
            .bind(id.as_str())
            .execute(write.conn())
            .await?;
        self.commit_function(write).await
    }

    async fn delete_function(&self, id: &FunctionId) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("DELETE FROM functions WHERE id = $1").bind(id.as_str()).execute(write.conn()).await?;
        self.commit_function(write).await
    }

    async fn insert_version(&self, record: &VersionRecord) -> Result<u32> {
        let mut write = self.write(Durability::Power).await?;
        let version: Option<i64> = sqlx::query_scalar(
            "UPDATE functions SET versions = versions + 1, updated_at_us = $1 WHERE id = $2 RETURNING versions",
        )
        .bind(record.created_at.as_microsecond())
        .bind(record.function.as_str())
        .fetch_optional(write.conn())
        .await?;
        let version = version.ok_or_else(|| unknown(&record.function))?;
        let spec = self.version_spec(record, version)?;
        sqlx::query(
            "INSERT INTO function_versions (function_id, version, workspace_id, state, layer_key, created_at_us, spec) \
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
        )
        .bind(record.function.as_str())
        .bind(version)
        .bind(record.workspace.as_str())
        .bind(record.state.as_str())
        .bind(record.layer_key.as_deref())
        .bind(record.created_at.as_microsecond())
        .bind(spec)
        .execute(write.conn())
        .await?;
        write.commit().await?;
        Ok(number(version))
    }

    async fn version(&self, function: &FunctionId, version: u32) -> Result<VersionRecord> {
        let row: Option<VersionRow> =
            sqlx::query_as(AssertSqlSafe(format!("{VERSION} WHERE function_id = $1 AND version = $2")))
                .bind(function.as_str())
                .bind(i64::from(version))
                .fetch_optional(&self.readers)
                .await?;
        let unknown = || StoreError::NotFound { what: "version", id: format!("{function}:{version}") };
        self.sealer.record(row.ok_or_else(unknown)?)
    }

    async fn versions(&self, function: &FunctionId) -> Result<Vec<VersionRecord>> {
        self.some_versions("WHERE function_id = $1 ORDER BY version DESC", &[function.as_str()]).await
    }

    async fn versions_building(&self) -> Result<Vec<VersionRecord>> {
        self.some_versions("WHERE state = 'building' ORDER BY created_at_us", &[]).await
    }

    async fn versions_with_layer(&self, workspace: &WorkspaceId, key: &str) -> Result<Vec<VersionRecord>> {
        let tail =
            "WHERE workspace_id = $1 AND layer_key = $2 AND state = 'ready' ORDER BY created_at_us DESC";
        self.some_versions(tail, &[workspace.as_str(), key]).await
    }

    async fn finish_version(&self, record: &VersionRecord, at: Timestamp) -> Result<()> {
        let spec = self.version_spec(record, i64::from(record.version))?;
        let mut write = self.write(Durability::Power).await?;
        sqlx::query(
            "UPDATE function_versions SET state = $1, layer_key = $2, spec = $3 \
             WHERE function_id = $4 AND version = $5",
        )
        .bind(record.state.as_str())
        .bind(record.layer_key.as_deref())
        .bind(spec)
        .bind(record.function.as_str())
        .bind(i64::from(record.version))
        .execute(write.conn())
        .await?;
        if record.state == DeployStatus::Ready {
            // A slow deploy that ends after a later one does not undo that.
            sqlx::query(
                "UPDATE functions SET version = $1, updated_at_us = $2 WHERE id = $3 AND version < $1",
            )
            .bind(i64::from(record.version))
            .bind(at.as_microsecond())
            .bind(record.function.as_str())
            .execute(write.conn())
            .await?;
        }
        self.commit_function(write).await
    }

    async fn delete_version(&self, function: &FunctionId, version: u32) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query("DELETE FROM function_versions WHERE function_id = $1 AND version = $2")
            .bind(function.as_str())
            .bind(i64::from(version))
            .execute(write.conn())
            .await?;
        write.commit().await
    }

    async fn put_bundle(
        &self,
        workspace: &WorkspaceId,
        sha256: &str,
        bytes: &[u8],
        at: Timestamp,
    ) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query(
            "INSERT INTO function_bundles (workspace_id, sha256, bytes, created_at_us) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (workspace_id, sha256) DO NOTHING",
        )
        .bind(workspace.as_str())
        .bind(sha256)
        .bind(bytes)
        .bind(signed(unsigned(at.as_microsecond())))
        .execute(write.conn())
        .await?;
        write.commit().await
    }

    async fn bundle(&self, workspace: &WorkspaceId, sha256: &str) -> Result<Vec<u8>> {
        let bytes: Option<Vec<u8>> =
            sqlx::query_scalar("SELECT bytes FROM function_bundles WHERE workspace_id = $1 AND sha256 = $2")
                .bind(workspace.as_str())
                .bind(sha256)
                .fetch_optional(&self.readers)
                .await?;
        bytes.ok_or_else(|| StoreError::NotFound { what: "bundle", id: sha256.to_owned() })
    }

    async fn prune_bundles(&self, workspace: &WorkspaceId) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        let named: Vec<String> =
            sqlx::query_scalar("SELECT spec FROM function_versions WHERE workspace_id = $1")
                .bind(workspace.as_str())
                .fetch_all(write.conn())
                .await?;
        let kept: Vec<String> =
            sqlx::query_scalar("SELECT sha256 FROM function_bundles WHERE workspace_id = $1")
                .bind(workspace.as_str())
                .fetch_all(write.conn())
                .await?;
        for sha256 in kept {
            if named.iter().any(|spec| spec.contains(&sha256)) {
                continue;
            }
            sqlx::query("DELETE FROM function_bundles WHERE workspace_id = $1 AND sha256 = $2")
                .bind(workspace.as_str())
                .bind(&sha256)
                .execute(write.conn())
                .await?;
        }
        write.commit().await
    }
}
