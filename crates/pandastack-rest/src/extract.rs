//! Extractors that reject with our JSON errors, never the framework's plain text.

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use pandastack_types::limits::{JSON_BODY_BYTES_MAX, JSON_BODY_SECONDS_MAX};
use pandastack_types::{
    BuildId, DatabaseId, DeploymentId, Error, ErrorCode, FunctionId, HostId, MemberId, Result, RunId,
    SandboxId, ScheduleId, SnapshotId, WebhookId,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa::ToSchema;

use crate::shape::Shape;
use crate::{ApiError, ApiResult, named};

/// Longest time for a JSON body to arrive. Beyond it: 408 `request_timeout`.
pub const JSON_BODY_WAIT: Duration = Duration::from_secs(JSON_BODY_SECONDS_MAX);

/// A JSON body, of any content type; an empty body is `{}`.
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned + ToSchema + 'static, S: Send + Sync> FromRequest<S> for JsonBody<T> {
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

/// Parses a JSON object; nothing and `null` count as `{}`. Refuses fields that the type's schema
/// does not have, and values of the wrong kind, with the expected kind in the message.
pub fn parse_json<T: DeserializeOwned + ToSchema + 'static>(bytes: &[u8]) -> Result<T> {
    let text = object_text(bytes)?;
    let shape = Shape::of::<T>();
    let body: Value = read_json(text, |error| refuse_json(&error.to_string()))?;
    if let Some(refusal) = shape.unknown_field(&body) {
        return Err(Error::bad_request(refusal));
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, cause) = (error.path().to_string(), error.inner().to_string());
        // Serde does not know the path of fields that a type shares with others, nor in alternatives.
        let lost = path == "." || path.contains('?');
        let mut mismatches = shape.mismatches(&body).into_iter();
        match mismatches.find(|mismatch| lost || mismatch.path == path) {
            Some(mismatch) => Error::bad_request(mismatch.message),
            None if lost => refuse_json(&cause),
            None if cause.starts_with("invalid value: integer") => {
                Error::bad_request(format!("{path} is out of range: {}", without_position(&cause)))
            }
            None => Error::bad_request(format!("invalid value for `{path}`: {}", without_position(&cause))),
        }
    })
}

/// Parses a JSON object that others define, such as a driver of a database: fields that the type does not
/// have are ignored.
pub fn parse_open_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    read_json(object_text(bytes)?, |error| refuse_json(&error.to_string()))
}

/// The text of a JSON object. Serde would also accept an array of the fields in order, which is
/// never intended.
fn object_text(bytes: &[u8]) -> Result<&[u8]> {
    let text = bytes.trim_ascii();
    let text = if text.is_empty() || text == b"null" { b"{}" } else { text };
    match text.starts_with(b"{") {
        true => Ok(text),
        false => Err(Error::bad_request("the request body must be a JSON object")),
    }
}

fn read_json<T: DeserializeOwned>(text: &[u8], refuse: impl Fn(serde_json::Error) -> Error) -> Result<T> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = T::deserialize(&mut json).map_err(refuse)?;
    json.end()
        .map_err(|error| Error::bad_request(format!("unexpected data after the JSON body: {error}")))?;
    Ok(value)
}

fn refuse_json(cause: &str) -> Error {
    Error::bad_request(format!("invalid request body: {cause}"))
}

/// A cause without the line and column that serde adds: the field's name is more useful.
fn without_position(cause: &str) -> &str {
    cause.rsplit_once(" at line ").map_or(cause, |(cause, _)| cause)
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

/// Returns whether a query flag is set; clients write `1`, `true` or nothing.
pub fn is_set(flag: Option<&str>) -> bool {
    flag.is_some_and(|value| !matches!(value, "0" | "false"))
}

/// A type that can stand in a path.
pub trait InPath: std::str::FromStr {
    /// Name of the resource in "not found" errors.
    const WHAT: &'static str;
    /// Whether a name, or the beginning of an id, may stand there.
    const NAMED: bool = false;
}

impl InPath for SandboxId {
    const WHAT: &'static str = "sandbox";
    const NAMED: bool = true;
}
impl InPath for SnapshotId {
    const WHAT: &'static str = "snapshot";
    const NAMED: bool = true;
}
impl InPath for DeploymentId {
    const WHAT: &'static str = "deployment";
}
impl InPath for MemberId {
    const WHAT: &'static str = "member";
}
impl InPath for DatabaseId {
    const WHAT: &'static str = "database";
    const NAMED: bool = true;
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
impl InPath for WebhookId {
    const WHAT: &'static str = "webhook";
}
/// Names and prefixes: any text is looked up.
impl InPath for String {
    const WHAT: &'static str = "thing";
}

/// The last parameter of the path: an id, and where there are names, a name or the beginning of an id. Text
/// that names nothing is 404.
pub struct Id<T>(pub T);

impl<T: InPath, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let unknown = |text: &str| Error::not_found(T::WHAT, text);
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| unknown("?"))?;
        let text = params.iter().last().map(|(_, value)| value).unwrap_or_default();
        Ok(Id(named(parts, text).await?))
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::StreamExt;

    use super::*;

    #[tokio::test]
    async fn an_unfinished_body_times_out() {
        let first = futures::stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from_static(b"{"))]);
        let body = Body::from_stream(first.chain(futures::stream::pending()));
        let late = read_body_within(body, 10, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(late.code, ErrorCode::RequestTimeout);
        let large = read_body_within(Body::from("12345678901"), 10, JSON_BODY_WAIT).await.unwrap_err();
        assert_eq!(large.code, ErrorCode::BodyTooLarge);
        assert_eq!(read_body(Body::from("{}")).await.unwrap(), "{}");
    }

    #[derive(Debug, serde::Deserialize, ToSchema)]
    #[expect(dead_code, reason = "only parsed")]
    struct Create {
        #[serde(default)]
        #[schema(minimum = 1)]
        ttl_seconds: Option<u64>,
        #[serde(default)]
        labels: std::collections::BTreeMap<String, String>,
        #[serde(flatten)]
        options: Options,
        #[serde(default)]
        #[schema(value_type = Object)]
        anything: Value,
    }

    #[derive(Debug, serde::Deserialize, ToSchema)]
    #[expect(dead_code, reason = "only parsed")]
    struct Options {
        #[serde(default)]
        idle: u16,
        #[serde(default)]
        mounts: Vec<Mount>,
    }

    #[derive(Debug, serde::Deserialize, ToSchema)]
    #[expect(dead_code, reason = "only parsed")]
    struct Mount {
        name: String,
        #[serde(default)]
        mode: Option<Mode>,
    }

    #[derive(Debug, serde::Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    enum Mode {
        Reader,
        Writer,
    }

    #[test]
    fn a_refusal_names_the_field_and_what_is_expected() {
        for (body, told) in [
            (r#"{"ttl_second":1}"#, "unknown field `ttl_second`; did you mean `ttl_seconds`?"),
            (r#"{"ttl":1}"#, "unknown field `ttl`; did you mean `ttl_seconds`?"),
            (r#"{"idel":1}"#, "unknown field `idel`; did you mean `idle`?"),
            (r#"{"xyz":1}"#, "unknown field `xyz`; known fields are "),
            (
                r#"{"mounts":[{"name":"a","mod":"reader"}]}"#,
                "unknown field `mounts[0].mod`; did you mean `mounts[0].mode`?",
            ),
            (r#"{"ttl_seconds":"long"}"#, "ttl_seconds must be a positive integer, not a string"),
            (r#"{"ttl_seconds":-5}"#, "ttl_seconds must be a positive integer, not -5"),
            (r#"{"ttl_seconds":1.5}"#, "ttl_seconds must be a positive integer, not 1.5"),
            (r#"{"idle":null}"#, "idle must be a non-negative integer, not null"),
            (r#"{"labels":{"a":1}}"#, "labels.a must be a string, not 1"),
            (r#"{"mounts":{}}"#, "mounts must be an array, not an object"),
            (
                r#"{"mounts":[{"name":"a","mode":"x"}]}"#,
                "mounts[0].mode must be one of reader, writer, not `x`",
            ),
            (r#"{"mounts":[{}]}"#, "missing field `name`"),
            (r#"{"ttl_seconds":1,"ttl_seconds":2}"#, "duplicate field"),
            (r#"{"ttl_seconds":1"#, "invalid request body: EOF"),
            (r#"{} {}"#, "unexpected data after the JSON body"),
            ("[1]", "the request body must be a JSON object"),
        ] {
            let refused = parse_json::<Create>(body.as_bytes()).unwrap_err();
            assert_eq!(refused.code, ErrorCode::BadRequest);
            assert!(refused.message.starts_with(told) || refused.message.contains(told), "{body}: {refused}");
        }
        for body in ["", "null", r#"{"anything":{"of":[{"any":1}]}}"#, r#"{"labels":{"any":"x"}}"#] {
            parse_json::<Create>(body.as_bytes()).unwrap();
        }
        parse_open_json::<Create>(br#"{"unheard_of":1}"#).unwrap();
    }
}
