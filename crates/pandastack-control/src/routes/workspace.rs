//! The caller's workspace and its defaults for new sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use pandastack_rest::{ApiResult, Caller, JsonBody};
use pandastack_types::ErrorBody;
use pandastack_types::api::{PatchWorkspace, Workspace};

use crate::services::Services;

/// Get the workspace and its defaults for new sandboxes.
#[utoipa::path(get, path = "/v1/me/workspace", tag = "keys", responses((status = 200, body = Workspace)))]
pub(crate) async fn get(State(services): State<Arc<Services>>, caller: Caller) -> ApiResult<Json<Workspace>> {
    let settings = services.store.workspace_settings(&caller.workspace).await?;
    Ok(Json(Workspace { id: caller.workspace, settings }))
}

/// Update the defaults for new sandboxes. Existing sandboxes do not change. Requires an owner key.
#[utoipa::path(patch, path = "/v1/me/workspace", tag = "keys", request_body = PatchWorkspace, responses(
    (status = 200, body = Workspace), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody)))]
pub(crate) async fn change(
    State(services): State<Arc<Services>>,
    caller: Caller,
    JsonBody(patch): JsonBody<PatchWorkspace>,
) -> ApiResult<Json<Workspace>> {
    let settings = services.store.patch_workspace(&caller.workspace, &patch).await?;
    Ok(Json(Workspace { id: caller.workspace, settings }))
}
