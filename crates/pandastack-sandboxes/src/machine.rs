//! A handle to one machine of a service: run commands in it, write files, move it between states.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use jiff::Timestamp;
use pandastack_agent_client::{AgentClient, AgentError, StreamOptions};
use pandastack_store::{SandboxRecord, SnapshotRecord};
use pandastack_types::agent_api::{
    ExecQuery, Flag, OutputQuery, PROCESS_HEADER, StartProcessQuery, endpoints,
};
use pandastack_types::api::{
    CreateSnapshot, ExecRequest, ExecResult, Keep, PatchLifecycle, Port, Process, Signal, SignalProcess,
    SnapshotKind, StartProcess,
};
use pandastack_types::limits::OWN_OUTPUT_BYTES_MAX;
use pandastack_types::{Error, ErrorCode, Result, SandboxId};
use tokio::time::Instant;

use crate::Sandboxes;
use crate::ops::lifecycle::StateChange;
use crate::ops::listening::Watch;
use crate::ops::{self, options_for};
use crate::output::{Events, Exit, Lines, OutputEvent};
use crate::snapshot_owner;

/// Longest duration of a short call, which may have to wake the machine.
const CALL_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for an agent that does not respond.
const AGENT_WAIT: Duration = Duration::from_secs(60);
/// Between two tries to reach it.
const AGENT_RETRY: Duration = Duration::from_millis(500);
/// Longest time for reading the last lines of a running process.
const LAST_LINES_WAIT: Duration = Duration::from_secs(2);
/// Lines kept of an ended command: programs print the reason for a failure shortly before their
/// end.
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
    /// The machine of a record, if its host reported recently.
    pub fn of(sandboxes: &Arc<Sandboxes>, record: SandboxRecord) -> Result<Self> {
        let client = sandboxes.hosts.client(&record.host)?;
        Ok(Self { sandboxes: Arc::clone(sandboxes), record, client })
    }

    pub(crate) fn sandboxes(&self) -> &Arc<Sandboxes> {
        &self.sandboxes
    }

    /// Calls the agent of its host.
    pub(crate) fn client(&self) -> &AgentClient {
        &self.client
    }

    /// The machine's id.
    pub fn id(&self) -> &SandboxId {
        &self.record.id
    }

    /// Runs a short command and returns its output.
    pub async fn exec(&self, request: &ExecRequest) -> Result<ExecResult> {
        self.exec_within(request, CALL_WAIT).await
    }

    /// Runs a command and returns its output; fails if it takes longer than `wait`.
    pub async fn exec_within(&self, request: &ExecRequest, wait: Duration) -> Result<ExecResult> {
        let query = ExecQuery { last_bytes: Some(OWN_OUTPUT_BYTES_MAX), ..ExecQuery::default() };
        let call = endpoints::Exec::new(self.id().clone(), query);
        Ok(self.client.call(call, options_for(&self.record, wait), request).await?)
    }

    /// Starts a process and leaves it to itself.
    pub async fn start(&self, request: &StartProcess) -> Result<Process> {
        let call = endpoints::StartProcess::new(self.id().clone(), StartProcessQuery::default());
        Ok(self.client.call(call, options_for(&self.record, CALL_WAIT), request).await?)
    }

    /// All processes.
    pub async fn processes(&self) -> Result<Vec<Process>> {
        let call = endpoints::ListProcesses::new(self.id().clone());
        Ok(self.client.call(call, options_for(&self.record, CALL_WAIT), ()).await?.processes)
    }

    /// Ends a process and everything it started.
    pub async fn kill(&self, process: u64) -> Result<()> {
        let call = endpoints::SignalProcess::new(self.id().clone(), process);
        let kill = SignalProcess { signal: Signal::KILL };
        Ok(self.client.call(call, options_for(&self.record, CALL_WAIT), &kill).await?)
    }

    /// Listening ports of the machine.
    pub async fn ports(&self) -> Result<Vec<Port>> {
        let call = endpoints::ListPorts::new(self.id().clone());
        Ok(self.client.call(call, options_for(&self.record, CALL_WAIT), ()).await?.ports)
    }

    /// Watches its listening ports.
    pub fn watch(&self, deadline: Instant) -> Watch<'_> {
        Watch::new(&self.record, &self.client, deadline)
    }

    /// Sets after how many idle seconds it sleeps.
    pub async fn set_idle(&self, seconds: u64) -> Result<()> {
        let patch = PatchLifecycle { idle_timeout_seconds: Some(seconds), ..PatchLifecycle::default() };
        let record = self.sandboxes.store.sandbox(None, &self.record.id).await?;
        ops::lifecycle::patch(&self.sandboxes, record, patch).await.map(|_| ())
    }

    /// Wakes it and keeps it from counting as idle for a while; zero seconds end an earlier lease.
    pub async fn keep_awake(&self, seconds: u64) -> Result<SandboxRecord> {
        let (record, client) = (self.record.clone(), self.client.clone());
        ops::lifecycle::keep_awake(&self.sandboxes, record, client, seconds).await
    }

    /// Time until which a lease keeps it awake, as its host reports.
    pub async fn awake_until(&self) -> Result<Option<Timestamp>> {
        Ok(ops::describe(&self.client, &self.record).await?.awake_until)
    }

    /// Wakes it, if it sleeps.
    pub async fn wake(&self) -> Result<()> {
        let record = self.sandboxes.store.sandbox(None, &self.record.id).await?;
        ops::lifecycle::change_state(&self.sandboxes, record, self.client.clone(), StateChange::Wake, false)
            .await
            .map(drop)
    }

    /// Puts the machine to sleep once the requests in progress have ended.
    pub async fn sleep(&self) -> Result<()> {
        let record = self.sandboxes.store.sandbox(None, &self.record.id).await?;
        let asleep = StateChange::Hibernate(Keep::default());
        ops::lifecycle::change_state(&self.sandboxes, record, self.client.clone(), asleep, false)
            .await
            .map(drop)
    }

    /// Boots it again from its disk. What was in its memory is gone.
    pub async fn restart(&mut self) -> Result<()> {
        for change in [StateChange::Hibernate(Keep::Disk), StateChange::Wake] {
            let record = self.sandboxes.store.sandbox(None, &self.record.id).await?;
            let changed =
                ops::lifecycle::change_state(&self.sandboxes, record, self.client.clone(), change, false);
            self.record = changed.await?;
        }
        Ok(())
    }

    /// Takes a snapshot for a service.
    pub async fn snapshot(&self, request: CreateSnapshot) -> Result<SnapshotRecord> {
        let (record, client) = (self.record.clone(), self.client.clone());
        ops::snapshot::take(&self.sandboxes, record, client, request, SnapshotKind::Service).await
    }

    /// Takes a snapshot that belongs to the user, as if a client had asked for it.
    pub async fn snapshot_for_user(&self, request: CreateSnapshot) -> Result<SnapshotRecord> {
        let (record, client) = (self.record.clone(), self.client.clone());
        ops::snapshot::take(&self.sandboxes, record, client, request, SnapshotKind::Manual).await
    }

    /// Kills processes that steps with a tag left running: interrupted steps, and background processes of
    /// others.
    pub async fn end_steps(&self, tag: &str) -> Result<()> {
        for process in self.processes().await?.iter().filter(|process| is_left_by_step(process, tag)) {
            match self.kill(process.id).await {
                // The process ended by itself since it was listed, long enough ago to be forgotten.
                Err(error) if error.code == ErrorCode::NotFound => {}
                ended => ended?,
            }
        }
        Ok(())
    }

    /// Takes a snapshot for its owner, without processes that steps with a tag left running, because they
    /// contain variables of the steps.
    pub async fn snapshot_built(&self, tag: &str, name: String) -> Result<SnapshotRecord> {
        self.end_steps(tag).await?;
        let metadata = Some(snapshot_owner::label(self.record.owner.as_ref()));
        self.snapshot(CreateSnapshot { name: Some(name), metadata, ..CreateSnapshot::default() }).await
    }

    /// Runs a command until it ends; its lines go to `sink`. An agent restart during the command
    /// loses no output.
    pub async fn run(&self, request: &StartProcess, sink: &impl LineSink) -> Result<Exit> {
        let query = StartProcessQuery { follow: Flag(true), ..StartProcessQuery::default() };
        let call = endpoints::StartProcess::new(self.id().clone(), query);
        let options = StreamOptions::on_sandbox(self.record.incarnation);
        let response = self.client.stream(call, options, request).await?;
        let process = response.headers().get(PROCESS_HEADER);
        let process: Option<u64> = process.and_then(|id| id.to_str().ok()?.parse().ok());
        let (mut events, mut lines) = (Events::default(), Lines::default());
        let mut body = Some(response.into_body());
        let mut deadline = Instant::now() + AGENT_WAIT;
        let mut last = VecDeque::new();
        loop {
            if let Some(exit) = follow(body.take(), &mut events, &mut lines, &mut last, sink).await? {
                return Ok(Exit { last_lines: last.into(), ..exit });
            }
            // The stream broke off before the end: its agent is being restarted, and the process continues.
            let Some(process) = process else {
                return Err(output_lost("the agent did not return a process id"));
            };
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

    /// The last requested lines that a process has printed so far.
    pub async fn last_lines(
        &self,
        process: u64,
        count: usize,
        is_wanted: impl Fn(&String) -> bool,
    ) -> Result<Vec<String>> {
        let mut body = self.reattach(process, None).await?;
        let (mut events, mut lines, mut last) = (Events::default(), Lines::default(), VecDeque::new());
        // A running process has no end to wait for: the output that arrives at once is what it has
        // printed so far.
        let deadline = Instant::now() + LAST_LINES_WAIT;
        'read: while let Ok(Some(Ok(frame))) = tokio::time::timeout_at(deadline, body.frame()).await {
            let Ok(bytes) = frame.into_data() else { continue };
            if !events.push(&bytes) {
                break;
            }
            while let Some(event) = events.pop() {
                let OutputEvent::Text(text) = event else { break 'read };
                keep_last(&mut last, lines.push(&text), count, &is_wanted);
            }
        }
        keep_last(&mut last, lines.take_rest(), count, &is_wanted);
        Ok(last.into())
    }

    /// Follows a process's output, raw as its agent sends it.
    pub async fn output(&self, process: u64) -> Result<Incoming> {
        Ok(self.reattach(process, None).await?)
    }

    async fn reattach(&self, process: u64, last_event_id: Option<&str>) -> Result<Incoming, AgentError> {
        let call = endpoints::ProcessOutput::new(self.id().clone(), process, OutputQuery::default());
        let options = StreamOptions { incarnation: Some(self.record.incarnation), last_event_id };
        Ok(self.client.stream(call, options, ()).await?.into_body())
    }
}

/// Returns whether a process of a step still runs, even if the step itself ended.
fn is_left_by_step(process: &Process, tag: &str) -> bool {
    process.tag.as_deref() == Some(tag) && (process.exit_code.is_none() || process.lingering)
}

/// Appends the selected lines, and drops the oldest beyond `count`.
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
            return Err(output_lost("the agent sent malformed events"));
        }
        while let Some(event) = events.pop() {
            match event {
                OutputEvent::Text(text) => {
                    for line in lines.push(&text) {
                        sink.line(&line).await;
                        keep_last(last, [line], EXIT_LINES, |_| true);
                    }
                }
                OutputEvent::Exit(exit) => {
                    if let Some(rest) = lines.take_rest() {
                        sink.line(&rest).await;
                        keep_last(last, [rest], EXIT_LINES, |_| true);
                    }
                    return Ok(Some(exit));
                }
                OutputEvent::Failed(why) => return Err(output_lost(&why)),
            }
        }
    }
    Ok(None)
}

fn is_restart(error: &AgentError) -> bool {
    match error {
        AgentError::Unreachable { .. } | AgentError::ConnectionLost { .. } => true,
        AgentError::Answered { body, .. } => body.code == ErrorCode::Unavailable,
        _ => false,
    }
}

fn output_lost(why: &str) -> Error {
    Error::new(ErrorCode::GuestUnavailable, format!("the output of the command was lost: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_matching_lines_are_kept() {
        let mut last = VecDeque::new();
        for batch in [["error 1", "noise"], ["error 2", "noise"], ["noise", "noise"]] {
            let lines = batch.map(str::to_owned);
            keep_last(&mut last, lines, 2, |line| line.contains("error"));
        }
        assert_eq!(last, ["error 1", "error 2"]);
        keep_last(&mut last, Some("error 3".to_owned()), 2, |_| true);
        assert_eq!(last, ["error 2", "error 3"]);
    }

    #[test]
    fn processes_left_by_a_build_step_are_found_after_it() {
        let is_left = |tag: &str, exit_code: Option<i32>, lingering: bool| {
            let state = if exit_code.is_some() { "exited" } else { "running" };
            let process = serde_json::json!({"id": 1, "pid": 7, "tag": tag, "command": "x", "state": state,
                "exit_code": exit_code, "lingering": lingering, "duration_ms": 1, "stdout_start": 0, "stdout_end": 0,
                "stderr_start": 0, "stderr_end": 0, "stdin_offset": 0});
            is_left_by_step(&serde_json::from_value(process).unwrap(), "build")
        };
        assert!(is_left("build", None, false), "a step under way");
        assert!(is_left("build", Some(0), true), "a step that ended, with something that it started");
        assert!(!is_left("build", Some(0), false));
        assert!(!is_left("web", None, false), "no build's");
    }
}
