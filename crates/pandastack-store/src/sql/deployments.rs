//! Writing deployments inside a transaction.

use jiff::Timestamp;
use pandastack_types::AppId;
use pandastack_types::api::{DeploymentStatus, WebhookEventKind};
use pandastack_types::limits::DEPLOYMENTS_PER_APP_MAX;
use serde_json::json;

use super::rows::signed;
use super::sealed_columns::DEPLOYMENTS;
use super::{Write, webhooks};
use crate::Result;
use crate::apps::record::DeploymentRecord;
use crate::webhooks::WebhookEvent;

const PUT: &str = "UPDATE deployments SET status = $1, updated_at_us = $2, finished_at_us = $3, spec = $4 \
     WHERE id = $5 AND status = $6";

/// Adds one, and removes the oldest beyond how many an app keeps.
pub(super) async fn insert(write: &mut Write, new: &DeploymentRecord) -> Result<()> {
    let spec = spec(write, new)?;
    sqlx::query(
            "INSERT INTO deployments (id, app_id, workspace_id, status, created_at_us, updated_at_us, finished_at_us, spec) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(new.id.as_str())
        .bind(new.app.as_str())
        .bind(new.workspace.as_str())
        .bind(new.status.as_str())
        .bind(new.created_at.as_microsecond())
        .bind(new.updated_at.as_microsecond())
        .bind(new.finished_at.map(Timestamp::as_microsecond))
        .bind(spec)
        .execute(write.conn())
        .await?;
    forget_oldest(write.conn(), &new.app).await
}

fn spec(write: &Write, record: &DeploymentRecord) -> Result<String> {
    write.sealer.to_json(&DEPLOYMENTS, record.workspace.as_str(), record.id.as_str(), &record.spec)
}

/// Replaces one if it still has the status `was`; false if not.
pub(super) async fn put(write: &mut Write, record: &DeploymentRecord, was: DeploymentStatus) -> Result<bool> {
    let changed = sqlx::query(PUT)
        .bind(record.status.as_str())
        .bind(record.updated_at.as_microsecond())
        .bind(record.finished_at.map(Timestamp::as_microsecond))
        .bind(spec(write, record)?)
        .bind(record.id.as_str())
        .bind(was.as_str())
        .execute(write.conn())
        .await?;
    let changed = changed.rows_affected() == 1;
    if changed && record.status != was {
        notify_webhooks(write, record).await?;
    }
    Ok(changed)
}

/// Queues what webhooks get of a deployment that went live or failed.
async fn notify_webhooks(write: &mut Write, record: &DeploymentRecord) -> Result<()> {
    let kind = match record.status {
        DeploymentStatus::Live => WebhookEventKind::AppDeployed,
        DeploymentStatus::Failed => WebhookEventKind::AppDeploymentFailed,
        _ => return Ok(()),
    };
    let name: Option<String> = sqlx::query_scalar("SELECT name FROM apps WHERE id = $1")
        .bind(record.app.as_str())
        .fetch_optional(write.conn())
        .await?;
    let spec = &record.spec;
    let data = json!({
        "app_id": record.app, "app": name, "deployment_id": record.id, "trigger": spec.trigger,
        "commit": spec.git_commit, "error": spec.error,
    });
    let id = format!("evt_{}_{}", record.id, record.status.as_str());
    let (workspace, at) = (record.workspace.clone(), record.updated_at);
    webhooks::queue(write, &WebhookEvent { id, workspace, kind, at, data }).await
}

/// Removes the oldest deployments that are over and neither live nor among the newest
/// `DEPLOYMENTS_PER_APP_MAX`.
async fn forget_oldest(conn: &mut sqlx::AnyConnection, app: &AppId) -> Result<()> {
    let oldest = "SELECT id FROM deployments WHERE app_id = $1 AND status NOT IN ('live', 'queued', 'building', 'deploying') \
         ORDER BY created_at_us DESC, id LIMIT 1000 OFFSET $2";
    let old: Vec<String> = sqlx::query_scalar(oldest)
        .bind(app.as_str())
        .bind(signed(DEPLOYMENTS_PER_APP_MAX))
        .fetch_all(&mut *conn)
        .await?;
    for id in old {
        for statement in
            ["DELETE FROM deployment_log WHERE deployment_id = $1", "DELETE FROM deployments WHERE id = $1"]
        {
            sqlx::query(statement).bind(&id).execute(&mut *conn).await?;
        }
    }
    Ok(())
}
