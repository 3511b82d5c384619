//! Apps, their deployments and logs, names and deliveries.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::DeploymentStatus;
use pandastack_types::limits::{APPS_PER_WORKSPACE_MAX, DOMAINS_PER_APP_MAX, PREVIEWS_PER_APP_MAX};
use pandastack_types::{AppId, DeploymentId, WorkspaceId};

use super::app_rows::{AppRow, DeploymentRow, DomainRow, UnreportedRow};
use super::quotas::admit_any;
use super::rows::{id, records, signed, unsigned};
use super::sealed_columns::APPS;
use super::{SqlStore, deployments};
use crate::apps::record::{AppRecord, DeploymentRecord, DomainRecord};
use crate::apps::{AppStore, UnreportedDeployment};
use crate::{Durability, Result, StoreError};

const UNDER_WAY: &str = "SELECT * FROM deployments WHERE status IN ('queued', 'building', 'deploying') \
     AND workspace_id NOT IN (SELECT id FROM workspaces WHERE state = 'suspended') \
     ORDER BY created_at_us, id";

#[async_trait]
impl AppStore for SqlStore {
    async fn insert_app(&self, app: &AppRecord) -> Result<()> {
        let spec = self.sealer.to_json(&APPS, app.workspace.as_str(), app.id.as_str(), &app.spec)?;
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&app.workspace).await?;
        admit_any(write.conn(), &app.workspace).await?;
        check_room(write.conn(), app).await?;
        let added = sqlx::query(
            "INSERT INTO apps (id, workspace_id, name, revision, active_deployment_id, created_at_us, updated_at_us, spec, preview_of) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (name) DO NOTHING",
        )
        .bind(app.id.as_str())
        .bind(app.workspace.as_str())
        .bind(&app.name)
        .bind(app.revision)
        .bind(app.active.as_ref().map(DeploymentId::as_str))
        .bind(app.created_at.as_microsecond())
        .bind(app.updated_at.as_microsecond())
        .bind(spec)
        .bind(app.preview_of.as_ref().map(AppId::as_str))
        .execute(write.conn())
        .await?;
        if added.rows_affected() == 0 {
            return Err(StoreError::Exists { what: "an app", id: app.name.clone() });
        }
        write.commit().await
    }

    async fn app(&self, workspace: Option<&WorkspaceId>, id_or_name: &str) -> Result<AppRecord> {
        let unknown = || StoreError::NotFound { what: "app", id: id_or_name.to_owned() };
        let row: Option<AppRow> = sqlx::query_as("SELECT * FROM apps WHERE id = $1 OR name = $1")
            .bind(id_or_name)
            .fetch_optional(&self.readers)
            .await?;
        let record: Option<AppRecord> = row.map(|row| self.sealer.record(row)).transpose()?;
        record.filter(|app| workspace.is_none_or(|w| *w == app.workspace)).ok_or_else(unknown)
    }

    async fn apps(&self, workspace: Option<&WorkspaceId>) -> Result<Vec<AppRecord>> {
        let rows: Vec<AppRow> = sqlx::query_as(
            "SELECT * FROM apps WHERE (CAST($1 AS TEXT) IS NULL OR workspace_id = $1) ORDER BY created_at_us, id",
        )
        .bind(workspace.map(WorkspaceId::as_str))
        .fetch_all(&self.readers)
        .await?;
        self.sealer.records(rows)
    }

    async fn previews(&self, of: &AppId) -> Result<Vec<AppRecord>> {
        let rows: Vec<AppRow> =
            sqlx::query_as("SELECT * FROM apps WHERE preview_of = $1 ORDER BY created_at_us, id")
                .bind(of.as_str())
                .fetch_all(&self.readers)
                .await?;
        self.sealer.records(rows)
    }

    async fn put_app(&self, app: &AppRecord) -> Result<bool> {
        let spec = self.sealer.to_json(&APPS, app.workspace.as_str(), app.id.as_str(), &app.spec)?;
        let mut write = self.write(Durability::Power).await?;
        let changed = sqlx::query(
            "UPDATE apps SET spec = $1, updated_at_us = $2, revision = revision + 1 WHERE id = $3 AND revision = $4",
        )
        .bind(spec)
        .bind(app.updated_at.as_microsecond())
        .bind(app.id.as_str())
        .bind(app.revision)
        .execute(write.conn())
        .await?;
        write.commit().await?;
        Ok(changed.rows_affected() == 1)
    }

    async fn delete_app(&self, id: &AppId) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        for statement in [
            "DELETE FROM deployment_log WHERE deployment_id IN (SELECT id FROM deployments WHERE app_id = $1)",
            "DELETE FROM deployments WHERE app_id = $1",
            "DELETE FROM app_domains WHERE app_id = $1",
            "DELETE FROM app_deliveries WHERE app_id = $1",
            "DELETE FROM apps WHERE id = $1",
        ] {
            sqlx::query(statement).bind(id.as_str()).execute(write.conn()).await?;
        }
        write.commit().await
    }

    async fn insert_deployment(&self, new: &DeploymentRecord) -> Result<()> {
        self.insert_deployment_unless(new, &|_| false).await.map(drop)
    }

    async fn insert_deployment_unless(
        &self,
        new: &DeploymentRecord,
        is_needless: &(dyn for<'a> Fn(&'a [DeploymentRecord]) -> bool + Sync),
    ) -> Result<bool> {
        let mut write = self.write(Durability::Power).await?;
        // Concurrent requests for the same app wait here, so that two cannot both find nothing.
        write.lock_workspace(&new.workspace).await?;
        let rows: Vec<DeploymentRow> =
            sqlx::query_as("SELECT * FROM deployments WHERE app_id = $1 ORDER BY created_at_us DESC, id")
                .bind(new.app.as_str())
                .fetch_all(write.conn())
                .await?;
        if is_needless(&self.sealer.records::<DeploymentRow, DeploymentRecord>(rows)?) {
            return Ok(false);
        }
        deployments::insert(&mut write, new).await?;
        write.commit().await?;
        Ok(true)
    }

    async fn deployment(&self, app: &AppId, id: &DeploymentId) -> Result<DeploymentRecord> {
        let row: Option<DeploymentRow> =
            sqlx::query_as("SELECT * FROM deployments WHERE id = $1 AND app_id = $2")
                .bind(id.as_str())
                .bind(app.as_str())
                .fetch_optional(&self.readers)
                .await?;
        let unknown = || StoreError::NotFound { what: "deployment", id: id.to_string() };
        self.sealer.record(row.ok_or_else(unknown)?)
    }

    async fn deployments(&self, app: &AppId) -> Result<Vec<DeploymentRecord>> {
        let rows: Vec<DeploymentRow> =
            sqlx::query_as("SELECT * FROM deployments WHERE app_id = $1 ORDER BY created_at_us DESC, id")
                .bind(app.as_str())
                .fetch_all(&self.readers)
                .await?;
        self.sealer.records(rows)
    }

    async fn deployments_in_progress(&self) -> Result<Vec<DeploymentRecord>> {
        let rows: Vec<DeploymentRow> = sqlx::query_as(UNDER_WAY).fetch_all(&self.readers).await?;
        self.sealer.records(rows)
    }

    async fn put_deployment(&self, deployment: &DeploymentRecord, was: DeploymentStatus) -> Result<bool> {
        let mut write = self.write(Durability::Power).await?;
        let changed = deployments::put(&mut write, deployment, was).await?;
        write.commit().await?;
        Ok(changed)
    }

    async fn go_live(&self, deployment: &DeploymentRecord, replaced: DeploymentStatus) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query(
            "UPDATE deployments SET status = $1, updated_at_us = $2 WHERE app_id = $3 AND status = 'live' AND id <> $4",
        )
        .bind(replaced.as_str())
        .bind(deployment.updated_at.as_microsecond())
        .bind(deployment.app.as_str())
        .bind(deployment.id.as_str())
        .execute(write.conn())
        .await?;
        if !deployments::put(&mut write, deployment, DeploymentStatus::Deploying).await? {
            let what = "deployment in progress";
            return Err(StoreError::NotFound { what, id: deployment.id.to_string() });
        }
        sqlx::query("UPDATE apps SET active_deployment_id = $1, updated_at_us = $2, revision = revision + 1 WHERE id = $3")
            .bind(deployment.id.as_str())
            .bind(deployment.updated_at.as_microsecond())
            .bind(deployment.app.as_str())
            .execute(write.conn())
            .await?;
        write.commit().await
    }

    async fn unreported_deployments(&self, limit: u32) -> Result<Vec<UnreportedDeployment>> {
        let rows: Vec<UnreportedRow> = sqlx::query_as(
            "SELECT * FROM deployments WHERE (told IS NULL OR told <> 'end') ORDER BY created_at_us, id LIMIT $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        self.sealer.records(rows)
    }

    async fn mark_reported(&self, id: &DeploymentId, end: bool) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        sqlx::query("UPDATE deployments SET told = $1 WHERE id = $2")
            .bind(if end { "end" } else { "begin" })
            .bind(id.as_str())
            .execute(write.conn())
            .await?;
        write.commit().await
    }

    async fn append_log(&self, id: &DeploymentId, first: u64, lines: &[String]) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        for (number, line) in (first..).zip(lines) {
            sqlx::query(
                "INSERT INTO deployment_log (deployment_id, line_number, line) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            )
            .bind(id.as_str())
            .bind(signed(number))
            .bind(line)
            .execute(write.conn())
            .await?;
        }
        write.commit().await
    }

    async fn log_lines(&self, id: &DeploymentId, first: u64, limit: u32) -> Result<Vec<String>> {
        let lines = sqlx::query_scalar(
            "SELECT line FROM deployment_log WHERE deployment_id = $1 AND line_number >= $2 ORDER BY line_number LIMIT $3",
        );
        Ok(lines
            .bind(id.as_str())
            .bind(signed(first))
            .bind(i64::from(limit))
            .fetch_all(&self.readers)
            .await?)
    }

    async fn count_log(&self, id: &DeploymentId) -> Result<u64> {
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM deployment_log WHERE deployment_id = $1")
            .bind(id.as_str())
            .fetch_one(&self.readers)
            .await?;
        Ok(unsigned(count))
    }

    async fn claim_domain(&self, domain: &DomainRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        let others = "SELECT COUNT(*) FROM app_domains WHERE app_id = $1 AND domain <> $2";
        let count: i64 = sqlx::query_scalar(others)
            .bind(domain.app.as_str())
            .bind(&domain.domain)
            .fetch_one(write.conn())
            .await?;
        if unsigned(count) >= DOMAINS_PER_APP_MAX {
            return Err(StoreError::Quota { what: "domains per app", limit: DOMAINS_PER_APP_MAX });
        }
        let added = sqlx::query(
            "INSERT INTO app_domains (domain, app_id, created_at_us, verified_at_us) VALUES ($1, $2, $3, $4)
             ON CONFLICT (domain) DO UPDATE SET app_id = excluded.app_id,
             created_at_us = excluded.created_at_us, verified_at_us = excluded.verified_at_us
             WHERE app_domains.verified_at_us IS NULL",
        )
        .bind(&domain.domain)
        .bind(domain.app.as_str())
        .bind(domain.created_at.as_microsecond())
        .bind(domain.verified_at.map(Timestamp::as_microsecond))
        .execute(write.conn())
        .await?;
        if added.rows_affected() == 0 {
            return Err(StoreError::Exists { what: "a domain", id: domain.domain.clone() });
        }
        write.commit().await
    }

    async fn domains(&self, app: &AppId) -> Result<Vec<DomainRecord>> {
        let rows: Vec<DomainRow> =
            sqlx::query_as("SELECT * FROM app_domains WHERE app_id = $1 ORDER BY domain")
                .bind(app.as_str())
                .fetch_all(&self.readers)
                .await?;
        records(rows)
    }

    async fn app_of_domain(&self, domain: &str) -> Result<Option<AppId>> {
        let proven = "SELECT app_id FROM app_domains WHERE domain = $1 AND verified_at_us IS NOT NULL";
        let found: Option<String> =
            sqlx::query_scalar(proven).bind(domain).fetch_optional(&self.readers).await?;
        found.map(id).transpose()
    }

    async fn delete_domain(&self, app: &AppId, domain: &str) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        let gone = sqlx::query("DELETE FROM app_domains WHERE app_id = $1 AND domain = $2")
            .bind(app.as_str())
            .bind(domain)
            .execute(write.conn())
            .await?;
        if gone.rows_affected() == 0 {
            return Err(StoreError::NotFound { what: "domain", id: domain.to_owned() });
        }
        write.commit().await
    }

    async fn note_delivery(&self, app: &AppId, delivery: &str, at: Timestamp) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        sqlx::query(
            "INSERT INTO app_deliveries (app_id, delivery, at_us) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        )
        .bind(app.as_str())
        .bind(delivery)
        .bind(at.as_microsecond())
        .execute(write.conn())
        .await?;
        write.commit().await
    }

    async fn has_delivery(&self, app: &AppId, delivery: &str) -> Result<bool> {
        let found: Option<i64> =
            sqlx::query_scalar("SELECT at_us FROM app_deliveries WHERE app_id = $1 AND delivery = $2")
                .bind(app.as_str())
                .bind(delivery)
                .fetch_optional(&self.readers)
                .await?;
        Ok(found.is_some())
    }

    async fn prune_deliveries(&self, before: Timestamp) -> Result<u64> {
        let mut write = self.write(Durability::Process).await?;
        let gone = sqlx::query("DELETE FROM app_deliveries WHERE at_us < $1")
            .bind(before.as_microsecond())
            .execute(write.conn())
            .await?;
        write.commit().await?;
        Ok(gone.rows_affected())
    }
}

/// Refuses an app or preview beyond how many there may be.
async fn check_room(conn: &mut sqlx::AnyConnection, app: &AppRecord) -> Result<()> {
    let (statement, of, what, limit) = match &app.preview_of {
        None => (
            "SELECT COUNT(*) FROM apps WHERE workspace_id = $1 AND preview_of IS NULL",
            app.workspace.as_str(),
            "apps",
            APPS_PER_WORKSPACE_MAX,
        ),
        Some(of) => (
            "SELECT COUNT(*) FROM apps WHERE preview_of = $1",
            of.as_str(),
            "previews per app",
            PREVIEWS_PER_APP_MAX,
        ),
    };
    let count: i64 = sqlx::query_scalar(statement).bind(of).fetch_one(conn).await?;
    if unsigned(count) >= limit {
        return Err(StoreError::Quota { what, limit });
    }
    Ok(())
}
