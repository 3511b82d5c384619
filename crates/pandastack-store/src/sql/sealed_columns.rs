//! Columns with secrets, and bringing their rows to the current generation of the join secret.
//!
//! Must hold: a row is replaced only if it is unchanged since it was read, so that sealing can run
//! while the row is used, can be interrupted at any time, and is safe to repeat.

use async_trait::async_trait;
use sqlx::{AnyConnection, AssertSqlSafe};

use super::seal::Sealer;
use super::{Backend, SqlStore};
use crate::installation::{SealedRows, SecretStore};
use crate::{Durability, Result};

/// Rows that are sealed in one transaction.
const BATCH_ROWS: i64 = 100;
/// Name of the row with the generation that every row is sealed with.
const SEALED_WITH: &str = "sealed_with";

/// A JSON column with secrets.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) what: &'static str,
    pub(super) table: &'static str,
    pub(super) column: &'static str,
    /// SQL that identifies a row.
    pub(super) id: &'static str,
    /// Paths of the secrets; an empty one is the whole column.
    pub(super) fields: &'static [&'static str],
}

const fn spec(what: &'static str, table: &'static str, fields: &'static [&'static str]) -> Column {
    Column { what, table, column: "spec", id: "id", fields }
}

pub(super) const APPS: Column =
    spec("app spec", "apps", &["git_token", "git_deploy_key", "webhook_secret", "env"]);
pub(super) const DEPLOYMENTS: Column = spec("deployment spec", "deployments", &["start.env"]);
pub(super) const FUNCTIONS: Column =
    spec("function spec", "functions", &["secrets", "env", "settings.dead_letter_url"]);
pub(super) const FUNCTION_VERSIONS: Column = Column {
    id: "function_id || ':' || CAST(version AS TEXT)",
    ..spec("function version", "function_versions", &["env"])
};
pub(super) const HOST_AUTHORITY: Column = spec("host authority", "host_authority", &["key"]);
pub(super) const PREVIEW_REPOS: Column = Column {
    column: "env",
    id: "workspace_id || '/' || CAST(github_repo_id AS TEXT)",
    ..spec("variables of a repository", "preview_repos", &[""])
};
pub(super) const SANDBOXES: Column = spec("sandbox spec", "sandboxes", &["env"]);
pub(super) const SCHEDULES: Column = spec("schedule", "schedules", &["target", "options.alert"]);
pub(super) const SNAPSHOTS: Column = spec("snapshot spec", "snapshots", &["env"]);
pub(super) const TEMPLATE_BUILDS: Column = spec("build spec", "template_builds", BUILD_SECRETS);
pub(super) const WEBHOOKS: Column = spec("webhook", "webhooks", &["url", "secret", "previous"]);

const BUILD_SECRETS: &[&str] =
    &["request.start.args", "start.args", "start.registries", "start.secrets", "recipe"];

const COLUMNS: [&Column; 11] = [
    &APPS,
    &DEPLOYMENTS,
    &FUNCTIONS,
    &FUNCTION_VERSIONS,
    &HOST_AUTHORITY,
    &PREVIEW_REPOS,
    &SANDBOXES,
    &SCHEDULES,
    &SNAPSHOTS,
    &TEMPLATE_BUILDS,
    &WEBHOOKS,
];

#[derive(sqlx::FromRow)]
struct Row {
    row_id: String,
    workspace_id: String,
    text: String,
}

/// A new text for a column, from the workspace, the row and its text; `None` where it stays.
type RowChange = fn(&Sealer, &'static Column, &str, &str, &str) -> Result<Option<String>>;

#[async_trait]
impl SecretStore for SqlStore {
    async fn seal_rows(&self) -> Result<SealedRows> {
        let generation = self.sealer.generation();
        let mut done = SealedRows::default();
        let before = self.sealed_with().await?;
        // Another control server uses a newer generation.
        if before.is_some_and(|before| before > generation) {
            return Ok(done);
        }
        // On PostgreSQL, a control server of an earlier version may have written since.
        if before == Some(generation) && matches!(self.backend, Backend::Sqlite(_)) {
            return Ok(done);
        }
        self.change_rows(&mut done, Sealer::resealed).await?;
        if before.is_none() && done.rows > 0 {
            // For example, the disk is too full for a second copy of the file. The next start
            // retries.
            if let Err(error) = self.forget_plain().await {
                tracing::warn!(%error, "cannot compact the database; free pages may still have secrets");
                return Ok(done);
            }
        }
        self.note_sealed_with(generation).await?;
        Ok(done)
    }

    async fn drop_unreadable(&self) -> Result<u64> {
        let mut done = SealedRows::default();
        self.change_rows(&mut done, Sealer::readable).await?;
        Ok(done.sealed)
    }

    async fn sealed_with(&self) -> Result<Option<u8>> {
        let text: Option<String> = sqlx::query_scalar("SELECT value FROM installation WHERE name = $1")
            .bind(SEALED_WITH)
            .fetch_optional(&self.readers)
            .await?;
        Ok(text.and_then(|text| text.parse().ok()))
    }
}

impl SqlStore {
    /// Applies a change to every row with secrets.
    async fn change_rows(&self, done: &mut SealedRows, change: RowChange) -> Result<()> {
        for column in COLUMNS {
            let mut after = String::new();
            while let Some(last) = self.change_batch(column, &after, done, change).await? {
                after = last;
            }
        }
        Ok(())
    }

    /// Changes the rows of a column after that one; returns the last that was read, `None` if that was all.
    async fn change_batch(
        &self,
        column: &'static Column,
        after: &str,
        done: &mut SealedRows,
        change: RowChange,
    ) -> Result<Option<String>> {
        let Column { table, column: name, id, .. } = *column;
        let batch = format!(
            "SELECT {id} AS row_id, workspace_id, {name} AS text FROM {table} WHERE {id} > $1 \
             ORDER BY {id} LIMIT $2"
        );
        let rows: Vec<Row> = sqlx::query_as(AssertSqlSafe(batch))
            .bind(after)
            .bind(BATCH_ROWS)
            .fetch_all(&self.readers)
            .await?;
        let mut changes = Vec::new();
        for row in &rows {
            if let Some(sealed) = change(&self.sealer, column, &row.workspace_id, &row.row_id, &row.text)? {
                changes.push((row, sealed));
            }
        }
        if !changes.is_empty() {
            let mut write = self.write(Durability::Power).await?;
            for (row, sealed) in changes {
                done.sealed += replace(write.conn(), column, row, &sealed).await?;
            }
            write.commit().await?;
        }
        done.rows += rows.len() as u64;
        Ok(rows.last().map(|row| row.row_id.clone()))
    }

    /// SQLite leaves the old content of changed rows in free pages and in its log.
    async fn forget_plain(&self) -> Result<()> {
        match &self.backend {
            Backend::Sqlite(sqlite) => sqlite.vacuum().await,
            Backend::Postgres(_) => Ok(()),
        }
    }

    async fn note_sealed_with(&self, generation: u8) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query(
            "INSERT INTO installation (name, value) VALUES ($1, $2) \
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        )
        .bind(SEALED_WITH)
        .bind(generation.to_string())
        .execute(write.conn())
        .await?;
        write.commit().await
    }
}

async fn replace(conn: &mut AnyConnection, column: &Column, row: &Row, sealed: &str) -> Result<u64> {
    let Column { table, column: name, id, .. } = *column;
    let update =
        format!("UPDATE {table} SET {name} = $1 WHERE {id} = $2 AND workspace_id = $3 AND {name} = $4");
    let done = sqlx::query(AssertSqlSafe(update))
        .bind(sealed)
        .bind(&row.row_id)
        .bind(&row.workspace_id)
        .bind(&row.text)
        .execute(conn)
        .await?;
    Ok(done.rows_affected())
}
