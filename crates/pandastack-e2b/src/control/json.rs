//! JSON request bodies.

use axum::body::Body;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use pandastack_types::limits::JSON_BODY_BYTES_MAX;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;

use crate::error::{RestError, RestResult};
use crate::limits::BODY_WAIT;

/// Reads a JSON body of any content type and transfer encoding; an empty one is `{}`.
pub(super) async fn read_json<T: DeserializeOwned>(body: Body) -> RestResult<T> {
    let read = timeout(BODY_WAIT, Limited::new(body, JSON_BODY_BYTES_MAX).collect()).await;
    let collected = read.map_err(|_| RestError::body_timeout())?.map_err(|error| {
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

/// Returns whether a value is null, `{}` or `[]`.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}
