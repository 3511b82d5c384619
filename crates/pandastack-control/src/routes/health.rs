//! Health, version, metrics and the API's description. No key needed, so nothing here names a sandbox.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use pandastack_metrics::Page;
use pandastack_rest::ApiResult;
use pandastack_types::api::Version;
use pandastack_types::{Error, ErrorBody, ErrorCode};
use serde::Serialize;
use utoipa::ToSchema;

use crate::services::Services;

/// Response of a health check.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// Always `ok`.
    status: &'static str,
}

/// Check that the server process is running.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses((status = 200, body = Health)))]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Check that the database and at least one host respond.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()), responses((status = 200, body = Health), (status = 503, body = ErrorBody)))]
pub(crate) async fn readyz(State(services): State<Arc<Services>>) -> ApiResult<Json<Health>> {
    if let Err(error) = services.store.ping().await {
        let message = "the database is not responding; try again shortly";
        return Err(Error { cause: Some(error.into()), ..Error::new(ErrorCode::Unavailable, message) }.into());
    }
    if services.hosts.clients().is_empty() {
        return Err(Error::new(ErrorCode::Unavailable, "no host is connected; start an agent").into());
    }
    Ok(Json(Health { status: "ok" }))
}

/// Get the version of the server and of the API.
#[utoipa::path(get, path = "/version", tag = "health", security(()), responses((status = 200, body = Version)))]
pub(crate) async fn version() -> Json<Version> {
    Json(Version { version: env!("CARGO_PKG_VERSION").to_owned(), api: "v1".to_owned() })
}

/// Get metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", tag = "health", security(()), responses((status = 200, content_type = "text/plain", body = String)))]
pub(crate) async fn metrics(State(services): State<Arc<Services>>) -> ApiResult<Response> {
    let denied = services.sandboxes.egress_denied();
    let states = services.store.count_states().await?;
    let mut page = Page::default();
    services.metrics.add_to(&mut page, &states, &services.hosts.list(), denied);
    services.edge.add_metrics(&mut page);
    services.functions.add_metrics(&mut page);
    services.scheduler.add_metrics(&mut page);
    services.event_webhooks.add_metrics(&mut page);
    Ok(([(CONTENT_TYPE, pandastack_metrics::CONTENT_TYPE)], page.into_text()).into_response())
}

/// The description of this API.
pub(crate) async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], crate::openapi::openapi_json()).into_response()
}
