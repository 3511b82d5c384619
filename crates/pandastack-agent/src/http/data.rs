//! The data path: commands, files, ports and logs. A sleeper wakes.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use pandastack_types::agent_api::PROCESS_HEADER;
use pandastack_types::api::{
    ExecRequest, ExecResult, FileEntry, FileWritten, Port, PortList, SandboxMetrics,
};
use serde::Deserialize;

use super::processes::OutputQuery;
use super::{Shared, Target};
use crate::error::{AgentError, Result};
use crate::exec::Exec;
use crate::files;
use crate::logs::{Follower, read_tail};
use crate::process::OutputEvents;

/// Quiet streams send a comment this often, so that nobody in between gives up on them.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Deserialize)]
pub(super) struct PathQuery {
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    recursive: Option<bool>,
    write: Option<String>,
    mode: Option<String>,
    user: Option<String>,
}

impl PathQuery {
    fn path(&self) -> Result<&str> {
        required_path(self.path.as_deref())
    }
}

/// The path of a query that must have one, checked.
pub(super) fn required_path(path: Option<&str>) -> Result<&str> {
    let missing = || AgentError::BadRequest("the query has no `path`; add ?path=/absolute/path".to_owned());
    let path = path.ok_or_else(missing)?;
    files::check_path(path)?;
    Ok(path)
}

/// A flag of a query; clients write 1 and 0, or true and false.
pub(super) fn is_set(name: &str, flag: Option<&str>) -> Result<bool> {
    match flag {
        None | Some("" | "0" | "false") => Ok(false),
        Some("1" | "true") => Ok(true),
        Some(_) => Err(AgentError::BadRequest(format!("`{name}` must be 1 or 0, or true or false"))),
    }
}

/// What control says of a command beside its request.
#[derive(Deserialize)]
pub(super) struct ExecArgs {
    /// Names the process, so that control can end it.
    tag: Option<String>,
}

pub(super) async fn exec(
    Target(handle): Target,
    Query(args): Query<ExecArgs>,
    Json(request): Json<ExecRequest>,
) -> Result<Json<ExecResult>> {
    let exec = Exec::from_request(request)?.tagged(args.tag);
    Ok(Json(exec.run(handle).await?))
}

pub(super) async fn exec_stream(
    Target(handle): Target,
    Query(query): Query<OutputQuery>,
    Json(request): Json<ExecRequest>,
) -> Result<Response> {
    let style = query.style()?;
    let events = Exec::from_request(request)?.stream(handle, style).await?;
    Ok(output(events))
}

/// A process's events, and in a header which process they are of: what a client needs to come back for the rest.
pub(super) fn output(events: OutputEvents) -> Response {
    let process = events.process();
    let stream = futures::stream::unfold(events, |mut events: OutputEvents| async move {
        let event = events.next().await?;
        Some((Ok::<_, Infallible>(event.sse()), events))
    });
    let mut response = sse(stream);
    response.headers_mut().insert(PROCESS_HEADER, HeaderValue::from(process));
    response
}

pub(super) async fn read(
    Target(handle): Target,
    Query(query): Query<PathQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let path = query.path()?;
    // There is no validator that `If-Range` could name, so with it the whole file is asked for.
    let range = headers.get(header::RANGE).filter(|_| !headers.contains_key(header::IF_RANGE));
    let range = range.and_then(|value| value.to_str().ok());
    let files::Content { body, size, length, start } =
        files::read(handle.lease().await?, path, range).await?;
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert("x-pandastack-file-size", HeaderValue::from(size));
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let (Some(start), Some(length)) = (start, length) {
        let range = format!("bytes {start}-{}/{size}", start + length - 1);
        headers.extend(HeaderValue::from_str(&range).ok().map(|value| (header::CONTENT_RANGE, value)));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

pub(super) async fn write(
    Target(handle): Target,
    Query(query): Query<PathQuery>,
    body: Body,
) -> Result<Json<FileWritten>> {
    let path = query.path()?;
    let write = files::Write::parse(query.write.as_deref(), query.mode.as_deref(), query.user.clone())?;
    Ok(Json(files::write(&handle.lease().await?, path, write, body).await?))
}

pub(super) async fn remove(Target(handle): Target, Query(query): Query<PathQuery>) -> Result<StatusCode> {
    let path = query.path()?;
    handle.lease().await?.guest.remove(path, query.recursive.unwrap_or(true)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn stat(Target(handle): Target, Query(query): Query<PathQuery>) -> Result<Json<FileEntry>> {
    let path = query.path()?;
    Ok(Json(files::stat(&handle.lease().await?, path).await?))
}

pub(super) async fn mkdir(Target(handle): Target, Query(query): Query<PathQuery>) -> Result<StatusCode> {
    let path = query.path()?;
    handle.lease().await?.guest.mkdir(path, true, None, query.user.clone()).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn ports(Target(handle): Target) -> Result<Json<PortList>> {
    let found = handle.lease().await?.guest.ports().await?;
    let port = |port: pandastack_guest_proto::message::ListeningPort| Port {
        port: port.port,
        address: port.address.to_string(),
        listening: true,
        proxy_url: None,
    };
    Ok(Json(PortList { ports: found.into_iter().map(port).collect() }))
}

#[derive(Deserialize)]
pub(super) struct LogQuery {
    #[serde(default)]
    stream: Option<String>,
    #[serde(default)]
    follow: Option<String>,
}

/// The console's last lines, or all from there on as events. Never wakes a sleeper.
pub(super) async fn logs(
    State(host): Shared,
    Target(handle): Target,
    Query(query): Query<LogQuery>,
) -> Result<Response> {
    // A console is one stream; the parameter is there for clients that always send it.
    if let Some(stream) = query.stream.as_deref().filter(|name| !["stdout", "stderr", "both"].contains(name))
    {
        let shown: String = stream.chars().take(40).collect();
        return Err(AgentError::BadRequest(format!(
            "`stream` must be stdout, stderr or both, not `{shown}`"
        )));
    }
    let follow = is_set("follow", query.follow.as_deref())?;
    let path = host.layout.machine(&handle.view().id).join(crate::layout::home::CONSOLE);
    if follow && path.exists() {
        return Ok(sse(Follower::open(&path)?.events(host.shutdown.clone())));
    }
    let text = crate::blocking(move || Ok::<_, AgentError>(read_tail(&path))).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

/// What the sandbox uses. Never wakes a sleeper.
pub(super) async fn metrics(Target(handle): Target) -> Result<Json<SandboxMetrics>> {
    Ok(Json(crate::observe::metrics(handle.observe().await?).await))
}

/// A stream of events, with what published clients need: a character set, and a comment now and then.
pub(super) fn sse(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Without the character set one published client decodes Latin-1.
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
