//! Network policies of sandboxes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use pandastack_rest::extract::{parse_json, read_body};
use pandastack_rest::{ApiResult, Caller, Id};
use pandastack_sandboxes::machines::Machines;
use pandastack_sandboxes::{Sandboxes, ops};
use pandastack_types::network::NetworkPolicy;
use pandastack_types::{ErrorBody, SandboxId};

/// Get a sandbox's network policy. Does not wake it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/network", tag = "network", params(("id" = SandboxId, Path)),
    responses((status = 200, body = NetworkPolicy), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<Json<NetworkPolicy>> {
    Ok(Json(sandboxes.find(Some(&caller.workspace), &id).await?.spec.network))
}

/// Change a sandbox's network policy. Takes effect immediately, including for open connections. Does not
/// wake it.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/network", tag = "network", params(("id" = SandboxId, Path)),
    request_body = NetworkPolicy, responses((status = 200, body = NetworkPolicy), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn set(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Json<NetworkPolicy>> {
    let policy: NetworkPolicy = parse_json(&read_body(request.into_body()).await?)?;
    let record = ops::unsealed(&sandboxes, &caller.workspace, &id).await?;
    Ok(Json(ops::network::set(&sandboxes, record, policy).await?.spec.network))
}
