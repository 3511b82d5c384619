//! The data path: commands, files, ports and logs. A sleeper wakes.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use pandastack_types::api::{
    DirectoryListing, ExecRequest, ExecResult, FileEntry, FileWritten, Port, PortList, RenameFile,
};
use serde::Deserialize;

use super::{Shared, Target};
use crate::error::{AgentError, Result};
use crate::exec::{Exec, ExecEvents};
use crate::files;
use crate::logs::{Follower, read_tail};

/// Quiet streams send a comment this often, so that nobody in between gives up on them.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Deserialize)]
pub(super) struct PathQuery {
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    recursive: Option<bool>,
}

impl PathQuery {
    fn path(&self) -> Result<&str> {
        let missing =
            || AgentError::BadRequest("the query has no `path`; add ?path=/absolute/path".to_owned());
        self.path.as_deref().ok_or_else(missing)
    }
}

pub(super) async fn exec(
    Target(handle): Target,
    Json(request): Json<ExecRequest>,
) -> Result<Json<ExecResult>> {
    let exec = Exec::from_request(request)?;
    Ok(Json(exec.run(&handle.lease().await?).await?))
}

pub(super) async fn exec_stream(
    Target(handle): Target,
    Json(request): Json<ExecRequest>,
) -> Result<Response> {
    let exec = Exec::from_request(request)?;
    let events = exec.stream(handle.lease().await?).await?;
    let stream = futures::stream::unfold(events, |mut events: ExecEvents| async move {
        let event = events.next().await?;
        Some((Ok::<_, Infallible>(event), events))
    });
    Ok(sse(stream))
}

pub(super) async fn read(Target(handle): Target, Query(query): Query<PathQuery>) -> Result<Response> {
    let path = query.path()?;
    files::check_path(path)?;
    let (body, size) = files::read(handle.lease().await?, path).await?;
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert("x-pandastack-file-size", HeaderValue::from(size));
    Ok(response)
}

pub(super) async fn write(
    Target(handle): Target,
    Query(query): Query<PathQuery>,
    body: Body,
) -> Result<Json<FileWritten>> {
    let path = query.path()?;
    files::check_path(path)?;
    Ok(Json(files::write(&handle.lease().await?, path, body).await?))
}

pub(super) async fn remove(Target(handle): Target, Query(query): Query<PathQuery>) -> Result<StatusCode> {
    let path = query.path()?;
    files::check_path(path)?;
    handle.lease().await?.guest.remove(path, query.recursive.unwrap_or(true)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list(
    Target(handle): Target,
    Query(query): Query<PathQuery>,
) -> Result<Json<DirectoryListing>> {
    let path = query.path.as_deref().unwrap_or("/");
    files::check_path(path)?;
    Ok(Json(files::list(&handle.lease().await?, path).await?))
}

pub(super) async fn stat(Target(handle): Target, Query(query): Query<PathQuery>) -> Result<Json<FileEntry>> {
    let path = query.path()?;
    files::check_path(path)?;
    Ok(Json(files::stat(&handle.lease().await?, path).await?))
}

pub(super) async fn mkdir(Target(handle): Target, Query(query): Query<PathQuery>) -> Result<StatusCode> {
    let path = query.path()?;
    files::check_path(path)?;
    handle.lease().await?.guest.mkdir(path, true, None, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn rename(Target(handle): Target, Json(rename): Json<RenameFile>) -> Result<StatusCode> {
    files::check_path(&rename.from)?;
    files::check_path(&rename.to)?;
    handle.lease().await?.guest.rename(rename.from.as_str(), rename.to.as_str()).await?;
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
    let follow = match query.follow.as_deref() {
        None | Some("" | "0" | "false") => false,
        Some("1" | "true") => true,
        Some(_) => {
            return Err(AgentError::BadRequest("`follow` must be 1 or 0, or true or false".to_owned()));
        }
    };
    let path = host.layout.machine(&handle.view().id).join(crate::layout::home::CONSOLE);
    if follow && path.exists() {
        return Ok(sse(Follower::open(&path)?.events()));
    }
    let text = crate::blocking(move || Ok::<_, AgentError>(read_tail(&path))).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

/// A stream of events, with what published clients need: a character set, and a comment now and then.
fn sse(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Without the character set one published client decodes Latin-1.
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
