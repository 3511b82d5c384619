//! The code interpreter that E2B's clients expect on port 49999 of a sandbox: the platform's code contexts in their form.

mod context;
mod execution;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use pandastack_types::api::Preview;
use pandastack_types::limits::CODE_BYTES_MAX;
use pandastack_types::preview::Visibility;
use serde::de::DeserializeOwned;
use serde_json::Value;
use subtle::ConstantTimeEq;

use crate::envd::{Session, check_token};
use crate::error::{RestError, RestResult};
use crate::native::Native;

/// Room for what stands around the code in a request.
const REQUEST_BYTES_MAX: usize = 2 * CODE_BYTES_MAX + 64 * 1024;

/// Routes of the interpreter's port.
pub(crate) fn routes(native: Native) -> Router {
    let execute = Router::new()
        .route("/execute", post(execution::execute))
        .layer(from_fn_with_state(native.clone(), check_token));
    let contexts = Router::new()
        .route("/contexts", get(context::list).merge(post(context::create)))
        .route("/contexts/{id}", axum::routing::delete(context::remove))
        .route("/contexts/{id}/restart", post(context::restart))
        .layer(from_fn_with_state(native.clone(), check_traffic));
    execute
        .merge(contexts)
        .route("/health", get(async || StatusCode::OK))
        .fallback(async || {
            RestError::new(StatusCode::NOT_FOUND, "route not found on the code interpreter's port")
        })
        .with_state(native)
}

/// Clients send no access token with these calls. Who knows the sandbox's unguessable id may make them, as for any other
/// port, unless the sandbox's ports are private: then its traffic token is needed.
async fn check_traffic(State(_): State<Native>, session: Session, request: Request, next: Next) -> Response {
    let preview: Preview = match session.native.get(&session.path("preview")).await {
        Ok(preview) => preview,
        Err(error) => return RestError::from(error).into_response(),
    };
    let given = request.headers().get("e2b-traffic-access-token").map_or(&b""[..], |value| value.as_bytes());
    let is_open = match (preview.visibility, preview.token) {
        (Visibility::Unlisted, _) => true,
        (Visibility::Private, Some(token)) => bool::from(token.as_bytes().ct_eq(given)),
        _ => false,
    };
    match is_open {
        true => next.run(request).await,
        false => {
            let what = "the traffic access token is missing or wrong; send it in `E2b-Traffic-Access-Token`";
            RestError::new(StatusCode::FORBIDDEN, what).into_response()
        }
    }
}

async fn read_json<T: DeserializeOwned>(body: Body) -> RestResult<T> {
    let collected = Limited::new(body, REQUEST_BYTES_MAX).collect().await.map_err(|_| {
        let what = format!("the request is incomplete or its code exceeds {CODE_BYTES_MAX} bytes");
        RestError::new(StatusCode::PAYLOAD_TOO_LARGE, what)
    })?;
    let bytes = collected.to_bytes();
    let text = if bytes.trim_ascii().is_empty() { b"{}".as_slice() } else { &bytes };
    serde_json::from_slice(text)
        .map_err(|error| RestError::bad_request(format!("invalid request body: {error}")))
}

/// An answer whose body clients ignore.
fn done() -> Json<Value> {
    Json(Value::Object(serde_json::Map::new()))
}
