//! Outdated frozen states.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use pandastack_rest::{ApiResult, Caller, Query};
use pandastack_sandboxes::outdated::{self, Scope};
use pandastack_types::ErrorBody;
use pandastack_types::api::OutdatedList;
use serde::Deserialize;

use crate::services::Services;

#[derive(Deserialize)]
pub(crate) struct ListArgs {
    #[serde(default)]
    all: bool,
}

/// List sleeping sandboxes, snapshots and templates whose guest kernel, guest program or engine is
/// older than what their host uses now, or is named by an advisory of the operator. Wakes nothing.
#[utoipa::path(get, path = "/v1/outdated", tag = "hosts", operation_id = "outdated",
    params(("all" = Option<bool>, Query, description = "List all workspaces, and the platform's templates. Requires an operator key")),
    responses((status = 200, body = OutdatedList), (status = 403, body = ErrorBody)))]
pub(crate) async fn list(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Query(args): Query<ListArgs>,
) -> ApiResult<Json<OutdatedList>> {
    let scope = if args.all {
        caller.require_operator()?;
        Scope::All
    } else {
        Scope::Workspace(caller.workspace)
    };
    Ok(Json(outdated::list(&services.sandboxes, &services.outdated, &scope).await?))
}
