//! A sandbox of a user, on which services act in the user's name.
//!
//! Unlike a [`Machine`], it is not opened: each call finds the sandbox's host, wakes the sandbox if
//! it sleeps, and records the wake. Machines that are sealed for a service are refused.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use pandastack_agent_client::{CallOptions, RequestBody, RequestOf, ResponseOf, StreamOptions};
use pandastack_store::SandboxRecord;
use pandastack_types::agent_api::{
    Endpoint, JsonResponse, OutputQuery, PathQuery, StartProcessQuery, StdinQuery, WaitProcessQuery,
    endpoints,
};
use pandastack_types::api::{
    ExecRequest, ExecResult, Keep, Process, SandboxMetrics, Signal, SignalProcess, StartProcess,
};
use pandastack_types::{ErrorCode, Result, SandboxId, WorkspaceId};

use crate::Sandboxes;
use crate::machine::Machine;
use crate::ops;
use crate::ops::lifecycle::StateChange;

/// Longest duration of a call, which may have to wake the sandbox.
const CALL_WAIT: Duration = Duration::from_secs(60);
/// Longest time for a killed process to be gone.
const END_WAIT_SECONDS: u64 = 10;

/// A sandbox of a workspace. Its location may change between two calls.
#[derive(Clone)]
pub struct UserSandbox {
    sandboxes: Arc<Sandboxes>,
    workspace: WorkspaceId,
    id: SandboxId,
}

impl UserSandbox {
    /// The sandbox of that id. Calls on it fail if the workspace has none.
    pub(crate) fn new(sandboxes: &Arc<Sandboxes>, workspace: &WorkspaceId, id: &SandboxId) -> Self {
        Self { sandboxes: Arc::clone(sandboxes), workspace: workspace.clone(), id: id.clone() }
    }

    /// The sandbox's id.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// The sandbox's machine as it is now, awake or asleep.
    pub async fn machine(&self) -> Result<Machine> {
        let (record, _) = ops::live(&self.sandboxes, &self.workspace, &self.id).await?;
        Machine::of(&self.sandboxes, record)
    }

    /// Current resource usage, as the host measures it. Never wakes the sandbox.
    pub async fn metrics(&self) -> Result<SandboxMetrics> {
        ops::metrics(&self.sandboxes, &self.workspace, &self.id).await
    }

    /// Wakes it, if it sleeps.
    pub async fn wake(&self) -> Result<SandboxRecord> {
        self.change_state(StateChange::Wake).await
    }

    /// Puts the sandbox to sleep once its requests in flight have ended.
    pub async fn sleep(&self) -> Result<SandboxRecord> {
        self.change_state(StateChange::Hibernate(Keep::default())).await
    }

    async fn change_state(&self, movement: StateChange) -> Result<SandboxRecord> {
        let (record, client) = ops::live(&self.sandboxes, &self.workspace, &self.id).await?;
        ops::lifecycle::change_state(&self.sandboxes, record, client, movement, false).await
    }

    /// Runs a command, waits for it and answers the end of its output. `tag` names its process, so that
    /// [`UserSandbox::kill_tagged`] finds it.
    pub async fn exec(&self, request: &ExecRequest, tag: &str, last_bytes: usize) -> Result<ExecResult> {
        ops::exec::exec(&self.sandboxes, &self.workspace, &self.id, request, tag, last_bytes).await
    }

    /// Ends the processes with that tag, and everything they started.
    pub async fn kill_tagged(&self, tag: &str) -> Result<()> {
        ops::exec::kill(&self.sandboxes, &self.workspace, &self.id, tag).await
    }

    /// Processes of the sandbox, including ones that ended recently.
    pub async fn processes(&self) -> Result<Vec<Process>> {
        Ok(self.call(endpoints::ListProcesses::new(self.id.clone()), ()).await?.processes)
    }

    /// Starts a process.
    pub async fn start(&self, request: &StartProcess) -> Result<Process> {
        let call = endpoints::StartProcess::new(self.id.clone(), StartProcessQuery::default());
        self.call(call, request).await
    }

    /// Kills a process with everything it started, and waits until it is gone. Succeeds if it has already
    /// ended.
    pub async fn end(&self, process: u64) -> Result<()> {
        let kill = SignalProcess { signal: Signal::KILL };
        let ended = async {
            self.call(endpoints::SignalProcess::new(self.id.clone(), process), &kill).await?;
            let query = WaitProcessQuery { timeout_seconds: Some(END_WAIT_SECONDS) };
            self.call(endpoints::WaitProcess::new(self.id.clone(), process, query), ()).await
        };
        match ended.await {
            Err(error) if !matches!(error.code, ErrorCode::NotFound | ErrorCode::Conflict) => Err(error),
            _ => Ok(()),
        }
    }

    /// Writes to the standard input of a process.
    pub async fn write_stdin(&self, process: u64, bytes: Vec<u8>) -> Result<()> {
        let call = endpoints::WriteStdin::new(self.id.clone(), process, StdinQuery::default());
        self.call(call, Body::from(bytes)).await.map(drop)
    }

    /// Output of a process from these offsets of standard output and error on, as its agent streams
    /// it.
    pub async fn output(&self, process: u64, (out, err): (u64, u64)) -> Result<Incoming> {
        let query =
            OutputQuery { stdout_offset: Some(out), stderr_offset: Some(err), ..OutputQuery::default() };
        let call = endpoints::ProcessOutput::new(self.id.clone(), process, query);
        let (place, client) = ops::locate(&self.sandboxes, &self.workspace, &self.id).await?;
        let response = client.stream(call, StreamOptions::on_sandbox(place.incarnation), ()).await?;
        ops::note_wake(&self.sandboxes, &place, &self.id, &client).await;
        Ok(response.into_body())
    }

    /// A directory as a tar archive that is made while it is read.
    pub async fn pack(&self, directory: &str) -> Result<Incoming> {
        let (place, client) = ops::locate(&self.sandboxes, &self.workspace, &self.id).await?;
        let call = endpoints::PackArchive::new(self.id.clone(), PathQuery { path: directory.to_owned() });
        Ok(client.stream(call, StreamOptions::on_sandbox(place.incarnation), ()).await?.into_body())
    }

    async fn call<E>(&self, call: E, body: RequestOf<'_, E>) -> Result<ResponseOf<E>>
    where
        E: Endpoint<Request: RequestBody, Response: JsonResponse>,
    {
        let (place, client) = ops::locate(&self.sandboxes, &self.workspace, &self.id).await?;
        let options = CallOptions::on_sandbox(place.incarnation, CALL_WAIT);
        let answer = client.call(call, options, body).await?;
        ops::note_wake(&self.sandboxes, &place, &self.id, &client).await;
        Ok(answer)
    }
}
