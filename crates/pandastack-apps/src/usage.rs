//! Resource usage of the live version's machines, over HTTP. Wakes nothing.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use futures::future::join_all;
use pandastack_rest::{ApiResult, Caller};
use pandastack_store::apps::record::AppRecord;
use pandastack_store::clock::now;
use pandastack_types::api::{AppInstanceMetrics, AppMetrics, HostView};
use pandastack_types::{ErrorBody, SandboxId, chain};

use crate::path::AppPath;
use crate::state::Apps;
use crate::view;

/// Get an app's current resource usage, in total and per instance of the live version. Does not wake it.
#[utoipa::path(get, path = "/v1/apps/{id}/metrics", tag = "apps", operation_id = "app_metrics", params(("id" = String, Path)),
    responses((status = 200, body = AppMetrics), (status = 404, body = ErrorBody)))]
pub async fn metrics(
    State(apps): State<Arc<Apps>>,
    caller: Caller,
    path: AppPath,
) -> ApiResult<Json<AppMetrics>> {
    let record = path.find(&apps, &caller).await?;
    let live = match &record.active {
        Some(active) => Some(apps.store.deployment(&record.id, active).await?),
        None => None,
    };
    let machines = live.iter().flat_map(|live| live.spec.machines());
    let instances = join_all(machines.map(|id| instance(&apps, &record, id))).await;
    let total = HostView::total(instances.iter().filter_map(|one| one.host.as_ref()));
    Ok(Json(AppMetrics { at: now(), deployment_id: record.active, total, instances }))
}

/// Usage of one machine; values that are not available are left out.
async fn instance(apps: &Apps, app: &AppRecord, id: &SandboxId) -> AppInstanceMetrics {
    let sandbox_id = id.clone();
    match apps.machines.sandbox(&app.workspace, id).metrics().await {
        Ok(seen) => {
            AppInstanceMetrics { sandbox_id, status: seen.status, host: Some(seen.host), guest: seen.guest }
        }
        Err(error) => {
            tracing::info!(
                app = %app.id, machine = %id, error = %chain(&error),
                "cannot get the metrics of a machine"
            );
            AppInstanceMetrics {
                sandbox_id,
                status: view::status_of(apps, id).await,
                host: None,
                guest: None,
            }
        }
    }
}
