//! Extractors whose refusals are our JSON errors, never the framework's plain text.

use axum::Extension;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use pandastack_types::limits::{IDEMPOTENCY_KEY_BYTES_MAX, JSON_BODY_BYTES_MAX};
use pandastack_types::{BuildId, DatabaseId, DeploymentId, ErrorCode, SandboxId, SnapshotId};
use serde::de::DeserializeOwned;

use crate::auth::Caller;
use crate::error::{ApiError, ApiResult};
use crate::store::IdempotencyKey;

/// A JSON body, whatever its content type says; an empty one is `{}`.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> ApiResult<Self> {
        let bytes = read_body(request.into_body()).await?;
        parse_json(&bytes).map(JsonBody)
    }
}

/// Reads a JSON body up to its limit.
pub(crate) async fn read_body(body: axum::body::Body) -> ApiResult<bytes::Bytes> {
    match Limited::new(body, JSON_BODY_BYTES_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::new(
            ErrorCode::BodyTooLarge,
            format!("the request body is larger than {JSON_BODY_BYTES_MAX} bytes"),
        )),
        Err(_) => Err(ApiError::bad_request("the request body ended before it was complete")),
    }
}

/// Parses a JSON object; nothing and `null` count as `{}`.
pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> ApiResult<T> {
    let text = bytes.trim_ascii();
    let text = if text.is_empty() || text == b"null" { b"{}" } else { text };
    // serde would also take an array of the fields in order, which nobody means.
    if !text.starts_with(b"{") {
        return Err(ApiError::bad_request("the request body must be a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, cause) = (error.path().to_string(), error.inner());
        match path.as_str() {
            "." | "?" => {
                ApiError::bad_request(format!("the request body is not what this call takes: {cause}"))
            }
            field => ApiError::bad_request(format!("`{field}` is not what this call takes: {cause}")),
        }
    })?;
    json.end()
        .map_err(|error| ApiError::bad_request(format!("the request body goes on after its end: {error}")))?;
    Ok(value)
}

/// Query arguments.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> ApiResult<Self> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri);
        let refused = |error: axum::extract::rejection::QueryRejection| {
            ApiError::bad_request(format!("the query is not what this call takes: {}", error.body_text()))
        };
        query.map(|query| Query(query.0)).map_err(refused)
    }
}

/// Something that stands in a path.
pub(crate) trait InPath: std::str::FromStr {
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
/// Names and prefixes: any text is looked up.
impl InPath for String {
    const WHAT: &'static str = "thing";
}

/// The last parameter of the path. Text that cannot be an id names nothing, so the answer is 404.
pub(crate) struct Id<T>(pub(crate) T);

impl<T: InPath, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let unknown = |text: &str| ApiError::not_found(T::WHAT, text);
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| unknown("?"))?;
        let text = params.iter().last().map(|(_, value)| value).unwrap_or_default();
        text.parse().map(Id).map_err(|_| unknown(text))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let caller = Extension::<Caller>::from_request_parts(parts, state).await;
        caller.map(|caller| caller.0).map_err(ApiError::internal)
    }
}

/// The claimed `Idempotency-Key` of this request, if it has one.
pub(crate) struct Claimed(pub(crate) Option<IdempotencyKey>);

impl<S: Send + Sync> FromRequestParts<S> for Claimed {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Claimed(parts.extensions.get::<IdempotencyKey>().cloned()))
    }
}

/// The `Idempotency-Key` header, checked.
pub(crate) fn idempotency_key(headers: &http::HeaderMap) -> ApiResult<Option<String>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(key) if (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len()) => Ok(Some(key.to_owned())),
        _ => Err(ApiError::bad_request(format!(
            "Idempotency-Key must be 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters"
        ))),
    }
}
