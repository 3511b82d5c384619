//! `/v1/sandboxes/{id}/repl/sessions`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, FromRequestParts, RawPathParams, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use pandastack_rest::extract::{JSON_BODY_WAIT, parse_json, read_body_within};
use pandastack_rest::{ApiError, ApiResult, Caller, Id, JsonBody, named, sse};
use pandastack_sandboxes::Background;
use pandastack_sandboxes::machines::Machines;
use pandastack_sandboxes::user_sandbox::UserSandbox;
use pandastack_sandboxes::validate;
use pandastack_types::api::{CodeContext, CreateContext, Execution, Items, RunCode};
use pandastack_types::limits::{CODE_BYTES_MAX, EXEC_TIMEOUT_SECONDS_MAX};
use pandastack_types::{Error, ErrorBody, ErrorCode, Language, Result, SandboxId};
use serde_json::Value;

use crate::ContextLocks;
use crate::context;
use crate::execution::Run;

/// Time of a run that names none and is waited for, as published clients expect it.
const TIMEOUT_MS_DEFAULT: u64 = 30_000;
/// Room for what stands around the code in a request, and for escapes in it.
const REQUEST_BYTES_MAX: usize = 2 * CODE_BYTES_MAX + 64 * 1024;
/// Longest id of a context.
const ID_BYTES_MAX: usize = 64;

/// Dependencies of contexts on the server.
#[derive(Clone)]
pub struct Contexts {
    /// The sandboxes.
    pub machines: Arc<dyn Machines>,
    /// Interrupts abandoned runs.
    pub background: Background,
}

impl Contexts {
    fn sandbox(&self, caller: &Caller, id: &SandboxId) -> UserSandbox {
        self.machines.sandbox(&caller.workspace, id)
    }
}

/// The routes, with their state.
pub fn router(contexts: Contexts) -> Router {
    Router::new()
        .route("/sandboxes/{id}/repl/sessions", get(list).merge(post(create)))
        .route("/sandboxes/{id}/repl/sessions/{context}", delete(remove))
        .route("/sandboxes/{id}/repl/sessions/{context}/run", post(run))
        .route("/sandboxes/{id}/repl/sessions/{context}/restart", post(restart))
        .layer(Extension(Arc::new(ContextLocks::default())))
        .with_state(contexts)
}

/// Sandbox and context of a path. Text that cannot be an id names nothing, so the answer is 404.
pub struct ContextPath {
    sandbox: SandboxId,
    context: String,
}

impl<S: Send + Sync> FromRequestParts<S> for ContextPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let unknown = Error::not_found;
        let params =
            RawPathParams::from_request_parts(parts, state).await.map_err(|_| unknown("route", "?"))?;
        let param = |name| params.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value);
        let (sandbox, context) = (param("id"), param("context"));
        let is_id = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if !(1..=ID_BYTES_MAX).contains(&context.len()) || !context.bytes().all(is_id) {
            return Err(unknown("context", context).into());
        }
        let sandbox = named(parts, sandbox).await?;
        Ok(Self { sandbox, context: context.to_owned() })
    }
}

/// Create a code context: an interpreter that keeps its state between runs.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/repl/sessions", tag = "contexts", params(("id" = SandboxId, Path)),
    request_body = CreateContext, responses((status = 201, body = CodeContext), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub async fn create(
    State(contexts): State<Contexts>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    JsonBody(wanted): JsonBody<CreateContext>,
) -> ApiResult<(StatusCode, Json<CodeContext>)> {
    let language = Language::find(wanted.language.as_deref())?;
    let sandbox = contexts.sandbox(&caller, &id);
    let context = uuid::Uuid::new_v4().to_string();
    let made = context::start(&sandbox, &context, language, wanted.cwd.as_deref()).await?;
    Ok((StatusCode::CREATED, Json(made.shown(&sandbox))))
}

/// List a sandbox's code contexts.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/repl/sessions", tag = "contexts", params(("id" = SandboxId, Path)),
    responses((status = 200, body = Items<CodeContext>), (status = 404, body = ErrorBody)))]
pub async fn list(
    State(contexts): State<Contexts>,
    caller: Caller,
    Id(id): Id<SandboxId>,
) -> ApiResult<Json<Items<CodeContext>>> {
    let sandbox = contexts.sandbox(&caller, &id);
    let items =
        context::running(&sandbox).await?.into_iter().map(|context| context.shown(&sandbox)).collect();
    Ok(Json(Items { items }))
}

/// Run code in a code context. The timeout is 30 seconds by default. The context `default` runs Python and
/// `default-LANGUAGE` another language; their first run creates them. With `Accept: text/event-stream`, the
/// response streams events as they happen, without a timeout by default: `started`, `stdout`, `stderr`,
/// `result`, `error`, then `ended`. If the client disconnects, its code is interrupted.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/repl/sessions/{context}/run", tag = "contexts",
    params(("id" = SandboxId, Path), ("context" = String, Path)), request_body = RunCode,
    responses((status = 200, body = Execution), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
    (status = 413, body = ErrorBody), (status = 504, body = ErrorBody)))]
pub async fn run(
    State(contexts): State<Contexts>,
    Extension(turns): Extension<Arc<ContextLocks>>,
    caller: Caller,
    path: ContextPath,
    request: Request,
) -> ApiResult<Response> {
    let streams = wants_events(request.headers());
    let mut wanted = read(request).await?;
    if !streams {
        wanted.timeout_ms.get_or_insert(TIMEOUT_MS_DEFAULT);
    }
    let turn = turns.of((path.sandbox.clone(), path.context.clone()));
    let mine = turn.lock().await;
    let sandbox = contexts.sandbox(&caller, &path.sandbox);
    let context = context::find(&sandbox, &path.context).await?;
    let mut run = Run::begin((sandbox, contexts.background), context, &wanted).await?;
    drop(mine);
    if streams {
        return Ok(sse::respond(futures::stream::unfold(run, frame)));
    }
    let execution = run.finish().await;
    match (run.gone.take(), run.timed_out) {
        (Some(why), _) => Err(Error::new(ErrorCode::NotFound, why).into()),
        (None, true) => Err(Error::new(ErrorCode::ExecTimeout, execution.error.unwrap_or_default()).into()),
        (None, false) => Ok(Json(execution).into_response()),
    }
}

/// Restart a code context. Its variables are lost.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/repl/sessions/{context}/restart", tag = "contexts",
    params(("id" = SandboxId, Path), ("context" = String, Path)),
    responses((status = 200, body = CodeContext), (status = 404, body = ErrorBody)))]
pub async fn restart(
    State(contexts): State<Contexts>,
    Extension(turns): Extension<Arc<ContextLocks>>,
    caller: Caller,
    path: ContextPath,
) -> ApiResult<Json<CodeContext>> {
    let turn = turns.of((path.sandbox.clone(), path.context.clone()));
    let _mine = turn.lock().await;
    let sandbox = contexts.sandbox(&caller, &path.sandbox);
    let ended = context::end(&sandbox, &path.context).await?;
    let begun = context::start(&sandbox, &path.context, ended.language, Some(&ended.cwd)).await?;
    Ok(Json(begun.shown(&sandbox)))
}

/// Delete a code context.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/repl/sessions/{context}", tag = "contexts",
    params(("id" = SandboxId, Path), ("context" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub async fn remove(
    State(contexts): State<Contexts>,
    Extension(turns): Extension<Arc<ContextLocks>>,
    caller: Caller,
    path: ContextPath,
) -> ApiResult<StatusCode> {
    let turn = turns.of((path.sandbox.clone(), path.context.clone()));
    let _mine = turn.lock().await;
    context::end(&contexts.sandbox(&caller, &path.sandbox), &path.context).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn wants_events(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|accepted| accepted.contains("text/event-stream"))
}

async fn read(request: Request) -> Result<RunCode> {
    let too_large = || {
        Error::new(
            ErrorCode::BodyTooLarge,
            format!("`code` must be at most {CODE_BYTES_MAX} bytes; upload a file and run it"),
        )
    };
    let read = read_body_within(request.into_body(), REQUEST_BYTES_MAX, JSON_BODY_WAIT).await;
    let body = read.map_err(|error| match error.code {
        ErrorCode::BodyTooLarge => too_large(),
        _ => error,
    })?;
    let wanted: RunCode = parse_json(&body)?;
    if wanted.code.len() > CODE_BYTES_MAX {
        return Err(too_large());
    }
    wanted.env.as_ref().map_or(Ok(()), validate::env)?;
    let most = EXEC_TIMEOUT_SECONDS_MAX * 1000;
    match wanted.timeout_ms {
        Some(ms) if !(1..=most).contains(&ms) => {
            Err(Error::bad_request(format!("`timeout_ms` must be 1 to {most}")))
        }
        _ => Ok(wanted),
    }
}

/// The next event of a run, or a comment in a long silence.
async fn frame(mut run: Run) -> Option<(String, Run)> {
    const SILENCE: Duration = sse::COMMENT_EVERY;
    let event = match tokio::time::timeout(SILENCE, run.next()).await {
        Err(_) => return Some((sse::COMMENT.to_owned(), run)),
        Ok(event) => event?,
    };
    let name = event.get("type").and_then(Value::as_str).unwrap_or("event");
    // A JSON value can always be written.
    let data = sse::ascii_json(&event).unwrap_or_default();
    Some((format!("event: {name}\ndata: {data}\n\n"), run))
}
