//! The control plane: sandboxes, snapshots and templates for holders of an API key.
//!
//! The newest routes are under `/v2`; those of older clients stay as aliases. Nothing collides with the native API,
//! which is under `/v1` only.

mod create;
mod list;
mod network;
mod paging;
mod sandboxes;
pub(crate) mod shape;
mod snapshots;
mod templates;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams};
use axum::routing::{any, delete, get, post, put};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use pandastack_types::SandboxId;
use pandastack_types::limits::JSON_BODY_BYTES_MAX;
use serde::de::DeserializeOwned;

use crate::envd;
use crate::error::{RestError, RestResult};
use crate::native::{Caller, Identity, Native};

/// All routes of the control plane, and `/files` for signed URLs that name no sandbox.
pub(crate) fn routes(native: Native) -> Router {
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
        .route("/templates/aliases/{name}", get(templates::exists))
        .route("/templates/{id}", delete(snapshots::delete).merge(get(templates::unsupported)))
        .route("/templates", any(templates::unsupported))
        .route("/templates/{id}/{*rest}", any(templates::unsupported))
        .route("/v2/templates/{*rest}", any(templates::unsupported))
        .route("/v3/templates", any(templates::unsupported))
        .route("/volumes", any(volumes))
        .route("/volumes/{*rest}", any(volumes))
        .route("/volumecontent/{*rest}", any(volumes))
        .route("/secrets", any(secrets))
        .route("/secrets/{*rest}", any(secrets))
        .route("/files", get(envd::files::read_signed).merge(post(envd::files::write_signed)))
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

/// The native API as the holder of the key that a request presents; the native API decides whether the key is good.
pub(crate) struct Keyed(pub(crate) Caller);

impl FromRequestParts<Native> for Keyed {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, native: &Native) -> RestResult<Self> {
        let key = presented(&parts.headers).ok_or_else(|| {
            let what = "`X-API-Key` is missing; set E2B_API_KEY to an API key of this server (`pds_...`)";
            RestError::new(StatusCode::UNAUTHORIZED, what)
        })?;
        Ok(Keyed(native.caller(Identity::Key(key))))
    }
}

fn presented(headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = || text(header::AUTHORIZATION.as_str())?.strip_prefix("Bearer ");
    text("x-api-key").or_else(bearer).map(|key| key.trim().to_owned())
}

/// The sandbox that a path names. Text that cannot be an id names nothing.
pub(crate) struct Of(pub(crate) SandboxId);

impl<S: Send + Sync> FromRequestParts<S> for Of {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> RestResult<Self> {
        let text = segment(parts, state).await?;
        text.parse().map(Of).map_err(|_| no_sandbox(&text))
    }
}

/// The one parameter of a path, decoded after the path was split.
pub(crate) struct Segment(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> RestResult<Self> {
        segment(parts, state).await.map(Segment)
    }
}

async fn segment<S: Send + Sync>(parts: &mut Parts, state: &S) -> RestResult<String> {
    let malformed = |_| RestError::bad_request("the request URL is malformed");
    let params = RawPathParams::from_request_parts(parts, state).await.map_err(malformed)?;
    Ok(params.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default())
}

fn no_sandbox(text: &str) -> RestError {
    let shown: String = text.chars().take(80).collect();
    RestError::new(StatusCode::NOT_FOUND, format!("sandbox `{shown}` not found"))
}

/// A JSON body, whatever its content type and however it is sent; an empty one is `{}`.
async fn read_json<T: DeserializeOwned>(body: Body) -> RestResult<T> {
    let collected = Limited::new(body, JSON_BODY_BYTES_MAX).collect().await.map_err(|error| {
        let too_long = error.is::<http_body_util::LengthLimitError>();
        let status = if too_long { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
        RestError::new(
            status,
            format!("the request body is incomplete, or larger than {JSON_BODY_BYTES_MAX} bytes"),
        )
    })?;
    let bytes = collected.to_bytes();
    let text = if bytes.trim_ascii().is_empty() { b"{}".as_slice() } else { &bytes };
    serde_json::from_slice(text)
        .map_err(|error| RestError::bad_request(format!("invalid request body: {error}")))
}
