//! Workspaces, for operators.

use std::sync::Arc;

use axum::Json;
use axum::extract::{FromRequestParts, RawPathParams, State};
use http::StatusCode;
use http::request::Parts;
use pandastack_rest::{ApiError, ApiResult, Caller, JsonBody};
use pandastack_store::clock::now;
use pandastack_store::workspaces::WorkspaceRecord;
use pandastack_types::api::{
    CreateToken, CreateWorkspace, Items, Quota, QuotaReport, RotateToken, SuspendWorkspace, TokenCreated,
    TokenInfo, WorkspaceInfo, WorkspaceSettings,
};
use pandastack_types::{Error, ErrorBody, Result, WorkspaceId};

use super::{quota, tokens};
use crate::services::Services;
use crate::tenants;

/// Longest reason of a suspension.
const REASON_BYTES_MAX: usize = 500;

/// `{id}` and, where the path has one, `{prefix}`.
pub(crate) struct WorkspacePath {
    id: WorkspaceId,
    prefix: String,
}

impl<S: Send + Sync> FromRequestParts<S> for WorkspacePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(Error::internal)?;
        let value = |wanted: &str| params.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
        let id = value("id").unwrap_or_default();
        Ok(Self {
            id: id.parse().map_err(|_| Error::not_found("workspace", id))?,
            prefix: value("prefix").unwrap_or_default().to_owned(),
        })
    }
}

/// List workspaces, oldest first. Requires an operator key.
#[utoipa::path(get, path = "/v1/workspaces", tag = "workspaces",
    operation_id = "list_workspaces", responses(
    (status = 200, body = Items<WorkspaceInfo>), (status = 403, body = ErrorBody)))]
pub(crate) async fn list(State(services): State<Arc<Services>>) -> ApiResult<Json<Items<WorkspaceInfo>>> {
    let mut items = Vec::new();
    for record in services.store.workspaces().await? {
        items.push(shown(&services, record).await?);
    }
    Ok(Json(Items { items }))
}

/// Create a workspace, without API keys. Requires an operator key.
#[utoipa::path(post, path = "/v1/workspaces", tag = "workspaces",
    operation_id = "create_workspace",
    request_body = CreateWorkspace, responses((status = 201, body = WorkspaceInfo),
    (status = 400, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 409,
    description = "The name is in use, or was used before", body = ErrorBody)))]
pub(crate) async fn create(
    State(services): State<Arc<Services>>,
    JsonBody(request): JsonBody<CreateWorkspace>,
) -> ApiResult<(StatusCode, Json<WorkspaceInfo>)> {
    let quota = request.quota.unwrap_or_default();
    quota::check(&quota)?;
    let default_visibility = request.default_visibility.unwrap_or_default();
    let record = WorkspaceRecord {
        quota,
        settings: WorkspaceSettings { default_visibility },
        ..WorkspaceRecord::new(request.id, now())
    };
    tenants::create(&services, &record).await?;
    Ok((StatusCode::CREATED, Json(shown(&services, record).await?)))
}

/// Get a workspace. Requires an operator key.
#[utoipa::path(get, path = "/v1/workspaces/{id}", tag = "workspaces",
    operation_id = "get_workspace",
    params(("id" = String, Path)), responses((status = 200, body = WorkspaceInfo),
    (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn get(
    State(services): State<Arc<Services>>,
    path: WorkspacePath,
) -> ApiResult<Json<WorkspaceInfo>> {
    let record = services.store.workspace(&path.id).await?;
    Ok(Json(shown(&services, record).await?))
}

/// Delete a workspace and everything in it: keys, apps, functions, schedules, databases, sandboxes,
/// snapshots and volumes, including protected ones. Data on a host that does not respond is deleted when
/// the host returns. Requires an operator key.
#[utoipa::path(delete, path = "/v1/workspaces/{id}", tag = "workspaces",
    operation_id = "delete_workspace",
    params(("id" = String, Path)), responses((status = 204), (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, description = "The workspace `default` cannot be deleted or suspended", body = ErrorBody)))]
pub(crate) async fn delete(
    State(services): State<Arc<Services>>,
    path: WorkspacePath,
) -> ApiResult<StatusCode> {
    tenants::delete(&services, &path.id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Suspend a workspace: its machines go to sleep, its keys are rejected, and its apps respond with a
/// notice. Nothing is lost. Requires an operator key.
#[utoipa::path(post, path = "/v1/workspaces/{id}/suspend", tag = "workspaces",
    operation_id = "suspend_workspace",
    params(("id" = String, Path)), request_body = SuspendWorkspace,
    responses((status = 200, body = WorkspaceInfo),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, description = "The workspace `default` cannot be deleted or suspended", body = ErrorBody)))]
pub(crate) async fn suspend(
    State(services): State<Arc<Services>>,
    path: WorkspacePath,
    JsonBody(request): JsonBody<SuspendWorkspace>,
) -> ApiResult<Json<WorkspaceInfo>> {
    if request.reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES_MAX) {
        return Err(Error::bad_request(format!("`reason` must be at most {REASON_BYTES_MAX} bytes")).into());
    }
    let record = tenants::suspend(&services, &path.id, request.reason).await?;
    Ok(Json(shown(&services, record).await?))
}

/// Resume a suspended workspace. Its machines wake with the next request. Requires an operator key.
#[utoipa::path(post, path = "/v1/workspaces/{id}/resume", tag = "workspaces",
    operation_id = "resume_workspace",
    params(("id" = String, Path)), responses((status = 200, body = WorkspaceInfo),
    (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn resume(
    State(services): State<Arc<Services>>,
    path: WorkspacePath,
) -> ApiResult<Json<WorkspaceInfo>> {
    let record = tenants::resume(&services, &path.id).await?;
    Ok(Json(shown(&services, record).await?))
}

/// Get a workspace's quotas and current usage. Requires an operator key.
#[utoipa::path(get, path = "/v1/workspaces/{id}/quota", tag = "workspaces",
    operation_id = "get_workspace_quota",
    params(("id" = String, Path)), responses((status = 200, body = QuotaReport),
    (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn quota(
    State(services): State<Arc<Services>>,
    path: WorkspacePath,
) -> ApiResult<Json<QuotaReport>> {
    services.store.workspace(&path.id).await?;
    Ok(Json(quota::report(&services, path.id).await?))
}

/// Set a workspace's quotas. For omitted quotas, the platform's limits apply. Requires an operator key.
#[utoipa::path(put, path = "/v1/workspaces/{id}/quota", tag = "workspaces",
    operation_id = "set_workspace_quota",
    params(("id" = String, Path)), request_body = Quota, responses((status = 200, body = QuotaReport),
    (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn set_quota(
    State(services): State<Arc<Services>>,
    path: WorkspacePath,
    JsonBody(wanted): JsonBody<Quota>,
) -> ApiResult<Json<QuotaReport>> {
    services.store.workspace(&path.id).await?;
    Ok(Json(quota::replace(&services, path.id, &wanted).await?))
}

/// List a workspace's API keys, without their secrets. Requires an operator key.
#[utoipa::path(get, path = "/v1/workspaces/{id}/tokens", tag = "workspaces",
    operation_id = "list_workspace_tokens",
    params(("id" = String, Path)), responses((status = 200, body = Items<TokenInfo>),
    (status = 403, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn list_tokens(
    State(services): State<Arc<Services>>,
    path: WorkspacePath,
) -> ApiResult<Json<Items<TokenInfo>>> {
    services.store.workspace(&path.id).await?;
    Ok(Json(tokens::list_of(&services, &path.id).await?))
}

/// Create an API key for a workspace. The response contains its secret, which is not shown again. Requires
/// an operator key.
#[utoipa::path(post, path = "/v1/workspaces/{id}/tokens", tag = "workspaces",
    operation_id = "create_workspace_token",
    params(("id" = String, Path)), request_body = CreateToken, responses((status = 201, body = TokenCreated),
    (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn create_token(
    State(services): State<Arc<Services>>,
    caller: Caller,
    path: WorkspacePath,
    JsonBody(request): JsonBody<CreateToken>,
) -> ApiResult<(StatusCode, Json<TokenCreated>)> {
    let created = tokens::create_in(&services, &caller, &path.id, request).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

/// Rotate an API key of a workspace: replace its secret. The old secret keeps working for
/// `overlap_seconds`. Requires an operator key.
#[utoipa::path(post, path = "/v1/workspaces/{id}/tokens/{prefix}/rotate", tag = "workspaces",
    operation_id = "rotate_workspace_token", params(("id" = String, Path), ("prefix" = String, Path)),
    request_body = RotateToken, responses((status = 201, body = TokenCreated),
    (status = 400, body = ErrorBody),
    (status = 403, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn rotate_token(
    State(services): State<Arc<Services>>,
    caller: Caller,
    path: WorkspacePath,
    JsonBody(request): JsonBody<RotateToken>,
) -> ApiResult<(StatusCode, Json<TokenCreated>)> {
    let created = tokens::rotate_in(&services, &caller, &path.id, &path.prefix, request).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

/// Revoke an API key of a workspace. It stops working immediately. Requires an operator key.
#[utoipa::path(delete, path = "/v1/workspaces/{id}/tokens/{prefix}", tag = "workspaces",
    operation_id = "delete_workspace_token",
    params(("id" = String, Path), ("prefix" = String, Path)), responses(
    (status = 204), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, description = "The last owner or operator key cannot be deleted", body = ErrorBody)))]
pub(crate) async fn delete_token(
    State(services): State<Arc<Services>>,
    caller: Caller,
    path: WorkspacePath,
) -> ApiResult<StatusCode> {
    tokens::delete_in(&services, &caller, &path.id, &path.prefix).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn shown(services: &Services, record: WorkspaceRecord) -> Result<WorkspaceInfo> {
    let used = services.store.quota_use(&record.id).await?;
    Ok(WorkspaceInfo {
        id: record.id,
        state: record.state,
        created_at: record.created_at,
        suspended_at: record.suspended_at,
        suspend_reason: record.suspend_reason,
        quota: record.quota,
        used,
        settings: record.settings,
    })
}
