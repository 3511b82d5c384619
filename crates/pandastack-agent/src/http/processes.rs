//! Processes by id.

use axum::body::HttpBody;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use futures::StreamExt;
use pandastack_guest_proto::client::ClientError;
use pandastack_guest_proto::message::{ProcessId, StdinWrite};
use pandastack_types::agent_api::endpoints::{
    CommandSocket, ListProcesses, PlainTerminalSocket, ProcessOutput, ReadProcess, ResizeTerminal,
    SignalProcess, StartProcess, TerminalSocket, WaitProcess, WriteStdin,
};
use pandastack_types::agent_api::{
    Empty, Endpoint, LAST_EVENT_ID_HEADER, OutputQuery, PID_HEADER, TerminalQuery, Upgrade, WebSocketProtocol,
};
use pandastack_types::api::{self, ExecRequest, Process, ProcessList, StdinWritten, TerminalSize};
use pandastack_types::limits;
use tokio::time::Duration;

use super::data;
use super::endpoint::{EventResponse, SandboxCall, UpgradeResponse, ValueOrEvents};
use crate::error::{AgentError, Result};
use crate::process::{self, Feed, Offsets, OutputEvents, Start, Style, named, terminal_size};

/// Carries the id of the started process.
const PID: HeaderName = HeaderName::from_static(PID_HEADER);
/// Wait of a caller that names none.
const WAIT_SECONDS_DEFAULT: u64 = 30;

pub(super) async fn list(call: SandboxCall<ListProcesses>) -> Result<ProcessList> {
    let processes = process::list(&call.sandbox.lease().await?.guest).await?;
    Ok(ProcessList { processes })
}

pub(super) async fn start(call: SandboxCall<StartProcess>) -> Result<ValueOrEvents<Process>> {
    let SandboxCall { sandbox, endpoint: StartProcess { query, .. }, body, .. } = call;
    let start = Start::from_request(body)?;
    if query.follow.0 {
        let (pid, events) = start.follow(sandbox, query.encoding.into()).await?;
        let mut response = data::output(events);
        response.0.headers_mut().extend(pid.map(|pid| (PID, HeaderValue::from(pid))));
        return Ok(ValueOrEvents::Events(response));
    }
    Ok(ValueOrEvents::Value(start.run(&sandbox).await?))
}

pub(super) async fn read(call: SandboxCall<ReadProcess>) -> Result<Process> {
    process::show(&call.sandbox.lease().await?.guest, ProcessId(call.endpoint.process)).await
}

pub(super) async fn wait(call: SandboxCall<WaitProcess>) -> Result<Process> {
    let WaitProcess { process, query, .. } = call.endpoint;
    let seconds = query.timeout_seconds.unwrap_or(WAIT_SECONDS_DEFAULT);
    if seconds > limits::PROCESS_WAIT_SECONDS_MAX {
        return Err(AgentError::BadRequest(format!(
            "`timeout_seconds` must be at most {}; call again to wait longer",
            limits::PROCESS_WAIT_SECONDS_MAX
        )));
    }
    process::wait(&call.sandbox, ProcessId(process), Duration::from_secs(seconds)).await
}

pub(super) async fn signal(call: SandboxCall<SignalProcess>) -> Result<()> {
    let id = ProcessId(call.endpoint.process);
    let lease = call.sandbox.lease().await?;
    lease.guest.signal(id, call.body.signal.number()).await.map_err(|error| named(error, id))
}

pub(super) async fn resize(call: SandboxCall<ResizeTerminal>) -> Result<()> {
    let id = ProcessId(call.endpoint.process);
    let size = terminal_size(call.body)?;
    call.sandbox.lease().await?.guest.resize(id, size).await.map_err(|error| named(error, id))
}

/// Offsets at which output starts. The position that the client saw last takes precedence over the
/// address.
fn offsets(query: &OutputQuery, headers: &HeaderMap) -> Result<Offsets> {
    let Some(last) = headers.get(LAST_EVENT_ID_HEADER) else {
        return Ok((query.stdout_offset.unwrap_or(0), query.stderr_offset.unwrap_or(0)));
    };
    let pair = last.to_str().ok().and_then(|text| text.split_once('-'));
    let numbers = pair.and_then(|(out, err)| Some((out.parse().ok()?, err.parse().ok()?)));
    numbers
        .ok_or_else(|| AgentError::BadRequest("`Last-Event-ID` must be two offsets, such as 10-0".to_owned()))
}

pub(super) async fn output(call: SandboxCall<ProcessOutput>) -> Result<EventResponse> {
    let ProcessOutput { process, query, .. } = call.endpoint;
    let id = ProcessId(process);
    let offsets = offsets(&query, &call.parts.headers)?;
    // An unknown process or an offset beyond its output is an answer, not the first event of a stream.
    let info = process::process_info(&call.sandbox.lease().await?.guest, id).await?;
    if offsets.0 > info.stdout_end || offsets.1 > info.stderr_end {
        return Err(AgentError::BadRequest(format!(
            "the offsets are beyond the output of process {id}: {} bytes of stdout and {} bytes of stderr so far",
            info.stdout_end, info.stderr_end
        )));
    }
    let feed = Feed::attach(call.sandbox, id, offsets).await?;
    Ok(data::output(OutputEvents::new(feed, offsets, query.encoding.into())))
}

pub(super) async fn command_socket(
    mut call: SandboxCall<CommandSocket>,
) -> Result<UpgradeResponse<WebSocketProtocol>> {
    let upgrade = call.websocket().await?;
    let style = Style::from(call.endpoint.query.encoding);
    // A sandbox that cannot be used is an answer, not the first message.
    drop(call.sandbox.lease().await?);
    let sandbox = call.sandbox;
    let response = upgrade.on_upgrade(move |socket| process::socket::serve(sandbox, socket, style));
    Ok(UpgradeResponse::websocket(response))
}

pub(super) async fn terminal_socket(
    mut call: SandboxCall<TerminalSocket>,
) -> Result<UpgradeResponse<WebSocketProtocol>> {
    let query = std::mem::take(&mut call.endpoint.query);
    serve_terminal(call, query, false).await
}

pub(super) async fn plain_terminal_socket(
    mut call: SandboxCall<PlainTerminalSocket>,
) -> Result<UpgradeResponse<WebSocketProtocol>> {
    let query = std::mem::take(&mut call.endpoint.query);
    serve_terminal(call, query, true).await
}

async fn serve_terminal<E>(
    mut call: SandboxCall<E>,
    query: TerminalQuery,
    is_plain: bool,
) -> Result<UpgradeResponse<WebSocketProtocol>>
where
    E: Endpoint<Request = Empty, Response = Upgrade<WebSocketProtocol>>,
{
    let upgrade = call.websocket().await?;
    let handle = call.sandbox;
    let size = TerminalSize::default();
    let size = TerminalSize { rows: query.rows.unwrap_or(size.rows), cols: query.cols.unwrap_or(size.cols) };
    let (process, offset) = match query.process {
        Some(number) => {
            let info = process::process_info(&handle.lease().await?.guest, ProcessId(number)).await?;
            // Without an offset: the screen as far as it is kept.
            (info.process, query.offset.or(info.stdout_start).unwrap_or(0))
        }
        None => {
            let exec = ExecRequest { user: query.user, ..ExecRequest::default() };
            let start = api::StartProcess { exec, pty: Some(size), ..api::StartProcess::default() };
            (ProcessId(Start::from_request(start)?.run(&handle).await?.id), 0)
        }
    };
    let feed = Feed::attach(handle.clone(), process, (offset, 0)).await?;
    let terminal = process::TerminalSocket { handle, feed, offset, is_plain };
    Ok(UpgradeResponse::websocket(upgrade.on_upgrade(move |socket| terminal.serve(socket))))
}

pub(super) async fn write_stdin(call: SandboxCall<WriteStdin>) -> Result<StdinWritten> {
    let SandboxCall { sandbox, endpoint: WriteStdin { process, query, .. }, body, .. } = call;
    let id = ProcessId(process);
    let announced = body.size_hint().lower();
    if announced > limits::STDIN_BODY_BYTES_MAX {
        return Err(AgentError::TooLarge(format!(
            "one write to standard input is limited to {} bytes; send the rest in another call",
            limits::STDIN_BODY_BYTES_MAX
        )));
    }
    let lease = sandbox.lease().await?;
    let refused = |error: ClientError| named(error, id);
    let write = StdinWrite { process: id, offset: query.offset, close: query.close };
    let mut writer = lease.guest.open_stdin(write).await.map_err(refused)?;
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let cut = |_| AgentError::BadRequest("the request body is incomplete; send it again".to_owned());
        writer.write(&chunk.map_err(cut)?).await.map_err(refused)?;
    }
    let written = writer.finish().await.map_err(refused)?;
    Ok(StdinWritten { offset: written.offset })
}
