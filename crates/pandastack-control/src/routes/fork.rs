//! Fork, fork-tree, promote.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use pandastack_rest::{ApiResult, Caller, Id, JsonBody};
use pandastack_sandboxes::machines::Machines;
use pandastack_sandboxes::{Sandboxes, ops};
use pandastack_store::IdempotencyKey;
use pandastack_types::api::{ForkSandbox, ForkTree, ForkTreeResult, Lineage, Promote, Promoted, Sandbox};
use pandastack_types::limits::FORK_TREE_COUNT_MAX;
use pandastack_types::{Error, ErrorBody, ErrorCode, Result, SandboxId};

use crate::idempotency::ClaimedKey;

/// Fork a sandbox: create a copy with the same memory, disk and processes. With `count`, create several, as
/// `fork-tree` does.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fork", tag = "fork", params(("id" = SandboxId, Path)),
    request_body = ForkSandbox, responses((status = 201, body = Sandbox), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody),
    (status = 503, body = ErrorBody)))]
pub(crate) async fn fork(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    ClaimedKey(key): ClaimedKey,
    JsonBody(request): JsonBody<ForkSandbox>,
) -> ApiResult<Response> {
    if let Some(count) = request.count {
        let tree = ForkTree { count, metadata: request.metadata };
        return Ok(fork_several(&sandboxes, &caller, id, tree, key).await?.into_response());
    }
    let (parent, client) = ops::live(&sandboxes, &caller.workspace, &id).await?;
    let metadata = request.metadata.unwrap_or_default();
    let forked = ops::fork::fork(&sandboxes, parent, client, metadata, 1, key).await?;
    let child = forked.children.into_iter().next();
    let child = child.ok_or_else(|| {
        Error::new(ErrorCode::GuestUnavailable, format!("sandbox `{id}` was not forked; try again"))
    })?;
    Ok((StatusCode::CREATED, Json(sandboxes.view(child))).into_response())
}

/// Create several forks of a sandbox at the same point in time.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/fork-tree", tag = "fork", params(("id" = SandboxId, Path)),
    request_body = ForkTree, responses((status = 201, body = ForkTreeResult), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(crate) async fn fork_tree(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    JsonBody(request): JsonBody<ForkTree>,
) -> ApiResult<(StatusCode, Json<ForkTreeResult>)> {
    Ok(fork_several(&sandboxes, &caller, id, request, None).await?)
}

async fn fork_several(
    sandboxes: &Arc<Sandboxes>,
    caller: &Caller,
    id: SandboxId,
    request: ForkTree,
    key: Option<IdempotencyKey>,
) -> Result<(StatusCode, Json<ForkTreeResult>)> {
    if !(1..=FORK_TREE_COUNT_MAX).contains(&request.count) {
        return Err(Error::bad_request(format!("`count` must be 1 to {FORK_TREE_COUNT_MAX}")));
    }
    let (parent, client) = ops::live(sandboxes, &caller.workspace, &id).await?;
    let metadata = request.metadata.unwrap_or_default();
    let forked = ops::fork::fork(sandboxes, parent, client, metadata, request.count, key).await?;
    let result = ForkTreeResult {
        children: forked.children.into_iter().map(|child| sandboxes.view(child)).collect(),
        tree_id: forked.tree,
        parent_id: id,
        pause_ms: forked.pause_ms,
        errors: forked.errors,
    };
    Ok((StatusCode::CREATED, Json(result)))
}

/// Get a sandbox's ancestors, siblings and children. Does not wake it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/lineage", tag = "fork", params(("id" = SandboxId, Path)),
    responses((status = 200, body = Lineage), (status = 404, body = ErrorBody)))]
pub(crate) async fn lineage(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<Json<Lineage>> {
    let record = sandboxes.find(Some(&caller.workspace), &id).await?;
    Ok(Json(ops::fork::lineage(&sandboxes, record).await?))
}

/// Keep this fork and, on request, delete its siblings.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/promote", tag = "fork", params(("id" = SandboxId, Path)),
    request_body = Promote, responses((status = 200, body = Promoted), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody),
    (status = 409, description = "Another fork was promoted before, or this one was deleted", body = ErrorBody)))]
pub(crate) async fn promote(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    JsonBody(request): JsonBody<Promote>,
) -> ApiResult<Json<Promoted>> {
    let winner = ops::unsealed(&sandboxes, &caller.workspace, &id).await?;
    ops::check_live(&winner)?;
    Ok(Json(ops::fork::promote(&sandboxes, winner, &request).await?))
}
