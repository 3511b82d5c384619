//! Processes by id.

use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::StreamExt;
use pandastack_guest_proto::client::ClientError;
use pandastack_guest_proto::message::{ProcessId, StdinWrite};
use pandastack_types::agent_api::PID_HEADER;
use pandastack_types::api::{
    ExecRequest, Process, ProcessList, SignalProcess, StartProcess, StdinWritten, TerminalSize,
};
use pandastack_types::limits;
use serde::Deserialize;
use tokio::time::Duration;

use super::{Target, data};
use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::process::{self, Feed, Offsets, OutputEvents, Start, Style, TerminalSocket, named, terminal_size};
use crate::sandbox::SandboxHandle;

/// Names a started process to those who follow it.
const PID: HeaderName = HeaderName::from_static(PID_HEADER);
/// Wait of a caller that names none.
const WAIT_SECONDS_DEFAULT: u64 = 30;

pub(super) fn routes() -> Router<Arc<Host>> {
    Router::new()
        .route("/sandboxes/{id}/processes", get(list).post(start))
        .route("/sandboxes/{id}/processes/{process}", get(look))
        .route("/sandboxes/{id}/processes/{process}/wait", get(wait))
        .route("/sandboxes/{id}/processes/{process}/output", get(output))
        .route("/sandboxes/{id}/processes/{process}/signal", post(signal))
        .route("/sandboxes/{id}/processes/{process}/resize", post(resize))
        .route("/sandboxes/{id}/exec/ws", get(commands_socket))
        .route("/sandboxes/{id}/exec/pty", get(terminal_socket))
        .route("/sandboxes/{id}/ssh", get(plain_terminal_socket))
}

/// Their bodies stream.
pub(super) fn streamed_routes() -> Router<Arc<Host>> {
    let unlimited = axum::extract::DefaultBodyLimit::disable();
    Router::new().route("/sandboxes/{id}/processes/{process}/stdin", post(write_stdin).layer(unlimited))
}

/// The process of a request's path.
struct Named(ProcessId);

impl FromRequestParts<Arc<Host>> for Named {
    type Rejection = AgentError;

    async fn from_request_parts(parts: &mut Parts, host: &Arc<Host>) -> Result<Self> {
        let bad = || AgentError::BadRequest("a process is named by its number".to_owned());
        let path = axum::extract::Path::<(String, u64)>::from_request_parts(parts, host).await;
        path.map(|path| Named(ProcessId(path.0.1))).map_err(|_| bad())
    }
}

async fn list(Target(handle): Target) -> Result<Json<ProcessList>> {
    let processes = process::list(&handle.lease().await?.guest).await?;
    Ok(Json(ProcessList { processes }))
}

async fn start(
    Target(handle): Target,
    Query(query): Query<OutputQuery>,
    Json(request): Json<StartProcess>,
) -> Result<Response> {
    let start = Start::from_request(request)?;
    if data::is_set("follow", query.follow.as_deref())? {
        let (pid, events) = start.follow(handle, query.style()?).await?;
        let mut response = data::output(events);
        response.headers_mut().extend(pid.map(|pid| (PID, HeaderValue::from(pid))));
        return Ok(response);
    }
    let process = start.run(&handle).await?;
    Ok((StatusCode::CREATED, Json(process)).into_response())
}

async fn look(Target(handle): Target, Named(id): Named) -> Result<Json<Process>> {
    Ok(Json(process::show(&handle.lease().await?.guest, id).await?))
}

#[derive(Deserialize)]
struct WaitQuery {
    timeout_seconds: Option<u64>,
}

async fn wait(
    Target(handle): Target,
    Named(id): Named,
    Query(query): Query<WaitQuery>,
) -> Result<Json<Process>> {
    let seconds = query.timeout_seconds.unwrap_or(WAIT_SECONDS_DEFAULT);
    if seconds > limits::PROCESS_WAIT_SECONDS_MAX {
        return Err(AgentError::BadRequest(format!(
            "`timeout_seconds` is at most {}; ask again for longer",
            limits::PROCESS_WAIT_SECONDS_MAX
        )));
    }
    Ok(Json(process::wait(&handle, id, Duration::from_secs(seconds)).await?))
}

async fn signal(
    Target(handle): Target,
    Named(id): Named,
    Json(request): Json<SignalProcess>,
) -> Result<StatusCode> {
    let lease = handle.lease().await?;
    lease.guest.signal(id, request.signal.number()).await.map_err(|error| named(error, id))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn resize(
    Target(handle): Target,
    Named(id): Named,
    Json(size): Json<TerminalSize>,
) -> Result<StatusCode> {
    let size = terminal_size(size)?;
    handle.lease().await?.guest.resize(id, size).await.map_err(|error| named(error, id))?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
pub(super) struct OutputQuery {
    stdout_offset: Option<u64>,
    stderr_offset: Option<u64>,
    encoding: Option<String>,
    /// Of a start: answer with its events.
    follow: Option<String>,
}

impl OutputQuery {
    pub(super) fn style(&self) -> Result<Style> {
        match self.encoding.as_deref() {
            None | Some("text") => Ok(Style::Text),
            Some("base64") => Ok(Style::Base64),
            Some(_) => Err(AgentError::BadRequest("`encoding` must be text or base64".to_owned())),
        }
    }

    /// What the client saw last counts for more than where its address says it once began.
    fn offsets(&self, headers: &HeaderMap) -> Result<Offsets> {
        let Some(last) = headers.get("last-event-id") else {
            return Ok((self.stdout_offset.unwrap_or(0), self.stderr_offset.unwrap_or(0)));
        };
        let pair = last.to_str().ok().and_then(|text| text.split_once('-'));
        let numbers = pair.and_then(|(out, err)| Some((out.parse().ok()?, err.parse().ok()?)));
        numbers
            .ok_or_else(|| AgentError::BadRequest("`Last-Event-ID` must be two offsets, as 10-0".to_owned()))
    }
}

async fn output(
    Target(handle): Target,
    Named(id): Named,
    Query(query): Query<OutputQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let (style, offsets) = (query.style()?, query.offsets(&headers)?);
    // An unknown process or an offset beyond its output is an answer, not the first event of a stream.
    let info = process::look(&handle.lease().await?.guest, id).await?;
    if offsets.0 > info.stdout_end || offsets.1 > info.stderr_end {
        return Err(AgentError::BadRequest(format!(
            "process {id} has written {} bytes to stdout and {} to stderr so far, less than the offsets asked for",
            info.stdout_end, info.stderr_end
        )));
    }
    let feed = Feed::attach(handle, id, offsets).await?;
    Ok(data::output(OutputEvents::new(feed, offsets, style)))
}

async fn commands_socket(
    Target(handle): Target,
    Query(query): Query<OutputQuery>,
    upgrade: WebSocketUpgrade,
) -> Result<Response> {
    let style = query.style()?;
    // A sandbox that cannot be used is an answer, not the first message.
    drop(handle.lease().await?);
    Ok(bounded(upgrade).on_upgrade(move |socket| process::socket::serve(handle, socket, style)))
}

#[derive(Deserialize)]
struct TerminalQuery {
    rows: Option<u16>,
    cols: Option<u16>,
    user: Option<String>,
    process: Option<u64>,
    offset: Option<u64>,
}

async fn terminal_socket(
    Target(handle): Target,
    Query(query): Query<TerminalQuery>,
    upgrade: WebSocketUpgrade,
) -> Result<Response> {
    serve_terminal(handle, query, upgrade, false).await
}

async fn plain_terminal_socket(
    Target(handle): Target,
    Query(query): Query<TerminalQuery>,
    upgrade: WebSocketUpgrade,
) -> Result<Response> {
    serve_terminal(handle, query, upgrade, true).await
}

async fn serve_terminal(
    handle: SandboxHandle,
    query: TerminalQuery,
    upgrade: WebSocketUpgrade,
    is_plain: bool,
) -> Result<Response> {
    let size = TerminalSize::default();
    let size = TerminalSize { rows: query.rows.unwrap_or(size.rows), cols: query.cols.unwrap_or(size.cols) };
    let (process, offset) = match query.process {
        Some(number) => {
            let info = process::look(&handle.lease().await?.guest, ProcessId(number)).await?;
            // Without an offset: the screen as far as it is kept.
            (info.process, query.offset.or(info.stdout_start).unwrap_or(0))
        }
        None => {
            let exec = ExecRequest { user: query.user, ..ExecRequest::default() };
            let start = StartProcess { exec, pty: Some(size), ..StartProcess::default() };
            (ProcessId(Start::from_request(start)?.run(&handle).await?.id), 0)
        }
    };
    let feed = Feed::attach(handle.clone(), process, (offset, 0)).await?;
    let terminal = TerminalSocket { handle, feed, offset, is_plain };
    Ok(bounded(upgrade).on_upgrade(move |socket| terminal.serve(socket)))
}

fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_message_size(limits::SOCKET_MESSAGE_BYTES_MAX)
        .max_frame_size(limits::SOCKET_MESSAGE_BYTES_MAX)
}

#[derive(Deserialize)]
struct StdinQuery {
    offset: Option<u64>,
    #[serde(default)]
    close: bool,
}

async fn write_stdin(
    Target(handle): Target,
    Named(id): Named,
    Query(query): Query<StdinQuery>,
    body: Body,
) -> Result<Json<StdinWritten>> {
    let announced = body.size_hint().lower();
    if announced > limits::STDIN_BODY_BYTES_MAX {
        return Err(AgentError::TooLarge(format!(
            "one write of input is at most {} bytes; write the rest with another",
            limits::STDIN_BODY_BYTES_MAX
        )));
    }
    let lease = handle.lease().await?;
    let refused = |error: ClientError| named(error, id);
    let write = StdinWrite { process: id, offset: query.offset, close: query.close };
    let mut writer = lease.guest.open_stdin(write).await.map_err(refused)?;
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let cut = |_| AgentError::BadRequest("the body ended before it was complete".to_owned());
        writer.write(&chunk.map_err(cut)?).await.map_err(refused)?;
    }
    let written = writer.finish().await.map_err(refused)?;
    Ok(Json(StdinWritten { offset: written.offset }))
}
