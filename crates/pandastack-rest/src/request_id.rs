//! Request ids: the client's `x-request-id` or a new one. It is echoed, logged, and added to error
//! bodies here, because only this layer knows both.

use axum::Json;
use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
pub use pandastack_agent_client::request_id::REQUEST_ID;
use pandastack_agent_client::request_id::scope;
use pandastack_types::SandboxId;
use percent_encoding::percent_decode_str;
use tracing::Instrument;

use crate::error::Failure;

/// Longest id taken from a client; a longer one is replaced.
const REQUEST_ID_BYTES_MAX: usize = 128;

fn accepted(value: &HeaderValue) -> Option<&str> {
    let text = value.to_str().ok()?;
    let good = (1..=REQUEST_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    good.then_some(text)
}

/// The sandbox that a path names, however it is encoded: handlers read it decoded.
pub fn sandbox_of(path: &str) -> Option<SandboxId> {
    let segment = path.strip_prefix("/v1/sandboxes/")?.split('/').next()?;
    percent_decode_str(segment).decode_utf8().ok()?.parse().ok()
}

/// The outermost layer.
pub async fn with_request_id(mut request: Request, next: Next) -> Response {
    let id = request.headers().get(&REQUEST_ID).and_then(accepted).map(str::to_owned);
    let id = id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let value = HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("invalid"));
    request.headers_mut().insert(REQUEST_ID, value.clone());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = route.unwrap_or_else(|| "unknown".to_owned());
    let sandbox = sandbox_of(request.uri().path()).map(|id| id.to_string());
    let status = tracing::field::Empty;
    let span = tracing::info_span!("request", id = %id, sandbox, %method, %route, status);
    let response = scope(value.clone(), next.run(request)).instrument(span.clone()).await;
    let _entered = span.enter();
    let mut response = finish(response, &id);
    span.record("status", response.status().as_u16());
    response.headers_mut().insert(REQUEST_ID, value);
    response
}

/// Adds the id to an error body, and logs the cause.
fn finish(mut response: Response, id: &str) -> Response {
    let Some(mut failure) = response.extensions_mut().remove::<Failure>() else { return response };
    if response.status().is_server_error() {
        tracing::warn!(code = %failure.body.code, error = failure.body.error, cause = failure.causes, "call failed");
    }
    failure.body.request_id = Some(id.to_owned());
    let mut rendered = (response.status(), Json(&failure.body)).into_response();
    for (name, value) in response.headers() {
        if name != header::CONTENT_LENGTH && name != header::CONTENT_TYPE {
            rendered.headers_mut().insert(name, value.clone());
        }
    }
    rendered
}
