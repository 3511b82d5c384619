//! Calls to a machine of an app: made by the same operations as any sandbox, and told what to run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use pandastack_agent_client::{AgentClient, AgentError};
use pandastack_types::api::{
    CreateSandbox, CreateSnapshot, ExecRequest, ExecResult, Keep, OnTimeout, PatchLifecycle, Process,
    ProcessList, Signal, SignalProcess, SnapshotKind, StartProcess,
};
use pandastack_types::{Error, ErrorCode, Result, SandboxId, SnapshotId};
use tokio::time::Instant;

use super::log::Log;
use super::output::{Events, Exit, Lines, OutputEvent};
use super::owner_of;
use super::record::AppRecord;
use crate::app::App;
use crate::sandboxes::ops::lifecycle::Move;
use crate::sandboxes::ops::listening::Watch;
use crate::sandboxes::ops::{self, NO_BODY, call_on};
use crate::store::{SandboxRecord, SnapshotRecord};

/// How long a short call may take; it may have to wake the machine.
const CALL_WAIT: Duration = Duration::from_secs(60);
/// How long an agent that does not answer is waited for.
const AGENT_WAIT: Duration = Duration::from_secs(60);
/// Between two tries to reach it.
const AGENT_RETRY: Duration = Duration::from_millis(500);
/// Lifetime of a machine that builds. It ends earlier in all cases but a lost server.
const BUILD_MACHINE_SECONDS: u64 = 4 * 3600;
/// How long the last lines of a process that still runs are read.
const LAST_LINES_WAIT: Duration = Duration::from_secs(2);
/// Lines that are remembered of a command which ended: programs say why they fail shortly before their end.
const EXIT_LINES: usize = 8;
/// Label of an app's snapshots, with their owner.
pub(super) const OWNER_LABEL: &str = "owner";
/// Tag of the processes of a build.
pub(super) const BUILD_TAG: &str = "pandastack-build";

/// A machine of an app.
pub(super) struct Machine {
    app: Arc<App>,
    pub(super) record: SandboxRecord,
    client: AgentClient,
}

/// What a machine is for.
pub(super) enum Purpose {
    /// Building: it ends by itself if everything else forgets it.
    Build,
    /// Serving.
    Serve {
        /// With these variables.
        env: BTreeMap<String, String>,
        /// Asleep after so many idle seconds.
        idle_seconds: u64,
    },
}

impl Machine {
    /// Makes one, from a snapshot if there is one.
    pub(super) async fn create(
        app: &Arc<App>,
        of: &AppRecord,
        from: Option<&SnapshotId>,
        purpose: Purpose,
    ) -> Result<Self> {
        let template = from.is_none().then(|| of.spec.template.clone());
        let mut request =
            CreateSandbox { template, from_snapshot: from.cloned(), ..CreateSandbox::default() };
        // A snapshot has the size of the machine it shows.
        if from.is_none() {
            (request.cpu, request.memory_mb) = (of.spec.cpu, of.spec.memory_mb);
        }
        match purpose {
            Purpose::Build => {
                request.ttl_seconds = Some(BUILD_MACHINE_SECONDS);
                request.on_timeout = Some(OnTimeout::Kill);
            }
            Purpose::Serve { env, idle_seconds } => {
                request.env = Some(env);
                request.persistent = Some(true);
                request.idle_timeout_seconds = Some(idle_seconds);
            }
        }
        let (workspace, owner) = (of.workspace.clone(), owner_of(&of.id));
        let record = ops::create::create_patiently(&app.sandboxes, workspace, request, owner).await?;
        let client = app.hosts.client(&record.host)?;
        Ok(Self { app: Arc::clone(app), record, client })
    }

    /// One that exists.
    pub(super) async fn open(app: &Arc<App>, of: &AppRecord, id: &SandboxId) -> Result<Self> {
        let (record, client) = ops::live(app, &of.workspace, id).await?;
        Ok(Self { app: Arc::clone(app), record, client })
    }

    pub(super) fn id(&self) -> &SandboxId {
        &self.record.id
    }

    fn path(&self, tail: &str) -> String {
        format!("/sandboxes/{}/{tail}", self.record.id)
    }

    /// Runs a short command and answers what it printed.
    pub(super) async fn exec(&self, request: &ExecRequest) -> Result<ExecResult> {
        let path = self.path("exec");
        Ok(self.client.call(call_on(&self.record, Method::POST, &path, CALL_WAIT), Some(request)).await?)
    }

    /// Starts a process and leaves it to itself.
    pub(super) async fn start(&self, request: &StartProcess) -> Result<Process> {
        let path = self.path("processes");
        Ok(self.client.call(call_on(&self.record, Method::POST, &path, CALL_WAIT), Some(request)).await?)
    }

    /// All processes.
    pub(super) async fn processes(&self) -> Result<Vec<Process>> {
        let path = self.path("processes");
        let call = call_on(&self.record, Method::GET, &path, CALL_WAIT);
        Ok(self.client.call::<ProcessList>(call, NO_BODY).await?.processes)
    }

    /// Ends a process and everything it started.
    pub(super) async fn kill(&self, process: u64) -> Result<()> {
        let path = self.path(&format!("processes/{process}/signal"));
        let body = SignalProcess { signal: Signal::KILL };
        let call = call_on(&self.record, Method::POST, &path, CALL_WAIT);
        Ok(self.client.call::<serde::de::IgnoredAny>(call, Some(&body)).await.map(|_| ())?)
    }

    /// Ends what builds left running in it: steps that were cut off, and what others started and did not wait for.
    pub(super) async fn end_builds(&self) -> Result<()> {
        for process in self.processes().await?.iter().filter(|process| is_left_by_build(process)) {
            match self.kill(process.id).await {
                // It ended by itself since it was listed, long enough ago to be forgotten.
                Err(error) if error.code == ErrorCode::NotFound => {}
                ended => ended?,
            }
        }
        Ok(())
    }

    /// Looks at what listens in it.
    pub(super) fn watch(&self, deadline: Instant) -> Watch<'_> {
        Watch::new(&self.record, &self.client, deadline)
    }

    /// Writes a file; the content streams.
    pub(super) async fn write(&self, file: &str, content: Body) -> Result<()> {
        let uri = format!("/agent/v1{}?path={file}", self.path("fs"));
        let request = Request::put(uri).header(header::CONTENT_TYPE, "application/octet-stream");
        let request = request.body(content).map_err(Error::internal)?;
        self.client.send(request, Some(self.record.incarnation)).await?;
        Ok(())
    }

    /// Sets after how many idle seconds it sleeps.
    pub(super) async fn set_idle(&self, seconds: u64) -> Result<()> {
        let patch = PatchLifecycle { idle_timeout_seconds: Some(seconds), ..PatchLifecycle::default() };
        let record = self.app.store.sandbox(None, &self.record.id).await?;
        ops::lifecycle::patch(&self.app.sandboxes, record, patch).await.map(|_| ())
    }

    /// Until when a lease keeps it awake, as its host says.
    pub(super) async fn awake_until(&self) -> Result<Option<Timestamp>> {
        Ok(ops::describe(&self.client, &self.record).await?.awake_until)
    }

    /// Wakes it, if it sleeps.
    pub(super) async fn wake(&self) -> Result<()> {
        let record = self.app.store.sandbox(None, &self.record.id).await?;
        ops::lifecycle::go(&self.app.sandboxes, record, self.client.clone(), Move::Wake, false)
            .await
            .map(drop)
    }

    /// Puts it to sleep once the requests under way to it ended.
    pub(super) async fn sleep(&self) -> Result<()> {
        let record = self.app.store.sandbox(None, &self.record.id).await?;
        let asleep = Move::Hibernate(Keep::default());
        ops::lifecycle::go(&self.app.sandboxes, record, self.client.clone(), asleep, false).await.map(drop)
    }

    /// Keeps it as it is now, memory and all, but for what builds left running: that has their variables, which those who serve
    /// may not see.
    pub(super) async fn snapshot_built(&self, name: &str) -> Result<SnapshotRecord> {
        self.end_builds().await?;
        let owner = self.record.owner.as_ref().map(ToString::to_string).unwrap_or_default();
        let request = CreateSnapshot {
            name: Some(name.to_owned()),
            metadata: Some([(OWNER_LABEL.to_owned(), owner)].into()),
            ..CreateSnapshot::default()
        };
        let (record, client) = (self.record.clone(), self.client.clone());
        ops::snapshot::take(&self.app.sandboxes, record, client, request, SnapshotKind::Service).await
    }

    /// Runs a command whose output goes to the log, until it ends. An agent that is restarted meanwhile loses nothing.
    pub(super) async fn run(&self, request: &StartProcess, log: &Log) -> Result<Exit> {
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
            if let Some(exit) = follow(body.take(), &mut events, &mut lines, &mut last, log).await? {
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
    pub(super) async fn last_lines(
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
    pub(super) async fn output(&self, process: u64) -> Result<hyper::body::Incoming> {
        Ok(self.reattach(&process.to_string(), None).await?)
    }

    async fn reattach(
        &self,
        process: &str,
        last_id: Option<&str>,
    ) -> Result<hyper::body::Incoming, AgentError> {
        let uri = format!("/agent/v1{}", self.path(&format!("processes/{process}/output")));
        let mut request = Request::get(uri);
        if let Some(id) = last_id {
            request = request.header("last-event-id", id);
        }
        let nonsense = |error: http::Error| AgentError::BadResponse {
            host: self.record.host.clone(),
            source: error.into(),
        };
        let request = request.body(Body::empty()).map_err(nonsense)?;
        Ok(self.client.send(request, Some(self.record.incarnation)).await?.into_body())
    }
}

/// Whether something of a build's step runs, even if the step itself ended.
fn is_left_by_build(process: &Process) -> bool {
    process.tag.as_deref() == Some(BUILD_TAG) && (process.exit_code.is_none() || process.lingering)
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

/// Reads one stream to the log. `None` when it broke off.
async fn follow(
    body: Option<hyper::body::Incoming>,
    events: &mut Events,
    lines: &mut Lines,
    last: &mut VecDeque<String>,
    log: &Log,
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
                        log.line(&line).await;
                        keep_last(last, [line], EXIT_LINES, |_| true);
                    }
                }
                OutputEvent::Exit(exit) => {
                    if let Some(rest) = lines.rest() {
                        log.line(&rest).await;
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
        AgentError::Unreachable { .. } | AgentError::ConnectionLost { .. } => true,
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
    fn what_a_build_left_running_is_found_also_after_its_step() {
        let is_left = |tag: &str, exit_code: Option<i32>, lingering: bool| {
            let state = if exit_code.is_some() { "exited" } else { "running" };
            let process = serde_json::json!({"id": 1, "pid": 7, "tag": tag, "command": "x", "state": state,
                "exit_code": exit_code, "lingering": lingering, "duration_ms": 1, "stdout_start": 0, "stdout_end": 0,
                "stderr_start": 0, "stderr_end": 0, "stdin_offset": 0});
            is_left_by_build(&serde_json::from_value(process).unwrap())
        };
        assert!(is_left(BUILD_TAG, None, false), "a step under way");
        assert!(is_left(BUILD_TAG, Some(0), true), "a step that ended, with something that it started");
        assert!(!is_left(BUILD_TAG, Some(0), false));
        assert!(!is_left("web", None, false), "no build's");
    }

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
