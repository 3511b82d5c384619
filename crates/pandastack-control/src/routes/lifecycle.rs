//! Pause, resume, hibernate, wake, and lifetime settings.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use pandastack_rest::{ApiResult, Caller, Id, JsonBody};
use pandastack_sandboxes::machines::Machines;
use pandastack_sandboxes::ops::lifecycle::StateChange;
use pandastack_sandboxes::{Sandboxes, ops};
use pandastack_store::SandboxRecord;
use pandastack_types::api::{Hibernate, KeepAwake, Lifecycle, PatchLifecycle, StatusAnswer};
use pandastack_types::{ErrorBody, Result, SandboxId};

async fn change_state(
    sandboxes: &Arc<Sandboxes>,
    caller: &Caller,
    id: &SandboxId,
    movement: StateChange,
) -> Result<SandboxRecord> {
    let (record, client) = ops::live(sandboxes, &caller.workspace, id).await?;
    ops::lifecycle::change_state(sandboxes, record, client, movement, false).await
}

/// Pause a sandbox: stop its vCPUs. Its memory stays on the host.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/pause", tag = "lifecycle", params(("id" = SandboxId, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn pause(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<StatusCode> {
    change_state(&sandboxes, &caller, &id, StateChange::Pause).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Resume a paused sandbox.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/resume", tag = "lifecycle", params(("id" = SandboxId, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn resume(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<StatusCode> {
    change_state(&sandboxes, &caller, &id, StateChange::Resume).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Put a sandbox to sleep on disk. The next call wakes it.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/hibernate", tag = "lifecycle", params(("id" = SandboxId, Path)),
    request_body = Hibernate, responses(
    (status = 200, body = StatusAnswer), (status = 404, body = ErrorBody), (status = 507, body = ErrorBody)))]
pub(crate) async fn hibernate(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    JsonBody(request): JsonBody<Hibernate>,
) -> ApiResult<Json<StatusAnswer>> {
    let record = change_state(&sandboxes, &caller, &id, StateChange::Hibernate(request.keep)).await?;
    Ok(Json(StatusAnswer { status: record.state }))
}

/// Wake a sandbox. Has no effect if it is awake.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/wake", tag = "lifecycle", params(("id" = SandboxId, Path)), responses(
    (status = 200, body = StatusAnswer), (status = 404, body = ErrorBody), (status = 503, body = ErrorBody)))]
pub(crate) async fn wake(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<Json<StatusAnswer>> {
    let record = change_state(&sandboxes, &caller, &id, StateChange::Wake).await?;
    Ok(Json(StatusAnswer { status: record.state }))
}

/// Keep a sandbox awake for background work. Wakes it.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/keep-awake", tag = "lifecycle", params(("id" = SandboxId, Path)),
    request_body = KeepAwake, responses((status = 200, body = Lifecycle), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn keep_awake(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    JsonBody(request): JsonBody<KeepAwake>,
) -> ApiResult<Json<Lifecycle>> {
    let (record, client) = ops::live(&sandboxes, &caller.workspace, &id).await?;
    let record = ops::lifecycle::keep_awake(&sandboxes, record, client, request.seconds).await?;
    Ok(Json(ops::lifecycle::show(&sandboxes, &record).await))
}

/// Get a sandbox's lifetime settings. Does not wake it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/lifecycle", tag = "lifecycle", params(("id" = SandboxId, Path)), responses(
    (status = 200, body = Lifecycle), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<Json<Lifecycle>> {
    let record = sandboxes.find(Some(&caller.workspace), &id).await?;
    Ok(Json(ops::lifecycle::show(&sandboxes, &record).await))
}

/// Update a sandbox's lifetime settings. `ttl_seconds` counts from now.
#[utoipa::path(patch, path = "/v1/sandboxes/{id}/lifecycle", tag = "lifecycle", params(("id" = SandboxId, Path)),
    request_body = PatchLifecycle, responses((status = 200, body = Lifecycle), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn change(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    JsonBody(request): JsonBody<PatchLifecycle>,
) -> ApiResult<Json<Lifecycle>> {
    let record = sandboxes.find(Some(&caller.workspace), &id).await?;
    let record = ops::lifecycle::patch(&sandboxes, record, request).await?;
    Ok(Json(ops::lifecycle::show(&sandboxes, &record).await))
}
