//! The control plane: sandboxes, snapshots and templates for holders of an API key.
//!
//! The newest routes are under `/v2`; those of older clients stay as aliases. Nothing collides with the native API,
//! which is under `/v1` only.

mod build_log;
mod build_steps;
mod builds;
mod create;
mod extract;
mod json;
mod list;
mod network;
mod paging;
mod query;
mod sandboxes;
mod shape;
mod snapshots;
mod template_list;
mod template_name;

use axum::Router;
use axum::routing::{MethodRouter, any, delete, get, patch, post, put};
use http::StatusCode;

use crate::error::RestError;
use crate::native::Native;

/// All routes of the control plane, and `/files` for signed URLs that name no sandbox.
pub(crate) fn routes(native: Native, signed_files: MethodRouter<Native>) -> Router {
    Router::new()
        .route("/v2/sandboxes", get(list::list).merge(post(create::create_v2)))
        .route("/sandboxes", get(list::list).merge(post(create::create_v1)))
        .route("/sandboxes/{id}", get(sandboxes::get).merge(delete(sandboxes::kill)))
        .route("/v2/sandboxes/{id}/connect", post(sandboxes::connect))
        .route("/sandboxes/{id}/connect", post(sandboxes::connect))
        .route("/sandboxes/{id}/resume", post(sandboxes::connect))
        .route("/sandboxes/{id}/timeout", post(sandboxes::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(sandboxes::refresh))
        .route("/sandboxes/{id}/pause", post(sandboxes::pause))
        .route("/sandboxes/{id}/fork", post(sandboxes::fork))
        .route("/sandboxes/{id}/network", put(sandboxes::set_network))
        .route("/sandboxes/{id}/metrics", get(sandboxes::metrics))
        .route("/sandboxes/{id}/snapshots", post(snapshots::create))
        .route("/snapshots", get(snapshots::list))
        .route("/templates", get(template_list::list).fallback(template_list::unsupported))
        .route("/v2/templates", get(template_list::list).fallback(template_list::unsupported))
        .route("/v3/templates", post(builds::create))
        .route("/templates/aliases/{name}", get(template_list::exists))
        .route("/templates/tags", post(template_list::assign_tags).merge(delete(template_list::delete_tags)))
        .route(
            "/templates/{id}",
            get(template_list::get).merge(delete(template_list::delete)).merge(patch(template_list::update)),
        )
        .route("/templates/{id}/tags", get(template_list::tags))
        .route("/templates/{id}/files/{hash}", get(builds::files))
        .route("/templates/{id}/builds/{build}/status", get(builds::status))
        .route("/v2/templates/{id}/builds/{build}", post(builds::start))
        .route("/templates/{id}/{*rest}", any(template_list::unsupported))
        .route("/v2/templates/{id}", patch(template_list::update).fallback(template_list::unsupported))
        .route("/v2/templates/{id}/{*rest}", any(template_list::unsupported))
        .route("/volumes", any(volumes))
        .route("/volumes/{*rest}", any(volumes))
        .route("/volumecontent/{*rest}", any(volumes))
        .route("/secrets", any(secrets))
        .route("/secrets/{*rest}", any(secrets))
        .route("/files", signed_files)
        .method_not_allowed_fallback(wrong_method)
        .with_state(native)
}

async fn volumes() -> RestError {
    RestError::unsupported("volumes are")
}

async fn secrets() -> RestError {
    RestError::unsupported("secrets are")
}

async fn wrong_method() -> RestError {
    RestError::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed")
}
