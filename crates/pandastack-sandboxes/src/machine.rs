//! A handle to one machine of a service: run commands in it, write files, move it between states.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use jiff::Timestamp;
use pandastack_agent_client::{AgentClient, AgentError};
use pandastack_store::{SandboxRecord, SnapshotRecord};
use pandastack_types::api::{
    CreateSnapshot, ExecRequest, ExecResult, Keep, PatchLifecycle, Port, PortList, Process, ProcessList,
    Signal, SignalProcess, SnapshotKind, StartProcess,
};
use pandastack_types::{Error, ErrorCode, Result, SandboxId};
use serde::de::IgnoredAny;
use tokio::time::Instant;

use crate::Sandboxes;
use crate::ops::lifecycle::Move;
use crate::ops::listening::Watch;
use crate::ops::{self, NO_BODY, call_on};
use crate::output::{Events, Exit, Lines, OutputEvent};

/// How long a short call may take; it may have to wake the machine.
const CALL_WAIT: Duration = Duration::from_secs(60);
/// How long an agent that does not answer is waited for.
const AGENT_WAIT: Duration = Duration::from_secs(60);
/// Between two tries to reach it.
const AGENT_RETRY: Duration = Duration::from_millis(500);
/// How long the last lines of a process that still runs are read.
const LAST_LINES_WAIT: Duration = Duration::from_secs(2);
/// Lines that are remembered of a command which ended: programs say why they fail shortly before their end.
const EXIT_LINES: usize = 8;

/// Receives the lines that a command prints.
#[async_trait]
pub trait LineSink: Sync {
    /// Takes the next line, without its end.
    async fn line(&self, line: &str);
}

/// A machine of a service.
#[derive(Clone)]
pub struct Machine {
    sandboxes: Arc<Sandboxes>,
    /// The record as it was when the machine was made or opened.
    pub record: SandboxRecord,
    client: AgentClient,
}

impl Machine {
    /// The machine of a record, if its host was heard lately.
    pub fn of(sandboxes: &Arc<Sandboxes>, record: SandboxRecord) -> Result<Self> {
        let client = sandboxes.hosts.client(&record.host)?;
        Ok(Self { sandboxes: Arc::clone(sandboxes), record, client })
    }

    /// Calls the agent of its host.
    pub fn client(&self) -> &AgentClient {
        &self.client
    }

    /// Its id.
    pub fn id(&self) -> &SandboxId {
        &self.record.id
    }

    fn path(&self, tail: &str) -> String {
        format!("/sandboxes/{}/{tail}", self.record.id)
    }

    /// Runs a short command and answers what it printed.
    pub async fn exec(&self, request: &ExecRequest) -> Result<ExecResult> {
        self.exec_within(request, CALL_WAIT).await
    }

    /// Runs a command and answers what it printed; fails when that takes longer than `wait`.
    pub async fn exec_within(&self, request: &ExecRequest, wait: Duration) -> Result<ExecResult> {
        let path = self.path("exec");
        Ok(self.client.call(call_on(&self.record, Method::POST, &path, wait), Some(request)).await?)
    }

    /// Starts a process and leaves it to itself.
    pub async fn start(&self, request: &StartProcess) -> Result<Process> {
        let path = self.path("processes");
        Ok(self.client.call(call_on(&self.record, Method::POST, &path, CALL_WAIT), Some(request)).await?)
    }

    /// All processes.
    pub async fn processes(&self) -> Result<Vec<Process>> {
        let path = self.path("processes");
        let call = call_on(&self.record, Method::GET, &path, CALL_WAIT);
        Ok(self.client.call::<ProcessList>(call, NO_BODY).await?.processes)
    }

    /// Ends a process and everything it started.
    pub async fn kill(&self, process: u64) -> Result<()> {
        let path = self.path(&format!("processes/{process}/signal"));
        let body = SignalProcess { signal: Signal::KILL };
        let call = call_on(&self.record, Method::POST, &path, CALL_WAIT);
        Ok(self.client.call::<IgnoredAny>(call, Some(&body)).await.map(|_| ())?)
    }

    /// What listens in it now.
    pub async fn ports(&self) -> Result<Vec<Port>> {
        let path = self.path("ports");
        let call = call_on(&self.record, Method::GET, &path, CALL_WAIT);
        Ok(self.client.call::<PortList>(call, NO_BODY).await?.ports)
    }

    /// Looks at what listens in it.
    pub fn watch(&self, deadline: Instant) -> Watch<'_> {
        Watch::new(&self.record, &self.client, deadline)
    }

    /// Writes a file; the content streams.
    pub async fn write(&self, file: &str, content: Body) -> Result<()> {
        let uri = format!("/agent/v1{}?path={file}", self.path("fs"));
        let request = Request::put(uri).header(header::CONTENT_TYPE, "application/octet-stream");
        let request = request.body(content).map_err(Error::internal)?;
        self.client.send(request, Some(self.record.incarnation)).await?;
        Ok(())
    }

    /// Unpacks a tar archive into a directory; the content streams.
    pub async fn unpack(&self, directory: &str, archive: Body, wait: Duration) -> Result<()> {
        let uri = format!("/agent/v1{}?path={directory}", self.path("fs/tar"));
        let request = Request::put(uri).header(header::CONTENT_TYPE, "application/x-tar");
        let request = request.body(archive).map_err(Error::internal)?;
        let sent = self.client.send(request, Some(self.record.incarnation));
        let late = |_| Error::new(ErrorCode::GuestUnavailable, "the archive could not be copied in time");
        tokio::time::timeout(wait, sent).await.map_err(late)??;
        Ok(())
    }

    /// Makes a directory and those above it.
    pub async fn make_dir(&self, directory: &str, wait: Duration) -> Result<()> {
        let path = self.path(&format!("fs/mkdir?path={directory}"));
        let call = call_on(&self.record, Method::POST, &path, wait);
        Ok(self.client.call::<IgnoredAny>(call, NO_BODY).await.map(drop)?)
    }

    /// Deletes a file, or a directory with everything in it.
    pub async fn remove(&self, file: &str, wait: Duration) -> Result<()> {
        let path = self.path(&format!("fs?path={file}"));
        let call = call_on(&self.record, Method::DELETE, &path, wait);
        Ok(self.client.call::<IgnoredAny>(call, NO_BODY).await.map(drop)?)
    }

    /// Sets after how many idle seconds it sleeps.
    pub async fn set_idle(&self, seconds: u64) -> Result<()> {
        let patch = PatchLifecycle { idle_timeout_seconds: Some(seconds), ..PatchLifecycle::default() };
        let record = self.sandboxes.store.sandbox(None, &self.record.id).await?;
        ops::lifecycle::patch(&self.sandboxes, record, patch).await.map(|_| ())
    }

    /// Until when a lease keeps it awake, as its host says.
    pub async fn awake_until(&self) -> Result<Option<Timestamp>> {
        Ok(ops::describe(&self.client, &self.record).await?.awake_until)
    }

    /// Wakes it, if it sleeps.
    pub async fn wake(&self) -> Result<()> {
        let record = self.sandboxes.store.sandbox(None, &self.record.id).await?;
        ops::lifecycle::go(&self.sandboxes, record, self.client.clone(), Move::Wake, false).await.map(drop)
    }

    /// Puts it to sleep once the requests under way to it ended.
    pub async fn sleep(&self) -> Result<()> {
        let record = self.sandboxes.store.sandbox(None, &self.record.id).await?;
        let asleep = Move::Hibernate(Keep::default());
        ops::lifecycle::go(&self.sandboxes, record, self.client.clone(), asleep, false).await.map(drop)
    }

    /// Takes a snapshot for a service.
    pub async fn snapshot(&self, request: CreateSnapshot) -> Result<SnapshotRecord> {
        let (record, client) = (self.record.clone(), self.client.clone());
        ops::snapshot::take(&self.sandboxes, record, client, request, SnapshotKind::Service).await
    }

    /// Runs a command until it ends; its lines go to `sink`. An agent that is restarted meanwhile loses nothing.
    pub async fn run(&self, request: &StartProcess, sink: &impl LineSink) -> Result<Exit> {
        let body = serde_json::to_vec(request).map_err(Error::internal)?;
        let uri = format!("/agent/v1{}?follow=1", self.path("processes"));
        let started = Request::post(uri).header(header::CONTENT_TYPE, "application/json");
        let started = started.body(Body::from(body)).map_err(Error::internal)?;
        let response = self.client.send(started, Some(self.record.incarnation)).await?;
        let process = response.headers().get("x-pandastack-process").and_then(|id| id.to_str().ok());
        let process = process.map(str::to_owned);
        let (mut events, mut lines) = (Events::default(), Lines::default());
        let mut body = Some(response.into_body());
        let mut deadline = Instant::now() + AGENT_WAIT;
        let mut last = VecDeque::new();
        loop {
            if let Some(exit) = follow(body.take(), &mut events, &mut lines, &mut last, sink).await? {
                return Ok(Exit { last_lines: last.into(), ..exit });
            }
            // The stream broke off before the end: its agent is being restarted, and the process goes on.
            let Some(process) = &process else { return Err(lost("the agent did not name the process")) };
            match self.reattach(process, events.last_id.as_deref()).await {
                Ok(again) => {
                    body = Some(again);
                    deadline = Instant::now() + AGENT_WAIT;
                }
                Err(error) if Instant::now() < deadline && is_restart(&error) => {
                    tokio::time::sleep(AGENT_RETRY).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The last lines that a process printed so far, of those that are wanted.
    pub async fn last_lines(
        &self,
        process: u64,
        count: usize,
        is_wanted: impl Fn(&String) -> bool,
    ) -> Result<Vec<String>> {
        let mut body = self.reattach(&process.to_string(), None).await?;
        let (mut events, mut lines, mut last) = (Events::default(), Lines::default(), VecDeque::new());
        // A process that still runs has no end to wait for: what comes at once is what it printed so far.
        let deadline = Instant::now() + LAST_LINES_WAIT;
        'read: while let Ok(Some(Ok(frame))) = tokio::time::timeout_at(deadline, body.frame()).await {
            let Ok(bytes) = frame.into_data() else { continue };
            if !events.push(&bytes) {
                break;
            }
            while let Some(event) = events.next() {
                let OutputEvent::Text(text) = event else { break 'read };
                keep_last(&mut last, lines.push(&text), count, &is_wanted);
            }
        }
        keep_last(&mut last, lines.rest(), count, &is_wanted);
        Ok(last.into())
    }

    /// Follows what a process prints, raw as its agent tells it.
    pub async fn output(&self, process: u64) -> Result<Incoming> {
        Ok(self.reattach(&process.to_string(), None).await?)
    }

    async fn reattach(&self, process: &str, last_id: Option<&str>) -> Result<Incoming, AgentError> {
        let uri = format!("/agent/v1{}", self.path(&format!("processes/{process}/output")));
        let mut request = Request::get(uri);
        if let Some(id) = last_id {
            request = request.header("last-event-id", id);
        }
        let nonsense = |error: http::Error| AgentError::Nonsense {
            host: self.record.host.clone(),
            source: error.into(),
        };
        let request = request.body(Body::empty()).map_err(nonsense)?;
        Ok(self.client.send(request, Some(self.record.incarnation)).await?.into_body())
    }
}

/// Adds what is wanted of some lines, and gives up the oldest beyond `count`.
fn keep_last(
    last: &mut VecDeque<String>,
    lines: impl IntoIterator<Item = String>,
    count: usize,
    is_wanted: impl Fn(&String) -> bool,
) {
    last.extend(lines.into_iter().filter(is_wanted));
    let surplus = last.len().saturating_sub(count);
    last.drain(..surplus);
}

/// Reads one stream to the sink. `None` when it broke off.
async fn follow(
    body: Option<Incoming>,
    events: &mut Events,
    lines: &mut Lines,
    last: &mut VecDeque<String>,
    sink: &impl LineSink,
) -> Result<Option<Exit>> {
    let Some(mut body) = body else { return Ok(None) };
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(bytes) = frame.into_data() else { continue };
        if !events.push(&bytes) {
            return Err(lost("the agent sent nonsense"));
        }
        while let Some(event) = events.next() {
            match event {
                OutputEvent::Text(text) => {
                    for line in lines.push(&text) {
                        sink.line(&line).await;
                        keep_last(last, [line], EXIT_LINES, |_| true);
                    }
                }
                OutputEvent::Exit(exit) => {
                    if let Some(rest) = lines.rest() {
                        sink.line(&rest).await;
                        keep_last(last, [rest], EXIT_LINES, |_| true);
                    }
                    return Ok(Some(exit));
                }
                OutputEvent::Failed(why) => return Err(lost(&why)),
            }
        }
    }
    Ok(None)
}

fn is_restart(error: &AgentError) -> bool {
    match error {
        AgentError::Unreachable { .. } | AgentError::Broken { .. } => true,
        AgentError::Answered { body, .. } => body.code == ErrorCode::Unavailable,
        _ => false,
    }
}

fn lost(why: &str) -> Error {
    Error::new(ErrorCode::GuestUnavailable, format!("a command's output was lost: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_for_counts_and_not_what_was_printed_after_it() {
        let mut last = VecDeque::new();
        for batch in [["error 1", "noise"], ["error 2", "noise"], ["noise", "noise"]] {
            let lines = batch.map(str::to_owned);
            keep_last(&mut last, lines, 2, |line| line.contains("error"));
        }
        assert_eq!(last, ["error 1", "error 2"]);
        keep_last(&mut last, Some("error 3".to_owned()), 2, |_| true);
        assert_eq!(last, ["error 2", "error 3"]);
    }
}
