//! The sandbox of a context: its processes, through its agent.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use pandastack_agent_client::{CallOptions, RequestBody, RequestOf, ResponseOf, StreamOptions};
use pandastack_sandboxes::Sandboxes;
use pandastack_sandboxes::ops;
use pandastack_types::agent_api::{
    Endpoint, JsonResponse, OutputQuery, StartProcessQuery, StdinQuery, WaitProcessQuery, endpoints,
};
use pandastack_types::api::{Process, Signal, SignalProcess, StartProcess};
use pandastack_types::{Error, ErrorCode, Result, SandboxId, WorkspaceId};

/// How long a call may take; it may have to wake the sandbox.
const CALL_WAIT: Duration = Duration::from_secs(60);
/// How long a killed process may take to be gone.
const END_WAIT_SECONDS: u64 = 10;

/// A sandbox of a workspace. Where it is may change between two calls.
#[derive(Clone)]
pub(super) struct Machine {
    pub(super) sandboxes: Arc<Sandboxes>,
    pub(super) workspace: WorkspaceId,
    pub(super) id: SandboxId,
}

impl Machine {
    /// Its processes, those that ended a short while ago included.
    pub(super) async fn processes(&self) -> Result<Vec<Process>> {
        Ok(self.call(endpoints::ListProcesses::new(self.id.clone()), ()).await?.processes)
    }

    /// Starts one.
    pub(super) async fn start(&self, request: &StartProcess) -> Result<Process> {
        let call = endpoints::StartProcess::new(self.id.clone(), StartProcessQuery::default());
        self.call(call, request).await
    }

    /// Ends one with everything it started, and waits until it is gone. One that is gone already is fine.
    pub(super) async fn end(&self, process: u64) -> Result<()> {
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

    /// What one writes from these bytes of its standard output and error on, as its agent streams it.
    pub(super) async fn output(&self, process: u64, (out, err): (u64, u64)) -> Result<Incoming> {
        let query =
            OutputQuery { stdout_offset: Some(out), stderr_offset: Some(err), ..OutputQuery::default() };
        let call = endpoints::ProcessOutput::new(self.id.clone(), process, query);
        let (place, client) = ops::locate(&self.sandboxes, &self.workspace, &self.id).await?;
        let response = client.stream(call, StreamOptions::on_sandbox(place.incarnation), ()).await?;
        ops::note_wake(&self.sandboxes, &place, &self.id, &client).await;
        Ok(response.into_body())
    }

    /// Writes to its standard input.
    pub(super) async fn write(&self, process: u64, bytes: Vec<u8>) -> Result<()> {
        let call = endpoints::WriteStdin::new(self.id.clone(), process, StdinQuery::default());
        let written = tokio::time::timeout(CALL_WAIT, self.call(call, Body::from(bytes))).await;
        let late = |_| {
            let what = format!("the context did not accept the code within {} s", CALL_WAIT.as_secs());
            Error::new(ErrorCode::GuestUnavailable, what)
        };
        written.map_err(late)?.map(drop)
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
