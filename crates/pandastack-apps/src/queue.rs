//! Queueing deployments.

use axum::Json;
use http::StatusCode;
use pandastack_store::apps::record::DeploymentRecord;
use pandastack_types::Result;
use pandastack_types::api::Deployment;

use crate::state::Apps;
use crate::view;

/// Queues a deployment.
pub(crate) async fn queue(
    apps: &Apps,
    deployment: DeploymentRecord,
) -> Result<(StatusCode, Json<Deployment>)> {
    apps.store.insert_deployment(&deployment).await?;
    Ok(queued(apps, deployment))
}

/// The answer about a deployment that was queued.
pub(crate) fn queued(apps: &Apps, deployment: DeploymentRecord) -> (StatusCode, Json<Deployment>) {
    apps.activity.work.notify_one();
    apps.activity.notify();
    (StatusCode::ACCEPTED, Json(view::deployment(deployment, false)))
}
