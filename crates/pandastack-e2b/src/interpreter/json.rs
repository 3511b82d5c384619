//! JSON bodies of the interpreter's requests and responses.

use axum::Json;
use axum::body::Body;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use pandastack_types::limits::CODE_BYTES_MAX;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use crate::error::{RestError, RestResult};
use crate::limits::BODY_WAIT;

/// Maximum size of a request: its code, escaped, and the other fields.
const REQUEST_BYTES_MAX: usize = 2 * CODE_BYTES_MAX + 64 * 1024;

/// Reads a JSON body; an empty one is `{}`.
pub(super) async fn read_json<T: DeserializeOwned>(body: Body) -> RestResult<T> {
    let read = timeout(BODY_WAIT, Limited::new(body, REQUEST_BYTES_MAX).collect()).await;
    let collected = read.map_err(|_| RestError::body_timeout())?.map_err(|_| {
        let what = format!("the request is incomplete or its code exceeds {CODE_BYTES_MAX} bytes");
        RestError::new(StatusCode::PAYLOAD_TOO_LARGE, what)
    })?;
    let bytes = collected.to_bytes();
    let text = if bytes.trim_ascii().is_empty() { b"{}".as_slice() } else { &bytes };
    serde_json::from_slice(text)
        .map_err(|error| RestError::bad_request(format!("invalid request body: {error}")))
}

/// `{}`, a body that clients ignore.
pub(super) fn empty_object() -> Json<Value> {
    Json(Value::Object(serde_json::Map::new()))
}
