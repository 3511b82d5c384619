//! The API of builds.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::{StatusCode, header};
use http_body_util::Limited;
use pandastack_rest::extract::is_set;
use pandastack_rest::{ApiResult, Caller, Id, JsonBody, Query};
use pandastack_store::StoreError;
use pandastack_store::templates::BuildRecord;
use pandastack_types::api::{Build, CreateBuild, StartBuild};
use pandastack_types::limits::BUILD_CONTEXT_BYTES_MAX;
use pandastack_types::{BuildId, Error, ErrorBody, ErrorCode, Result};
use serde::Deserialize;

use crate::service::Templates;
use crate::{catalogue, log, ops, view};

/// Query parameters of a log.
#[derive(Deserialize)]
pub struct LogArgs {
    follow: Option<String>,
    offset: Option<u64>,
}

/// A build of the workspace; `None` if no build has that id.
async fn own_build(templates: &Templates, caller: &Caller, id: &BuildId) -> Result<Option<BuildRecord>> {
    match templates.store.build(&caller.workspace, id).await {
        Err(StoreError::NotFound { .. }) => Ok(None),
        found => Ok(Some(found?)),
    }
}

async fn find(templates: &Templates, caller: &Caller, id: &BuildId) -> Result<BuildRecord> {
    Ok(templates.store.build(&caller.workspace, id).await?)
}

/// Create a template build. Without `start`, it waits for files and for `.../start`.
#[utoipa::path(post, path = "/v1/templates/builds", tag = "templates", request_body = CreateBuild, responses(
    (status = 202, body = Build), (status = 400, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn create(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    JsonBody(request): JsonBody<CreateBuild>,
) -> ApiResult<(StatusCode, Json<Build>)> {
    let record = ops::create(&templates, caller.workspace, request).await?;
    Ok((StatusCode::ACCEPTED, Json(view::build(record))))
}

/// Add files to a build from a tar archive, compressed or not. Can be repeated.
#[utoipa::path(put, path = "/v1/templates/builds/{id}/files", tag = "templates",
    params(("id" = BuildId, Path)),
    request_body(content = Vec<u8>, content_type = "application/x-tar"), responses(
    (status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, description = "The build was already started", body = ErrorBody), (status = 413, body = ErrorBody)))]
pub async fn add_files(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    Id(id): Id<BuildId>,
    request: Request,
) -> ApiResult<StatusCode> {
    let build = find(&templates, &caller, &id).await?;
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > BUILD_CONTEXT_BYTES_MAX) {
        let message = format!(
            "build files must be at most {BUILD_CONTEXT_BYTES_MAX} bytes; leave some out with .dockerignore"
        );
        return Err(Error::new(ErrorCode::BodyTooLarge, message).into());
    }
    let limit = usize::try_from(BUILD_CONTEXT_BYTES_MAX).unwrap_or(usize::MAX);
    let body = Body::new(Limited::new(request.into_body(), limit));
    ops::add_files(&templates, &build, body).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Start a build after its files were added.
#[utoipa::path(post, path = "/v1/templates/builds/{id}/start", tag = "templates",
    params(("id" = BuildId, Path)),
    request_body = StartBuild, responses((status = 202, body = Build), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn start(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    Id(id): Id<BuildId>,
    JsonBody(request): JsonBody<StartBuild>,
) -> ApiResult<(StatusCode, Json<Build>)> {
    let build = find(&templates, &caller, &id).await?;
    let record = ops::start(&templates, build, request).await?;
    Ok((StatusCode::ACCEPTED, Json(view::build(record))))
}

/// Cancel a build. Its command is killed immediately.
#[utoipa::path(post, path = "/v1/templates/builds/{id}/cancel", tag = "templates",
    params(("id" = BuildId, Path)),
    responses((status = 202), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn cancel(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    Id(id): Id<BuildId>,
) -> ApiResult<StatusCode> {
    let build = find(&templates, &caller, &id).await?;
    ops::cancel(&templates, build).await?;
    Ok(StatusCode::ACCEPTED)
}

/// List template builds of the workspace and of all hosts that respond, newest first.
#[utoipa::path(get, path = "/v1/templates/builds", tag = "templates", operation_id = "builds",
    responses((status = 200, body = Vec<Build>)))]
pub async fn list(State(templates): State<Arc<Templates>>, caller: Caller) -> ApiResult<Json<Vec<Build>>> {
    let mut builds = catalogue::bakes(&templates, &caller).await;
    builds.extend(templates.store.builds(&caller.workspace).await?.into_iter().map(view::build));
    builds.sort_by_key(|build| std::cmp::Reverse(build.started_at));
    Ok(Json(caller.shown(builds)))
}

/// Get a template build.
#[utoipa::path(get, path = "/v1/templates/builds/{id}", tag = "templates", operation_id = "build",
    params(("id" = BuildId, Path)), responses((status = 200, body = Build),
    (status = 404, body = ErrorBody)))]
pub async fn describe(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    Id(id): Id<BuildId>,
) -> ApiResult<Json<Build>> {
    match own_build(&templates, &caller, &id).await? {
        Some(record) => Ok(Json(caller.shown(view::build(record)))),
        None => Ok(Json(catalogue::shown(catalogue::find(&templates, &id).await?.1, &caller))),
    }
}

/// Stream a build's log as server-sent events, one line each, ended by `event: done`. With `follow=1`,
/// continue until the build ends.
#[utoipa::path(get, path = "/v1/templates/builds/{id}/logs", tag = "templates", operation_id = "build_logs",
    params(("id" = BuildId, Path), ("follow" = Option<String>, Query),
        ("offset" = Option<u64>, Query, description = "Number of lines to skip")),
    responses((status = 200, content_type = "text/event-stream", body = String),
    (status = 404, body = ErrorBody)))]
pub async fn logs(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    Id(id): Id<BuildId>,
    Query(args): Query<LogArgs>,
) -> ApiResult<Response> {
    let (follow, first) = (is_set(args.follow.as_deref()), args.offset.unwrap_or_default());
    match own_build(&templates, &caller, &id).await? {
        Some(record) => Ok(log::respond(&templates, &record, first, follow)),
        None => Ok(catalogue::bake_logs(&templates, &id, first, follow).await?),
    }
}
