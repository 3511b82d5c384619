//! Processes by id. Like all of the data path, requests are forwarded to the agent.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request, State};
use axum::response::Response;
use axum::routing::{get, post};
use http::request::Parts;
use http_body_util::Limited;
use pandastack_rest::{ApiError, ApiResult, Caller, Id, named};
use pandastack_sandboxes::{Sandboxes, validate};
use pandastack_types::agent_api::endpoints::{
    self, ListProcesses, ProcessOutput, ReadProcess, ResizeTerminal, WaitProcess, WriteStdin,
};
use pandastack_types::agent_api::{Endpoint, PassThrough};
use pandastack_types::api::{Process, ProcessList, SignalProcess, StartProcess, StdinWritten, TerminalSize};
use pandastack_types::limits::STDIN_BODY_BYTES_MAX;
use pandastack_types::{Error, ErrorBody, Result, SandboxId};

use super::data::{checked, forward};

pub(super) fn routes() -> Router<Arc<Sandboxes>> {
    Router::new()
        .route("/sandboxes/{id}/processes", get(list).merge(post(start)))
        .route("/sandboxes/{id}/processes/{process}", get(get_process))
        .route("/sandboxes/{id}/processes/{process}/wait", get(wait))
        .route("/sandboxes/{id}/processes/{process}/output", get(output))
        .route("/sandboxes/{id}/processes/{process}/stdin", post(write_stdin))
        .route("/sandboxes/{id}/processes/{process}/signal", post(signal))
        .route("/sandboxes/{id}/processes/{process}/resize", post(resize))
}

/// Sandbox and process of a path. Text that cannot be an id names nothing, so the answer is 404.
pub(crate) struct ProcessPath {
    sandbox: SandboxId,
    process: u64,
}

impl<S: Send + Sync> FromRequestParts<S> for ProcessPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let unknown = Error::not_found;
        let params =
            RawPathParams::from_request_parts(parts, state).await.map_err(|_| unknown("route", "?"))?;
        let param = |name| params.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value);
        let (sandbox, process) = (param("id"), param("process"));
        Ok(Self {
            sandbox: named(parts, sandbox).await?,
            process: process.parse().map_err(|_| unknown("process", process))?,
        })
    }
}

impl ProcessPath {
    async fn forward<E: Endpoint>(
        self,
        sandboxes: &Sandboxes,
        caller: &Caller,
        call: impl FnOnce(&SandboxId, &u64, Option<String>) -> PassThrough<E>,
        request: Request,
    ) -> Result<Response> {
        let call = |sandbox: &SandboxId, query| call(sandbox, &self.process, query);
        forward(sandboxes, caller, &self.sandbox, call, request).await
    }
}

/// List running and recently ended processes.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes", tag = "processes", params(("id" = SandboxId, Path)),
    responses((status = 200, body = ProcessList), (status = 404, body = ErrorBody)))]
pub(crate) async fn list(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Response> {
    Ok(forward(&sandboxes, &caller, &id, ListProcesses::pass_through, request).await?)
}

/// Start a background process. It keeps running after this call, through server restarts, sleep and forks.
/// With `follow`, the response streams its events from the first byte, like `.../output`. The headers
/// `x-pandastack-process` and `x-pandastack-pid` identify the process.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes", tag = "processes", params(("id" = SandboxId, Path),
    ("follow" = Option<String>, Query, description = "1 to stream the events of the process"),
    ("encoding" = Option<String>, Query, description = "Encoding of output: `text` or `base64`")),
    request_body = StartProcess, responses((status = 201, body = Process), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub(crate) async fn start(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    request: Request,
) -> ApiResult<Response> {
    let request = checked(request, validate::start_process).await?;
    Ok(forward(&sandboxes, &caller, &id, endpoints::StartProcess::pass_through, request).await?)
}

/// Get a process.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes/{process}", tag = "processes",
    params(("id" = SandboxId, Path), ("process" = u64, Path)),
    responses((status = 200, body = Process), (status = 404, body = ErrorBody)))]
pub(crate) async fn get_process(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    of: ProcessPath,
    request: Request,
) -> ApiResult<Response> {
    Ok(of.forward(&sandboxes, &caller, ReadProcess::pass_through, request).await?)
}

/// Wait for a process to end, by default for 30 seconds. If it is still running after that, the response
/// shows its state.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes/{process}/wait", tag = "processes",
    params(("id" = SandboxId, Path), ("process" = u64, Path), ("timeout_seconds" = Option<u64>, Query)),
    responses((status = 200, body = Process), (status = 404, body = ErrorBody)))]
pub(crate) async fn wait(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    of: ProcessPath,
    request: Request,
) -> ApiResult<Response> {
    Ok(of.forward(&sandboxes, &caller, WaitProcess::pass_through, request).await?)
}

/// Stream a process's output as server-sent events from given offsets, or from a `Last-Event-ID`: `stdout`,
/// `stderr`, `gap`, then `exit` or `error`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/processes/{process}/output", tag = "processes",
    params(("id" = SandboxId, Path), ("process" = u64, Path), ("stdout_offset" = Option<u64>, Query),
    ("stderr_offset" = Option<u64>, Query), ("encoding" = Option<String>, Query, description = "Encoding of output: `text` or `base64`"),
    ("last-event-id" = Option<String>, Header)),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 404, body = ErrorBody)))]
pub(crate) async fn output(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    of: ProcessPath,
    request: Request,
) -> ApiResult<Response> {
    Ok(of.forward(&sandboxes, &caller, ProcessOutput::pass_through, request).await?)
}

/// Write to a process's standard input, as fast as the process reads. With an `offset`, you can retry a
/// write: bytes that were already accepted are skipped.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/stdin", tag = "processes",
    params(("id" = SandboxId, Path), ("process" = u64, Path), ("offset" = Option<u64>, Query),
    ("close" = Option<bool>, Query, description = "Close standard input after these bytes")),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = StdinWritten), (status = 400, body = ErrorBody), (status = 413, body = ErrorBody)))]
pub(crate) async fn write_stdin(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    of: ProcessPath,
    request: Request,
) -> ApiResult<Response> {
    let limit = usize::try_from(STDIN_BODY_BYTES_MAX).unwrap_or(usize::MAX);
    let request = request.map(|body| Body::new(Limited::new(body, limit)));
    Ok(of.forward(&sandboxes, &caller, WriteStdin::pass_through, request).await?)
}

/// Send a signal to a process group. KILL also kills all processes that the process started.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/signal", tag = "processes",
    params(("id" = SandboxId, Path), ("process" = u64, Path)), request_body = SignalProcess,
    responses((status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn signal(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    of: ProcessPath,
    request: Request,
) -> ApiResult<Response> {
    let request = checked(request, |_: &SignalProcess| Ok(())).await?;
    Ok(of.forward(&sandboxes, &caller, endpoints::SignalProcess::pass_through, request).await?)
}

/// Resize a process's terminal.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/processes/{process}/resize", tag = "processes",
    params(("id" = SandboxId, Path), ("process" = u64, Path)), request_body = TerminalSize,
    responses((status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn resize(
    State(sandboxes): State<Arc<Sandboxes>>,
    caller: Caller,
    of: ProcessPath,
    request: Request,
) -> ApiResult<Response> {
    let request = checked(request, |size: &TerminalSize| validate::terminal(*size)).await?;
    Ok(of.forward(&sandboxes, &caller, ResizeTerminal::pass_through, request).await?)
}
