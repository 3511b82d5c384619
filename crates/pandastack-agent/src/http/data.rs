//! The data path: commands, files, ports and logs. Calls wake a sleeping sandbox.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::Stream;
use pandastack_types::agent_api::endpoints::{
    self, ExecStream, ListPorts, MakeDirectory, ReadFile, ReadLogs, ReadMetrics, RemoveFile, StatFile,
    WriteFile,
};
use pandastack_types::agent_api::{ExecQuery, ExecStreamQuery, FILE_SIZE_HEADER, PROCESS_HEADER};
use pandastack_types::api::{FileEntry, FileWritten, Port, PortList, SandboxMetrics};

use super::endpoint::{EventResponse, SandboxCall, ValueOrEvents};
use crate::error::{AgentError, Result};
use crate::exec::Exec;
use crate::files::{self, check_path};
use crate::logs::{Follower, read_tail};
use crate::process::{OutputEvents, Style};

/// Interval of comments on quiet streams, so that no proxy in between gives up on them.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn exec(call: SandboxCall<endpoints::Exec>) -> Result<Response> {
    let ExecQuery { tag, last_bytes } = call.endpoint.query;
    Exec::from_request(call.body)?.tagged(tag).ending(last_bytes).run(call.sandbox).await
}

pub(super) async fn exec_stream(call: SandboxCall<ExecStream>) -> Result<EventResponse> {
    let ExecStreamQuery { encoding, tag } = call.endpoint.query;
    let exec = Exec::from_request(call.body)?.tagged(tag);
    Ok(output(exec.stream(call.sandbox, Style::from(encoding)).await?))
}

/// A process's events. A header carries the process id, with which a client reconnects.
pub(super) fn output(events: OutputEvents) -> EventResponse {
    let process = events.process();
    let stream = futures::stream::unfold(events, |mut events: OutputEvents| async move {
        let event = events.next().await?;
        Some((Ok::<_, Infallible>(event.sse()), events))
    });
    let mut response = sse(stream);
    response.0.headers_mut().insert(PROCESS_HEADER, HeaderValue::from(process));
    response
}

pub(super) async fn read(call: SandboxCall<ReadFile>) -> Result<Response> {
    let path = &call.endpoint.query.path;
    check_path(path)?;
    let headers = &call.parts.headers;
    // Files have no validator for `If-Range`, so a request with that header gets the whole file.
    let range = headers.get(header::RANGE).filter(|_| !headers.contains_key(header::IF_RANGE));
    let range = range.and_then(|value| value.to_str().ok());
    let files::Content { body, size, length, start } =
        files::read(call.sandbox.lease().await?, path, range).await?;
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(FILE_SIZE_HEADER, HeaderValue::from(size));
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

pub(super) async fn write(call: SandboxCall<WriteFile>) -> Result<FileWritten> {
    let query = call.endpoint.query;
    check_path(&query.path)?;
    let write = files::Write::parse(query.write.as_deref(), query.mode.as_deref(), query.user)?;
    files::write(&call.sandbox.lease().await?, &query.path, write, call.body).await
}

pub(super) async fn remove(call: SandboxCall<RemoveFile>) -> Result<()> {
    let query = call.endpoint.query;
    check_path(&query.path)?;
    let lease = call.sandbox.lease().await?;
    Ok(lease.guest.remove(query.path, query.recursive.unwrap_or(true)).await?)
}

pub(super) async fn stat(call: SandboxCall<StatFile>) -> Result<FileEntry> {
    let path = &call.endpoint.query.path;
    check_path(path)?;
    files::stat(&call.sandbox.lease().await?, path).await
}

pub(super) async fn make_directory(call: SandboxCall<MakeDirectory>) -> Result<()> {
    let query = call.endpoint.query;
    check_path(&query.path)?;
    Ok(call.sandbox.lease().await?.guest.mkdir(query.path, true, None, query.user).await?)
}

pub(super) async fn ports(call: SandboxCall<ListPorts>) -> Result<PortList> {
    let found = call.sandbox.lease().await?.guest.ports().await?;
    let port = |port: pandastack_guest_proto::message::ListeningPort| Port {
        port: port.port,
        address: port.address.to_string(),
        listening: true,
        proxy_url: None,
    };
    Ok(PortList { ports: found.into_iter().map(port).collect() })
}

/// The console's last lines, or all from there on as events. Never wakes a sleeping sandbox.
pub(super) async fn logs(call: SandboxCall<ReadLogs>) -> Result<ValueOrEvents<Response>> {
    let SandboxCall { host, sandbox, endpoint: ReadLogs { query, .. }, .. } = call;
    // A console is one stream; the parameter is accepted for clients that always send it.
    if let Some(stream) = query.stream.as_deref().filter(|name| !["stdout", "stderr", "both"].contains(name))
    {
        let shown: String = stream.chars().take(40).collect();
        return Err(AgentError::BadRequest(format!(
            "`stream` must be stdout, stderr or both, not `{shown}`"
        )));
    }
    let path = host.layout.machine(&sandbox.view().id).join(crate::layout::machine::CONSOLE);
    if query.follow.0 && path.exists() {
        return Ok(ValueOrEvents::Events(sse(Follower::open(&path)?.events(host.shutdown.clone()))));
    }
    let text = crate::blocking::blocking(move || Ok::<_, AgentError>(read_tail(&path))).await?;
    Ok(ValueOrEvents::Value(text.into_response()))
}

/// Reads a sandbox's resource usage. Never wakes a sleeping sandbox.
pub(super) async fn metrics(call: SandboxCall<ReadMetrics>) -> Result<SandboxMetrics> {
    Ok(crate::observe::metrics(call.sandbox.observe().await?).await)
}

/// A stream of events, with what published clients need: a character set, and a comment now and then.
pub(super) fn sse(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> EventResponse {
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Without the character set one published client decodes Latin-1.
    let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    EventResponse(response)
}
