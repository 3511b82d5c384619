//! Create, list, get, delete.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use pandastack_rest::{ApiResult, Caller, Id, JsonBody};
use pandastack_sandboxes::machines::Machines;
use pandastack_sandboxes::{Sandboxes, ops};
use pandastack_store::Select;
use pandastack_types::api::{CreateSandbox, Items, Sandbox};
use pandastack_types::{Error, ErrorBody, SandboxId};

use crate::idempotency::ClaimedKey;
use crate::services::Services;

/// Create a sandbox. Returns when it is ready for its first command.
#[utoipa::path(post, path = "/v1/sandboxes", tag = "sandboxes", request_body = CreateSandbox, responses(
    (status = 201, body = Sandbox), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 429, body = ErrorBody), (status = 503, description = "Temporarily unavailable; retry after the time in `Retry-After`", body = ErrorBody)))]
pub(crate) async fn create(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    ClaimedKey(key): ClaimedKey,
    JsonBody(create): JsonBody<CreateSandbox>,
) -> ApiResult<(StatusCode, Json<Sandbox>)> {
    let record = ops::create::create(&sandboxes, caller.workspace, create, key).await?;
    Ok((StatusCode::CREATED, Json(sandboxes.view(record))))
}

/// List sandboxes, oldest first.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", responses((status = 200, body = Items<Sandbox>)))]
pub(crate) async fn list(
    State(services): State<Arc<Services>>,
    caller: Caller,
) -> ApiResult<Json<Items<Sandbox>>> {
    let records = services.store.sandboxes(&Select::Workspace(caller.workspace)).await?;
    Ok(Json(Items { items: records.into_iter().map(|record| services.sandboxes.view(record)).collect() }))
}

/// Get a sandbox. Does not wake it.
#[utoipa::path(get, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxId, Path)), responses(
    (status = 200, body = Sandbox), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<Json<Sandbox>> {
    let record = sandboxes.find(Some(&caller.workspace), &id).await?;
    Ok(Json(sandboxes.view(record)))
}

/// Delete a sandbox. If its host does not respond, the deletion is recorded and completed later.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = SandboxId, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody),
    (status = 409, description = "The sandbox belongs to a service, named in the message", body = ErrorBody)))]
pub(crate) async fn delete(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<StatusCode> {
    let record = sandboxes.find(Some(&caller.workspace), &id).await?;
    if let Some(owner) = &record.owner {
        let (service, name) = (owner.kind(), owner.id());
        let message = format!(
            "sandbox `{id}` belongs to {service} `{name}`, which deletes it when no longer needed; \
             delete the {service} instead"
        );
        return Err(Error::conflict(message).into());
    }
    ops::delete::delete(&sandboxes, record, None).await?;
    Ok(StatusCode::NO_CONTENT)
}
