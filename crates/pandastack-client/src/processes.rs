//! Processes by id, and output streams that reconnect.
//!
//! A process outlives its connections, and its output is buffered by offset. A stream that breaks,
//! because a server restarts or the network fails, is reopened at the same offset, for up to
//! [`RECONNECT_MAX`] without data.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use pandastack_types::SandboxId;
use pandastack_types::agent_api::PROCESS_HEADER;
use pandastack_types::api::{
    ExecRequest, Process, ProcessList, Signal, SignalProcess, StartProcess, StdinWritten, TerminalSize,
};
use reqwest::Method;
use serde::Deserialize;
use tokio::time::Instant;

use crate::client::{Call, Client, Events, READ_SECONDS, WRITE_SECONDS};
use crate::error::{ClientError, Result};

/// Longest time to reconnect a stream.
const RECONNECT_MAX: Duration = Duration::from_secs(60);
/// Delays between attempts, doubling from the first to the last.
const DELAY_FIRST: Duration = Duration::from_millis(100);
const DELAY_LAST: Duration = Duration::from_secs(2);
/// Timeout of a write to standard input, which waits until the process reads it.
const STDIN_SECONDS: u64 = 600;

/// Output or exit of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// The process wrote to standard output.
    Stdout(Bytes),
    /// The process wrote to standard error.
    Stderr(Bytes),
    /// Number of bytes that were dropped before they could be read.
    Lost(u64),
    /// The process ended with this code; the last event.
    Exited(i32),
}

/// Output of one process. Dropping it does not affect the process.
pub struct ExecStream {
    client: Client,
    sandbox: SandboxId,
    /// `None` if the server does not report it; the stream then cannot reconnect.
    process: Option<u64>,
    offsets: (u64, u64),
    events: Events,
    retry: Retry,
}

#[derive(Default, Deserialize)]
struct Payload {
    chunk: Option<String>,
    data: Option<String>,
    end: Option<u64>,
    stream: Option<String>,
    from: Option<u64>,
    to: Option<u64>,
    exit_code: Option<i32>,
    #[serde(default)]
    timed_out: bool,
    error: Option<String>,
    code: Option<String>,
}

/// State of reconnection attempts.
#[derive(Default)]
struct Retry(Option<(Instant, Duration)>);

impl Retry {
    /// Waits before the next attempt, or returns the error if a retry cannot help.
    async fn pause(&mut self, error: ClientError) -> Result<()> {
        let (since, delay) = *self.0.get_or_insert_with(|| (Instant::now(), DELAY_FIRST));
        if !error.is_transient() || since.elapsed() > RECONNECT_MAX {
            return Err(error);
        }
        self.0 = Some((since, (delay * 2).min(DELAY_LAST)));
        tokio::time::sleep(delay).await;
        Ok(())
    }
}

impl Client {
    /// Runs a command and streams its output.
    pub async fn exec_stream(&self, id: &SandboxId, request: &ExecRequest) -> Result<ExecStream> {
        let call = self.open_ended_call(Method::POST, &["sandboxes", id.as_str(), "exec", "stream"]);
        let events = call.query(&[("encoding", "base64")]).json(request).events().await?;
        let process = events.header(PROCESS_HEADER).and_then(|text| text.parse().ok());
        Ok(self.stream(id, process, (0, 0), events))
    }

    /// Starts a process and returns at once.
    pub async fn start_process(&self, id: &SandboxId, request: &StartProcess) -> Result<Process> {
        let call = self.call(Method::POST, &["sandboxes", id.as_str(), "processes"], WRITE_SECONDS);
        call.json(request).receive().await
    }

    /// Running processes, and those that exited recently.
    pub async fn processes(&self, id: &SandboxId) -> Result<Vec<Process>> {
        let call = self.call(Method::GET, &["sandboxes", id.as_str(), "processes"], WRITE_SECONDS);
        call.receive::<ProcessList>().await.map(|list| list.processes)
    }

    /// Returns the process.
    pub async fn process(&self, id: &SandboxId, process: u64) -> Result<Process> {
        let number = process.to_string();
        let call = self.call(Method::GET, &["sandboxes", id.as_str(), "processes", &number], WRITE_SECONDS);
        call.receive().await
    }

    /// Output of a process from the given offsets of its two streams.
    pub async fn process_output(
        &self,
        id: &SandboxId,
        process: u64,
        offsets: (u64, u64),
    ) -> Result<ExecStream> {
        let events = self.open_output(id, process, offsets).await?;
        Ok(self.stream(id, Some(process), offsets, events))
    }

    /// Sends a signal.
    pub async fn signal_process(&self, id: &SandboxId, process: u64, signal: Signal) -> Result<()> {
        let call = self.process_call(id, process, "signal", READ_SECONDS);
        call.json(&SignalProcess { signal }).finish().await
    }

    /// Changes the size of a terminal.
    pub async fn resize_process(&self, id: &SandboxId, process: u64, size: TerminalSize) -> Result<()> {
        self.process_call(id, process, "resize", READ_SECONDS).json(&size).finish().await
    }

    /// Writes to a process's standard input at `offset`; returns the new offset. Bytes that were
    /// accepted before a connection broke are not written again.
    pub async fn write_stdin(
        &self,
        id: &SandboxId,
        process: u64,
        offset: u64,
        bytes: Bytes,
        close: bool,
    ) -> Result<u64> {
        let (mut rest, mut retry, mut repeated) = (bytes.clone(), Retry::default(), false);
        loop {
            let call = self.process_call(id, process, "stdin", STDIN_SECONDS);
            let call = if close { call.query(&[("close", "true")]) } else { call };
            match call.with(|builder| builder.body(rest.clone())).receive::<StdinWritten>().await {
                Ok(written) => return Ok(written.offset),
                // The previous attempt, whose response was lost, closed it.
                Err(ClientError::Refused { status: 400, .. }) if repeated && close && rest.is_empty() => {
                    return Ok(offset + bytes.len() as u64);
                }
                Err(error) => retry.pause(error).await?,
            }
            repeated = true;
            let taken = loop {
                match self.process(id, process).await {
                    Ok(now) => break now.stdin_offset.saturating_sub(offset),
                    Err(error) => retry.pause(error).await?,
                }
            };
            rest = bytes.slice(usize::try_from(taken).unwrap_or(usize::MAX).min(bytes.len())..);
        }
    }

    fn process_call(&self, id: &SandboxId, process: u64, action: &str, seconds: u64) -> Call {
        let number = process.to_string();
        self.call(Method::POST, &["sandboxes", id.as_str(), "processes", &number, action], seconds)
    }

    async fn open_output(&self, id: &SandboxId, process: u64, offsets: (u64, u64)) -> Result<Events> {
        let (number, out, err) = (process.to_string(), offsets.0.to_string(), offsets.1.to_string());
        let path = ["sandboxes", id.as_str(), "processes", &number, "output"];
        let query = [("stdout_offset", out.as_str()), ("stderr_offset", &err), ("encoding", "base64")];
        self.open_ended_call(Method::GET, &path).query(&query).events().await
    }

    fn stream(
        &self,
        id: &SandboxId,
        process: Option<u64>,
        offsets: (u64, u64),
        events: Events,
    ) -> ExecStream {
        let (client, sandbox) = (self.clone(), id.clone());
        ExecStream { client, sandbox, process, offsets, events, retry: Retry::default() }
    }
}

impl ExecStream {
    /// Id of the process, if the server reported it.
    pub fn process(&self) -> Option<u64> {
        self.process
    }

    /// The next event; [`ExecEvent::Exited`] is the last. A stream that ends without it and cannot
    /// reconnect is an error, because the exit code is unknown. Cancel safe.
    pub async fn next(&mut self) -> Result<ExecEvent> {
        loop {
            let lost = match self.events.next().await {
                Ok(Some(event)) => {
                    self.retry = Retry::default();
                    match self.take(&event.name, &event.data)? {
                        Some(event) => return Ok(event),
                        None => continue,
                    }
                }
                Ok(None) => self.events.interrupted("the exit code was not reported".to_owned()),
                Err(error) => error,
            };
            self.reconnect(lost).await?;
        }
    }

    async fn reconnect(&mut self, mut lost: ClientError) -> Result<()> {
        let Some(process) = self.process else { return Err(lost) };
        loop {
            self.retry.pause(lost).await?;
            match self.client.open_output(&self.sandbox, process, self.offsets).await {
                Ok(events) => {
                    self.events = events;
                    return Ok(());
                }
                Err(error) => lost = error,
            }
        }
    }

    fn take(&mut self, name: &str, data: &str) -> Result<Option<ExecEvent>> {
        let payload: Payload = serde_json::from_str(data).unwrap_or_default();
        let offset = |offsets: &mut (u64, u64), is_stderr: bool, to: Option<u64>| {
            let seen = if is_stderr { &mut offsets.1 } else { &mut offsets.0 };
            *seen = to.unwrap_or(*seen);
        };
        match name {
            "stdout" | "stderr" => {
                offset(&mut self.offsets, name == "stderr", payload.end);
                let bytes = self.bytes_of(payload)?;
                Ok(Some(if name == "stderr" { ExecEvent::Stderr(bytes) } else { ExecEvent::Stdout(bytes) }))
            }
            "gap" => {
                offset(&mut self.offsets, payload.stream.as_deref() == Some("stderr"), payload.to);
                let bytes = payload.to.unwrap_or(0).saturating_sub(payload.from.unwrap_or(0));
                Ok(Some(ExecEvent::Lost(bytes)))
            }
            "exit" if payload.timed_out => Err(timed_out()),
            "exit" => {
                let missing = || self.events.interrupted("the exit event has no exit code".to_owned());
                payload.exit_code.map(|code| Some(ExecEvent::Exited(code))).ok_or_else(missing)
            }
            "error" => Err(crate::exec::stream_error(payload.error, payload.code)),
            _ => Ok(None),
        }
    }

    /// Decodes output; servers without base64 support send text.
    fn bytes_of(&self, payload: Payload) -> Result<Bytes> {
        match payload.data {
            Some(coded) => BASE64
                .decode(coded)
                .map(Bytes::from)
                .map_err(|error| self.events.interrupted(format!("invalid base64 output: {error}"))),
            None => Ok(payload.chunk.unwrap_or_default().into()),
        }
    }
}

fn timed_out() -> ClientError {
    crate::exec::stream_error(Some("the command was killed after its timeout".to_owned()), None)
}
