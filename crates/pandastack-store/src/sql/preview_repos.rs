//! Repositories of GitHub with previews: one row each, changed under the workspace's lock.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::WorkspaceId;
use pandastack_types::api::GithubRepoId;
use pandastack_types::limits::PREVIEW_REPOS_PER_WORKSPACE_MAX;
use sqlx::AnyConnection;

use super::rows::{from_json, time, times, unsigned};
use super::seal::SealedRow;
use super::sealed_columns::{Column, PREVIEW_REPOS};
use super::{SqlStore, Write, corrupt};
use crate::apps::PreviewRepoStore;
use crate::apps::record::PreviewRepoRecord;
use crate::{Durability, Result, StoreError};

const PUT: &str = "INSERT INTO preview_repos \
     (workspace_id, github_repo_id, repo_full_name, enabled_at_us, created_at_us, env) VALUES ($1, $2, $3, $4, $5, $6) \
     ON CONFLICT (workspace_id, github_repo_id) DO UPDATE SET repo_full_name = excluded.repo_full_name, \
     enabled_at_us = excluded.enabled_at_us, env = excluded.env";

#[derive(sqlx::FromRow)]
struct PreviewRepoRow {
    workspace_id: String,
    github_repo_id: i64,
    repo_full_name: Option<String>,
    enabled_at_us: Option<i64>,
    created_at_us: i64,
    env: String,
}

impl SealedRow for PreviewRepoRow {
    const COLUMN: &'static Column = &PREVIEW_REPOS;
    fn parts(&mut self) -> (&str, String, &mut String) {
        (&self.workspace_id, row_id(&self.workspace_id, self.github_repo_id), &mut self.env)
    }
}

fn row_id(workspace: &str, repo: i64) -> String {
    format!("{workspace}/{repo}")
}

impl TryFrom<PreviewRepoRow> for PreviewRepoRecord {
    type Error = StoreError;
    fn try_from(row: PreviewRepoRow) -> Result<Self> {
        Ok(Self {
            id: row.github_repo_id.try_into().map_err(corrupt("id of a repository"))?,
            full_name: row.repo_full_name,
            enabled_at: times(row.enabled_at_us)?,
            created_at: time(row.created_at_us)?,
            env: from_json("variables of a repository", &row.env)?,
        })
    }
}

#[async_trait]
impl PreviewRepoStore for SqlStore {
    async fn preview_repos(&self, workspace: &WorkspaceId) -> Result<Vec<PreviewRepoRecord>> {
        let rows: Vec<PreviewRepoRow> = sqlx::query_as(
            "SELECT * FROM preview_repos WHERE workspace_id = $1 ORDER BY created_at_us, github_repo_id",
        )
        .bind(workspace.as_str())
        .fetch_all(&self.readers)
        .await?;
        self.sealer.records(rows)
    }

    async fn change_preview_repo(
        &self,
        workspace: &WorkspaceId,
        id: GithubRepoId,
        at: Timestamp,
        change: &mut (dyn for<'a> FnMut(&'a mut PreviewRepoRecord) -> bool + Send),
    ) -> Result<PreviewRepoRecord> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(workspace).await?;
        let known = find(&mut write, workspace, id).await?;
        let is_new = known.is_none();
        let mut repo = known.unwrap_or_else(|| PreviewRepoRecord::new(id, at));
        if !change(&mut repo) {
            return Ok(repo);
        }
        if repo.is_needless() {
            delete(write.conn(), workspace, id).await?;
        } else {
            if is_new {
                check_room(write.conn(), workspace).await?;
            }
            put(&mut write, workspace, &repo).await?;
        }
        write.commit().await?;
        Ok(repo)
    }
}

async fn find(
    write: &mut Write,
    workspace: &WorkspaceId,
    id: GithubRepoId,
) -> Result<Option<PreviewRepoRecord>> {
    let row: Option<PreviewRepoRow> =
        sqlx::query_as("SELECT * FROM preview_repos WHERE workspace_id = $1 AND github_repo_id = $2")
            .bind(workspace.as_str())
            .bind(i64::from(id))
            .fetch_optional(write.conn())
            .await?;
    row.map(|row| write.sealer.record(row)).transpose()
}

async fn put(write: &mut Write, workspace: &WorkspaceId, repo: &PreviewRepoRecord) -> Result<()> {
    let id = row_id(workspace.as_str(), repo.id.into());
    let env = write.sealer.to_json(&PREVIEW_REPOS, workspace.as_str(), &id, &repo.env)?;
    sqlx::query(PUT)
        .bind(workspace.as_str())
        .bind(i64::from(repo.id))
        .bind(repo.full_name.as_deref())
        .bind(repo.enabled_at.map(Timestamp::as_microsecond))
        .bind(repo.created_at.as_microsecond())
        .bind(env)
        .execute(write.conn())
        .await?;
    Ok(())
}

async fn delete(conn: &mut AnyConnection, workspace: &WorkspaceId, id: GithubRepoId) -> Result<()> {
    sqlx::query("DELETE FROM preview_repos WHERE workspace_id = $1 AND github_repo_id = $2")
        .bind(workspace.as_str())
        .bind(i64::from(id))
        .execute(conn)
        .await?;
    Ok(())
}

/// Refuses one more than there may be.
async fn check_room(conn: &mut AnyConnection, workspace: &WorkspaceId) -> Result<()> {
    let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM preview_repos WHERE workspace_id = $1")
        .bind(workspace.as_str())
        .fetch_one(conn)
        .await?;
    if unsigned(count) >= PREVIEW_REPOS_PER_WORKSPACE_MAX {
        let what = "repositories with previews or preview variables";
        return Err(StoreError::Quota { what, limit: PREVIEW_REPOS_PER_WORKSPACE_MAX });
    }
    Ok(())
}
