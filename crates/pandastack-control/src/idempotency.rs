//! `Idempotency-Key`: a request with a key runs once; repeated within the window, it gets the same
//! response.
//!
//! Responses below 500 are stored, except 429: after any other a retry should run the request
//! again. The work runs to its end even if the client disconnects, because a retry will ask for the
//! response.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use jiff::{SignedDuration, Timestamp};
use pandastack_rest::extract::read_body;
use pandastack_rest::{ApiResult, Caller};
use pandastack_sandboxes::ops;
use pandastack_store::clock::now;
use pandastack_store::{IdempotencyClaim, IdempotencyKey, IdempotencyOutcome, SandboxRecord, Store};
use pandastack_types::limits::{IDEMPOTENCY_KEY_BYTES_MAX, IDEMPOTENCY_SECONDS};
use pandastack_types::{Error, ErrorCode, Result, SandboxState};
use sha2::{Digest, Sha256};

use crate::replicas::Member;

/// Largest stored response. A larger one is sent but not stored, so its repetition is a new
/// request.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// The claimed `Idempotency-Key` of this request, if it has one.
pub(crate) struct ClaimedKey(pub(crate) Option<IdempotencyKey>);

impl<S: Send + Sync> FromRequestParts<S> for ClaimedKey {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(ClaimedKey(parts.extensions.get::<IdempotencyKey>().cloned()))
    }
}

/// The `Idempotency-Key` header, checked.
pub(crate) fn idempotency_key(headers: &http::HeaderMap) -> Result<Option<String>> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(key) if (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len()) => Ok(Some(key.to_owned())),
        _ => Err(Error::bad_request(format!(
            "Idempotency-Key must be 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters"
        ))),
    }
}

/// Middleware for calls that create something: runs each `Idempotency-Key` once.
pub(crate) async fn once(
    State(member): State<Member>,
    caller: Caller,
    request: Request,
    next: Next,
) -> ApiResult<Response> {
    let Some(key) = idempotency_key(request.headers())? else { return Ok(next.run(request).await) };
    let store = &member.store;
    let key = IdempotencyKey { workspace: caller.workspace, key };
    let (mut parts, body) = request.into_parts();
    let body = read_body(body).await?;
    let claim = IdempotencyClaim {
        key: key.clone(),
        fingerprint: fingerprint(parts.method.as_str(), parts.uri.path(), &body),
        instance: member.replicas.instance.clone(),
        at: now(),
        not_before: window_start(),
    };
    let mut outcome = store.idempotency_begin(&claim).await?;
    if let IdempotencyOutcome::Orphan(record) = &outcome
        && record.state == SandboxState::Failed
    {
        discard(&member, &key, (**record).clone()).await?;
        outcome = store.idempotency_begin(&claim).await?;
    }
    match outcome {
        IdempotencyOutcome::Fresh => {}
        IdempotencyOutcome::Replay { status, body } => return Ok(replay(status, body)),
        IdempotencyOutcome::Running => return Err(running().into()),
        IdempotencyOutcome::Mismatch => {
            return Err(Error::new(
                ErrorCode::IdempotencyConflict,
                "this Idempotency-Key was used for a different request; use a new key for each request",
            )
            .into());
        }
        IdempotencyOutcome::Orphan(record) => return Ok(adopt(&member, &key, *record).await?),
    }
    parts.extensions.insert(key.clone());
    let request = Request::from_parts(parts, Body::from(body));
    let own = Arc::clone(store);
    let kept = async move { keep(own.as_ref(), &key, next.run(request).await).await };
    Ok(member.background.owned(kept).await?)
}

fn window_start() -> Timestamp {
    let window = SignedDuration::from_secs(i64::try_from(IDEMPOTENCY_SECONDS).unwrap_or(i64::MAX));
    now().checked_sub(window).unwrap_or(Timestamp::MIN)
}

fn fingerprint(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let mut hasher = Sha256::new();
    for part in [method.as_bytes(), path.as_bytes(), body] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    hasher.finalize().to_vec()
}

fn running() -> Error {
    Error::new(
        ErrorCode::IdempotencyConflict,
        "the first request with this Idempotency-Key is still in progress; retry in a moment",
    )
}

/// Stores an answer if it is final, else lets the key be used again.
async fn keep(store: &dyn Store, key: &IdempotencyKey, response: Response) -> Result<Response> {
    let status = response.status();
    let is_final = !status.is_server_error() && status != StatusCode::TOO_MANY_REQUESTS;
    let known_length = response.headers().get(header::CONTENT_LENGTH);
    let fits = known_length
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok())
        .is_none_or(|length| length <= ANSWER_BYTES_MAX);
    if !is_final || !fits {
        store.idempotency_finish(key, None).await?;
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let bytes = match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) => return Err(Error::internal(error)),
    };
    store.idempotency_finish(key, Some((status.as_u16(), &bytes))).await?;
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

fn replay(status: u16, body: Vec<u8>) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let mut response = (status, Bytes::from(body)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    response
}

/// The process that worked on it died, and so did the machine. The client never got an answer, so
/// the sandbox is created again.
async fn discard(member: &Member, key: &IdempotencyKey, record: SandboxRecord) -> Result<()> {
    ops::delete::delete(&member.sandboxes, record, Some("its creation was not acknowledged")).await?;
    Ok(member.store.idempotency_finish(key, None).await?)
}

/// The process that worked on it died, but its sandbox was found and finished: that is the answer.
async fn adopt(member: &Member, key: &IdempotencyKey, record: SandboxRecord) -> Result<Response> {
    if matches!(record.state, SandboxState::Creating | SandboxState::Stopping) {
        return Err(running());
    }
    let shown = member.sandboxes.view(record);
    let body = serde_json::to_vec(&shown).map_err(Error::internal)?;
    member.store.idempotency_finish(key, Some((StatusCode::CREATED.as_u16(), &body))).await?;
    Ok((StatusCode::CREATED, Json(shown)).into_response())
}
