//! The API of templates: those of the platform and those of the workspace.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use http::StatusCode;
use pandastack_rest::{ApiError, ApiResult, Caller, Id, JsonBody};
use pandastack_store::template_ref::TemplateRef;
use pandastack_types::api::{Build, PublishTemplate, SetTemplateTag, Template, TemplateSharing, TemplateTag};
use pandastack_types::{Error, ErrorBody, ErrorCode};

use crate::service::Templates;
use crate::{build_routes, catalogue, ops, sharing, view};

/// Routes of calls that create something and accept an `Idempotency-Key`, with their state.
pub fn once_only(templates: &Arc<Templates>) -> Router {
    Router::new()
        .route("/templates/{name}/bake", post(catalogue::bake))
        .route("/templates/builds", post(build_routes::create))
        .route("/templates/publish", post(publish))
        .route("/templates/{name}/rebuild", post(rebuild))
        .with_state(Arc::clone(templates))
}

/// Routes of the other calls, with their state.
pub fn repeatable(templates: &Arc<Templates>) -> Router {
    Router::new()
        .route("/templates", get(list))
        .route("/templates/build", post(absent))
        .route("/templates/builds", get(build_routes::list))
        .route("/templates/builds/{id}", get(build_routes::describe))
        .route("/templates/builds/{id}/files", put(build_routes::add_files))
        .route("/templates/builds/{id}/start", post(build_routes::start))
        .route("/templates/builds/{id}/cancel", post(build_routes::cancel))
        .route("/templates/builds/{id}/logs", get(build_routes::logs))
        .route("/templates/{name}", get(describe).delete(remove))
        .route("/templates/{name}/sharing", put(set_sharing))
        .route("/templates/{name}/tags", get(tags))
        .route("/templates/{name}/tags/{tag}", put(set_tag))
        .route("/templates/{name}/tags/{tag}", delete(delete_tag))
        .with_state(Arc::clone(templates))
}

/// List templates: those of the platform, of the workspace, and those that other workspaces share with it by
/// name. Public templates of others are not listed.
#[utoipa::path(get, path = "/v1/templates", tag = "templates",
    responses((status = 200, body = Vec<Template>)))]
pub async fn list(State(templates): State<Arc<Templates>>, caller: Caller) -> ApiResult<Json<Vec<Template>>> {
    let mut all = templates.platform.list();
    for record in templates.store.templates(&caller.workspace).await? {
        all.push(caller.shown(view::template(&templates, record).await?));
    }
    for record in templates.readers.shared_templates(&caller.workspace).await? {
        all.push(view::shared_template(&templates, record).await?);
    }
    Ok(Json(all))
}

/// The template that a path names.
fn reference(name: &str) -> Result<TemplateRef, Error> {
    name.parse().map_err(|_| Error::not_found("template", name))
}

/// Get a template by name or alias. `NAME:TAG` returns the version of a tag, `NAME@BUILD` that of a build.
/// `WORKSPACE/NAME` is a template that another workspace shares; write the slash as `%2F`.
#[utoipa::path(get, path = "/v1/templates/{name}", tag = "templates",
    params(("name" = String, Path)), responses(
    (status = 200, body = Template), (status = 404, body = ErrorBody)))]
pub async fn describe(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    Id(name): Id<String>,
) -> ApiResult<Json<Template>> {
    let mut global = templates.platform.list().into_iter();
    if let Some(found) = global.find(|one| one.name == name || one.aliases.contains(&name)) {
        return Ok(Json(found));
    }
    let reference = reference(&name)?;
    let record = sharing::find(&templates, &caller.workspace, &reference).await?;
    let found = view::version(&templates, &caller.workspace, record, &reference).await?;
    Ok(Json(caller.shown(found)))
}

/// Delete a template with all its versions. Sandboxes created from it are kept.
#[utoipa::path(delete, path = "/v1/templates/{name}", tag = "templates",
    params(("name" = String, Path)), responses(
    (status = 204), (status = 403, description = "The template comes with the platform", body = ErrorBody),
    (status = 404, body = ErrorBody), (status = 409, description = "The template is being built", body = ErrorBody)))]
pub async fn remove(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    Id(name): Id<String>,
) -> ApiResult<StatusCode> {
    if templates.platform.contains(&name) {
        let message = format!("template `{name}` comes with the platform and cannot be deleted");
        return Err(Error::new(ErrorCode::Forbidden, message).into());
    }
    ops::delete(&templates, &caller.workspace, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Publish a snapshot as a version of a template.
#[utoipa::path(post, path = "/v1/templates/publish", tag = "templates",
    request_body = PublishTemplate, responses(
    (status = 201, body = Build), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn publish(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    JsonBody(request): JsonBody<PublishTemplate>,
) -> ApiResult<(StatusCode, Json<Build>)> {
    let record = ops::publish(&templates, caller.workspace, request).await?;
    Ok((StatusCode::CREATED, Json(view::build(record))))
}

/// Build a version of a template again, with fresh images and without the cache. Joins a rebuild of the same
/// version that is in progress. The new version gets the tags that mean the old one; the build's `changes`
/// say what differs. `NAME:TAG` rebuilds the version of a tag.
#[utoipa::path(post, path = "/v1/templates/{name}/rebuild", tag = "templates",
    params(("name" = String, Path)), responses(
    (status = 202, body = Build), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 409, description = "The inputs of the build were not kept", body = ErrorBody)))]
pub async fn rebuild(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    Id(name): Id<String>,
) -> ApiResult<(StatusCode, Json<Build>)> {
    let record = crate::rebuild::start(&templates, &caller.workspace, &name).await?;
    Ok((StatusCode::ACCEPTED, Json(view::build(record))))
}

/// Replace the workspaces that may use a template, as `WORKSPACE/NAME`. They can create sandboxes from all of
/// its versions and build templates from them. Sandboxes that exist are kept.
#[utoipa::path(put, path = "/v1/templates/{name}/sharing", tag = "templates",
    params(("name" = String, Path)), request_body = TemplateSharing, responses(
    (status = 200, body = Template), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn set_sharing(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    Id(name): Id<String>,
    JsonBody(request): JsonBody<TemplateSharing>,
) -> ApiResult<Json<Template>> {
    let template = sharing::set(&templates, &caller.workspace, &name, request).await?;
    Ok(Json(caller.shown(view::template(&templates, template).await?)))
}

/// List the tags of a template.
#[utoipa::path(get, path = "/v1/templates/{name}/tags", tag = "templates",
    params(("name" = String, Path)), responses(
    (status = 200, body = Vec<TemplateTag>), (status = 404, body = ErrorBody)))]
pub async fn tags(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    Id(name): Id<String>,
) -> ApiResult<Json<Vec<TemplateTag>>> {
    let template = sharing::find(&templates, &caller.workspace, &reference(&name)?).await?;
    let tags = templates.store.tags(&template.id).await?;
    Ok(Json(tags.into_iter().map(view::tag).collect()))
}

/// Point a tag to a finished build. Set `latest` to roll a template back.
#[utoipa::path(put, path = "/v1/templates/{name}/tags/{tag}", tag = "templates",
    params(("name" = String, Path), ("tag" = String, Path)), request_body = SetTemplateTag, responses(
    (status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn set_tag(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    axum::extract::Path((name, tag)): axum::extract::Path<(String, String)>,
    JsonBody(request): JsonBody<SetTemplateTag>,
) -> ApiResult<StatusCode> {
    let template = ops::find(&templates, &caller.workspace, &name).await?;
    ops::set_tags(&templates, &template, &[tag], &request.build_id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Delete a tag. The version that it pointed to is kept for a while.
#[utoipa::path(delete, path = "/v1/templates/{name}/tags/{tag}", tag = "templates",
    params(("name" = String, Path), ("tag" = String, Path)), responses(
    (status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub async fn delete_tag(
    State(templates): State<Arc<Templates>>,
    caller: Caller,
    axum::extract::Path((name, tag)): axum::extract::Path<(String, String)>,
) -> ApiResult<StatusCode> {
    let template = ops::find(&templates, &caller.workspace, &name).await?;
    ops::delete_tag(&templates, &template, &tag).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The form that published clients send, which this server does not read.
async fn absent() -> ApiError {
    let message =
        "build templates with POST /v1/templates/builds, or with `pandastack template build --name NAME DIR`";
    Error::new(ErrorCode::NotImplemented, message).into()
}
