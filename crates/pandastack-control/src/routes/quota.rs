//! What the caller's workspace may have, and has.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_sandboxes::Sandboxes;
use pandastack_types::api::{Quota, QuotaReport};
use pandastack_types::{Error, ErrorBody};

use crate::auth::Keys;

/// Get workspace quotas and current use.
#[utoipa::path(get, path = "/v1/me/quota", tag = "keys", responses((status = 200, body = QuotaReport)))]
pub(crate) async fn get(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
) -> ApiResult<Json<QuotaReport>> {
    let quota = sandboxes.store.quota(&caller.workspace).await?;
    let used = sandboxes.store.quota_use(&caller.workspace).await?;
    Ok(Json(QuotaReport { workspace: caller.workspace, quota, used }))
}

/// Set workspace quotas. A quota that is left out returns to the platform's limit. Requires an admin key.
#[utoipa::path(put, path = "/v1/me/quota", tag = "keys", request_body = Quota, responses(
    (status = 200, body = QuotaReport), (status = 400, body = ErrorBody)))]
pub(crate) async fn set(
    State(sandboxes): State<Arc<Sandboxes>>,
    State(keys): State<Arc<Keys>>,
    caller: Caller,
    JsonBody(quota): JsonBody<Quota>,
) -> ApiResult<Json<QuotaReport>> {
    if quota.requests_per_second == Some(0) {
        return Err(Error::bad_request(
            "`requests_per_second` must be at least 1; 0 would block every request, also to change it back",
        )
        .into());
    }
    sandboxes.store.set_quota(&caller.workspace, &quota).await?;
    keys.rates.learn(&caller.workspace, quota.requests_per_second);
    get(State(sandboxes), caller).await
}
