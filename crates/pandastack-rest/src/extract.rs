//! Extractors that reject with our JSON errors, never the framework's plain text.

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use pandastack_types::limits::{JSON_BODY_BYTES_MAX, JSON_BODY_SECONDS_MAX};
use pandastack_types::{
    BuildId, DatabaseId, DeploymentId, Error, ErrorCode, FunctionId, HostId, Result, RunId, SandboxId,
    ScheduleId, SnapshotId,
};
use serde::de::DeserializeOwned;

use crate::{ApiError, ApiResult};

/// Longest time for a JSON body to arrive. Beyond it: 408 `request_timeout`.
pub const JSON_BODY_WAIT: Duration = Duration::from_secs(JSON_BODY_SECONDS_MAX);

/// A JSON body, whatever its content type says; an empty one is `{}`.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> ApiResult<Self> {
        let bytes = read_body(request.into_body()).await?;
        Ok(JsonBody(parse_json(&bytes)?))
    }
}

/// Reads a JSON body within its limits of bytes and time.
pub async fn read_body(body: axum::body::Body) -> Result<bytes::Bytes> {
    read_body_within(body, JSON_BODY_BYTES_MAX, JSON_BODY_WAIT).await
}

/// Reads a body of at most `bytes_max` that arrives within `wait`. The deadline is for the whole body: a
/// client that sends a byte now and then must not hold a request open, and with it the permission of its key.
pub async fn read_body_within(
    body: axum::body::Body,
    bytes_max: usize,
    wait: Duration,
) -> Result<bytes::Bytes> {
    let read = tokio::time::timeout(wait, Limited::new(body, bytes_max).collect()).await;
    let seconds = wait.as_secs();
    let late = |_| {
        let message = format!("the request body did not arrive within {seconds} s; send it again");
        Error::new(ErrorCode::RequestTimeout, message)
    };
    match read.map_err(late)? {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Error::new(
            ErrorCode::BodyTooLarge,
            format!("the request body is larger than {bytes_max} bytes"),
        )),
        Err(_) => Err(Error::bad_request("the request body is incomplete; send it again")),
    }
}

/// Parses a JSON object; nothing and `null` count as `{}`.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let text = bytes.trim_ascii();
    let text = if text.is_empty() || text == b"null" { b"{}" } else { text };
    // serde would also take an array of the fields in order, which nobody means.
    if !text.starts_with(b"{") {
        return Err(Error::bad_request("the request body must be a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, cause) = (error.path().to_string(), error.inner());
        match path.as_str() {
            "." | "?" => Error::bad_request(format!("invalid request body: {cause}")),
            field => Error::bad_request(format!("invalid value for `{field}`: {cause}")),
        }
    })?;
    json.end()
        .map_err(|error| Error::bad_request(format!("unexpected data after the JSON body: {error}")))?;
    Ok(value)
}

/// Query arguments.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> ApiResult<Self> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        let refused = |error: axum::extract::rejection::QueryRejection| {
            let text = error.body_text();
            let cause = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
            Error::bad_request(format!("invalid query: {cause}"))
        };
        Ok(Query(query.map_err(refused)?.0))
    }
}

/// Whether a query flag is set; clients write `1`, `true` or nothing.
pub fn is_set(flag: Option<&str>) -> bool {
    flag.is_some_and(|value| !matches!(value, "0" | "false"))
}

/// Something that stands in a path.
pub trait InPath: std::str::FromStr {
    /// What to call it when there is none.
    const WHAT: &'static str;
}

impl InPath for SandboxId {
    const WHAT: &'static str = "sandbox";
}
impl InPath for SnapshotId {
    const WHAT: &'static str = "snapshot";
}
impl InPath for DeploymentId {
    const WHAT: &'static str = "deployment";
}
impl InPath for DatabaseId {
    const WHAT: &'static str = "database";
}
impl InPath for BuildId {
    const WHAT: &'static str = "build";
}
impl InPath for HostId {
    const WHAT: &'static str = "host";
}
impl InPath for FunctionId {
    const WHAT: &'static str = "function";
}
impl InPath for RunId {
    const WHAT: &'static str = "run";
}
impl InPath for ScheduleId {
    const WHAT: &'static str = "schedule";
}
/// Names and prefixes: any text is looked up.
impl InPath for String {
    const WHAT: &'static str = "thing";
}

/// The last parameter of the path. Text that cannot be an id names nothing, so the answer is 404.
pub struct Id<T>(pub T);

impl<T: InPath, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let unknown = |text: &str| Error::not_found(T::WHAT, text);
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| unknown("?"))?;
        let text = params.iter().last().map(|(_, value)| value).unwrap_or_default();
        Ok(Id(text.parse().map_err(|_| unknown(text))?))
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::StreamExt;

    use super::*;

    #[tokio::test]
    async fn a_body_that_does_not_end_is_refused_in_time() {
        let first = futures::stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from_static(b"{"))]);
        let body = Body::from_stream(first.chain(futures::stream::pending()));
        let late = read_body_within(body, 10, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(late.code, ErrorCode::RequestTimeout);
        let large = read_body_within(Body::from("12345678901"), 10, JSON_BODY_WAIT).await.unwrap_err();
        assert_eq!(large.code, ErrorCode::BodyTooLarge);
        assert_eq!(read_body(Body::from("{}")).await.unwrap(), "{}");
    }
}
