//! Quotas and usage of a workspace.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_types::api::{Quota, QuotaReport};
use pandastack_types::{Error, ErrorBody, Result, WorkspaceId};

use crate::services::Services;

/// Get workspace quotas and current usage.
#[utoipa::path(get, path = "/v1/me/quota", tag = "keys", responses((status = 200, body = QuotaReport)))]
pub(crate) async fn get(
    State(services): State<Arc<Services>>,
    caller: Caller,
) -> ApiResult<Json<QuotaReport>> {
    Ok(Json(report(&services, caller.workspace).await?))
}

/// Set workspace quotas. For omitted quotas, the platform's limits apply. Requires an operator key.
#[utoipa::path(put, path = "/v1/me/quota", tag = "keys", request_body = Quota, responses(
    (status = 200, body = QuotaReport), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub(crate) async fn set(
    State(services): State<Arc<Services>>,
    caller: Caller,
    JsonBody(quota): JsonBody<Quota>,
) -> ApiResult<Json<QuotaReport>> {
    Ok(Json(replace(&services, caller.workspace, &quota).await?))
}

pub(super) async fn report(services: &Services, workspace: WorkspaceId) -> Result<QuotaReport> {
    let quota = services.store.quota(&workspace).await?;
    let used = services.store.quota_use(&workspace).await?;
    Ok(QuotaReport { workspace, quota, used })
}

pub(super) async fn replace(
    services: &Services,
    workspace: WorkspaceId,
    quota: &Quota,
) -> Result<QuotaReport> {
    check(quota)?;
    services.store.set_quota(&workspace, quota).await?;
    services.keys.rates.learn(&workspace, quota.requests_per_second);
    report(services, workspace).await
}

/// Refuses a quota that no workspace could work with.
pub(super) fn check(quota: &Quota) -> Result<()> {
    match quota.requests_per_second {
        Some(0) => Err(Error::bad_request(
            "`requests_per_second` must be at least 1; 0 would also block the request to change it back",
        )),
        _ => Ok(()),
    }
}
