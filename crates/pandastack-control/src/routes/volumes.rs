//! `/v1/volumes`.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{delete, get, patch, post};
use axum::{Json, Router};
use http::StatusCode;
use pandastack_rest::{ApiResult, Caller, Id, JsonBody};
use pandastack_sandboxes::volumes::{ops, view};
use pandastack_types::api::{CloneVolume, CreateVolume, GrowVolume, PatchVolume, SnapshotVolume, Volume};
use pandastack_types::{ErrorBody, Result};

use crate::services::Services;

/// Calls that make something.
pub(crate) fn once_only() -> Router<Arc<Services>> {
    Router::new()
        .route("/volumes", post(create))
        .route("/volumes/{name}/clone", post(clone_volume))
        .route("/volumes/{name}/snapshot", post(snapshot))
}

/// Calls that may be repeated.
pub(crate) fn repeatable() -> Router<Arc<Services>> {
    Router::new()
        .route("/volumes", get(list))
        .route("/volumes/{name}", get(get_one).merge(delete(delete_one)).merge(patch(change)))
        .route("/volumes/{name}/grow", post(grow))
}

/// Create a volume.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = CreateVolume, responses(
    (status = 201, body = Volume), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody),
    (status = 429, body = ErrorBody), (status = 507, body = ErrorBody)))]
pub(crate) async fn create(
    State(services): State<Arc<Services>>,
    caller: Caller,
    JsonBody(request): JsonBody<CreateVolume>,
) -> ApiResult<(StatusCode, Json<Volume>)> {
    let made = ops::create(&services.sandboxes, caller.workspace, request).await?;
    Ok((StatusCode::CREATED, Json(view(&services.hosts, made, &[]))))
}

/// List volumes by name.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", responses((status = 200, body = Vec<Volume>)))]
pub(crate) async fn list(
    State(services): State<Arc<Services>>,
    caller: Caller,
) -> ApiResult<Json<Vec<Volume>>> {
    let records = services.store.volumes(&caller.workspace).await?;
    let holders = services.store.volume_holders(&caller.workspace).await?;
    let of_users = records.into_iter().filter(|record| record.spec.owner.is_none());
    Ok(Json(of_users.map(|record| view(&services.hosts, record, &holders)).collect()))
}

/// Get a volume.
#[utoipa::path(
    get, path = "/v1/volumes/{name}", operation_id = "get_volume", tag = "volumes",
    params(("name" = String, Path)), responses(
    (status = 200, body = Volume), (status = 404, body = ErrorBody)))]
pub(crate) async fn get_one(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(name): Id<String>,
) -> ApiResult<Json<Volume>> {
    let record = services.store.volume(&caller.workspace, &name).await?;
    Ok(shown(&services, &caller, record).await?)
}

/// Change a volume's deletion protection.
#[utoipa::path(patch, path = "/v1/volumes/{name}", tag = "volumes", params(("name" = String, Path)),
    request_body = PatchVolume, responses((status = 200, body = Volume), (status = 404, body = ErrorBody)))]
pub(crate) async fn change(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(name): Id<String>,
    JsonBody(request): JsonBody<PatchVolume>,
) -> ApiResult<Json<Volume>> {
    let record = ops::change(&services.sandboxes, &caller.workspace, &name, &request).await?;
    Ok(shown(&services, &caller, record).await?)
}

/// Grow a volume. A running sandbox that uses it sees the new size when this returns.
#[utoipa::path(post, path = "/v1/volumes/{name}/grow", tag = "volumes", params(("name" = String, Path)),
    request_body = GrowVolume, responses((status = 200, body = Volume), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody), (status = 507, body = ErrorBody)))]
pub(crate) async fn grow(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(name): Id<String>,
    JsonBody(request): JsonBody<GrowVolume>,
) -> ApiResult<Json<Volume>> {
    let record = ops::of_user(&services.sandboxes, &caller.workspace, &name).await?;
    let record = ops::grow(&services.sandboxes, record, request.size_mb).await?;
    Ok(shown(&services, &caller, record).await?)
}

/// Clone a volume, even while a sandbox writes to it. The clone is a copy at one point in time and shares
/// disk space with the original.
#[utoipa::path(post, path = "/v1/volumes/{name}/clone", tag = "volumes", params(("name" = String, Path)),
    request_body = CloneVolume, responses((status = 201, body = Volume), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 507, body = ErrorBody)))]
pub(crate) async fn clone_volume(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(name): Id<String>,
    JsonBody(request): JsonBody<CloneVolume>,
) -> ApiResult<(StatusCode, Json<Volume>)> {
    let made = ops::copy(&services.sandboxes, caller.workspace, &name, request.name, false).await?;
    Ok((StatusCode::CREATED, Json(view(&services.hosts, made, &[]))))
}

/// Take a snapshot of a volume: a read-only copy that can be cloned.
#[utoipa::path(post, path = "/v1/volumes/{name}/snapshot", tag = "volumes", params(("name" = String, Path)),
    request_body = SnapshotVolume, responses((status = 201, body = Volume), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody), (status = 507, body = ErrorBody)))]
pub(crate) async fn snapshot(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(name): Id<String>,
    JsonBody(request): JsonBody<SnapshotVolume>,
) -> ApiResult<(StatusCode, Json<Volume>)> {
    let own = request.name.unwrap_or_else(|| ops::snapshot_name(&name));
    let made = ops::copy(&services.sandboxes, caller.workspace, &name, own, true).await?;
    Ok((StatusCode::CREATED, Json(view(&services.hosts, made, &[]))))
}

/// Delete a volume and its data. Fails while a sandbox uses it or while it is protected.
#[utoipa::path(delete, path = "/v1/volumes/{name}", tag = "volumes", params(("name" = String, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn delete_one(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Id(name): Id<String>,
) -> ApiResult<StatusCode> {
    ops::delete(&services.sandboxes, &caller.workspace, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn shown(
    services: &Services,
    caller: &Caller,
    record: pandastack_store::volumes::VolumeRecord,
) -> Result<Json<Volume>> {
    let holders = services.store.volume_holders(&caller.workspace).await?;
    Ok(Json(view(&services.hosts, record, &holders)))
}
