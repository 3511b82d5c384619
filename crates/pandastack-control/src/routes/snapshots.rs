//! Snapshots.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use pandastack_rest::{ApiResult, Caller, Id, JsonBody, Query};
use pandastack_sandboxes::{Sandboxes, ops, view};
use pandastack_types::api::{CreateSnapshot, Rollback, Sandbox, Snapshot, SnapshotKind, SnapshotList};
use pandastack_types::{Error, ErrorBody, SandboxId, SnapshotId};
use serde::Deserialize;

use crate::services::Services;

#[derive(Deserialize)]
pub(crate) struct ListArgs {
    sandbox_id: Option<String>,
}

/// Take a snapshot of a sandbox, which keeps running.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/snapshots", tag = "snapshots", params(("id" = SandboxId, Path)),
    request_body = CreateSnapshot, responses((status = 201, body = Snapshot), (status = 404, body = ErrorBody),
    (status = 507, body = ErrorBody)))]
pub(crate) async fn create(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    JsonBody(request): JsonBody<CreateSnapshot>,
) -> ApiResult<(StatusCode, Json<Snapshot>)> {
    let (record, client) = ops::live(&sandboxes, &caller.workspace, &id).await?;
    let snapshot = ops::snapshot::take(&sandboxes, record, client, request, SnapshotKind::Manual).await?;
    Ok((StatusCode::CREATED, Json(view::snapshot(snapshot))))
}

/// Roll back a sandbox to one of its own snapshots. The ID, metadata and lifetime are kept, and the sandbox
/// runs afterwards.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/rollback", tag = "snapshots", params(("id" = SandboxId, Path)),
    request_body = Rollback, responses((status = 200, body = Sandbox), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn rollback(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    JsonBody(request): JsonBody<Rollback>,
) -> ApiResult<Json<Sandbox>> {
    let (record, client) = ops::live(&sandboxes, &caller.workspace, &id).await?;
    let record = ops::rollback::rollback(&sandboxes, record, client, request.snapshot_id).await?;
    Ok(Json(sandboxes.view(record)))
}

/// List snapshots, newest first.
#[utoipa::path(get, path = "/v1/snapshots", tag = "snapshots", params(("sandbox_id" = Option<String>, Query)),
    responses((status = 200, body = SnapshotList)))]
pub(crate) async fn list(
    State(services): State<Arc<Services>>,
    caller: Caller,
    Query(args): Query<ListArgs>,
) -> ApiResult<Json<SnapshotList>> {
    let sandbox: Option<SandboxId> = match &args.sandbox_id {
        Some(text) => Some(text.parse().map_err(|_| Error::not_found("sandbox", text))?),
        None => None,
    };
    let mut records = services.store.snapshots(&caller.workspace, sandbox.as_ref()).await?;
    records.retain(|record| record.spec.kind != SnapshotKind::Service);
    Ok(Json(SnapshotList { snapshots: records.into_iter().map(view::snapshot).collect() }))
}

/// Get a snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{id}", tag = "snapshots", params(("id" = SnapshotId, Path)), responses(
    (status = 200, body = Snapshot), (status = 404, body = ErrorBody)))]
pub(crate) async fn get(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SnapshotId>,
) -> ApiResult<Json<Snapshot>> {
    Ok(Json(view::snapshot(ops::snapshot::find(&sandboxes, &caller.workspace, &id).await?)))
}

/// Delete a snapshot.
#[utoipa::path(delete, path = "/v1/snapshots/{id}", tag = "snapshots", params(("id" = SnapshotId, Path)), responses(
    (status = 204), (status = 404, body = ErrorBody),
    (status = 409, description = "The snapshot is a version of a template", body = ErrorBody)))]
pub(crate) async fn delete(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SnapshotId>,
) -> ApiResult<StatusCode> {
    let snapshot = ops::snapshot::find(&sandboxes, &caller.workspace, &id).await?;
    if snapshot.spec.kind == SnapshotKind::Service {
        return Err(Error::conflict(format!(
            "snapshot `{id}` belongs to a service, which deletes it when no longer needed"
        ))
        .into());
    }
    ops::snapshot::delete(&sandboxes, caller.workspace, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
