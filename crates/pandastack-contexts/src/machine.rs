//! The sandbox that contexts are in: its processes, through its agent.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Method, Request, header};
use hyper::body::Incoming;
use pandastack_agent_client::Call;
use pandastack_sandboxes::Sandboxes;
use pandastack_sandboxes::ops::{self, NO_BODY};
use pandastack_types::api::{Process, ProcessList, Signal, SignalProcess, StartProcess};
use pandastack_types::{Error, ErrorCode, Result, SandboxId, WorkspaceId};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

/// How long a call may take; it may have to wake the sandbox.
const CALL_WAIT: Duration = Duration::from_secs(60);
/// How long a killed process may take to be gone.
const END_WAIT_SECONDS: u32 = 10;

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
        let list: ProcessList = self.call(Method::GET, "processes", NO_BODY).await?;
        Ok(list.processes)
    }

    /// Starts one.
    pub(super) async fn start(&self, request: &StartProcess) -> Result<Process> {
        self.call(Method::POST, "processes", Some(request)).await
    }

    /// Ends one with everything it started, and waits until it is gone. One that is gone already is fine.
    pub(super) async fn end(&self, process: u64) -> Result<()> {
        let kill = SignalProcess { signal: Signal::KILL };
        let path = format!("processes/{process}");
        let ended = async {
            self.call::<IgnoredAny>(Method::POST, &format!("{path}/signal"), Some(&kill)).await?;
            let wait = format!("{path}/wait?timeout_seconds={END_WAIT_SECONDS}");
            self.call::<IgnoredAny>(Method::GET, &wait, NO_BODY).await
        };
        match ended.await {
            Err(error) if !matches!(error.code, ErrorCode::NotFound | ErrorCode::Conflict) => Err(error),
            _ => Ok(()),
        }
    }

    /// What one writes from these bytes of its standard output and error on, as its agent streams it.
    pub(super) async fn output(&self, process: u64, (out, err): (u64, u64)) -> Result<Incoming> {
        let tail = format!("processes/{process}/output?stdout_offset={out}&stderr_offset={err}");
        self.send(Method::GET, &tail, Body::empty()).await
    }

    /// Writes to its standard input.
    pub(super) async fn write(&self, process: u64, bytes: Vec<u8>) -> Result<()> {
        let tail = format!("processes/{process}/stdin");
        tokio::time::timeout(CALL_WAIT, self.send(Method::POST, &tail, Body::from(bytes)))
            .await
            .map_err(|_| {
                let what = format!("the context did not take its code within {} s", CALL_WAIT.as_secs());
                Error::new(ErrorCode::GuestUnavailable, what)
            })?
            .map(drop)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        tail: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T> {
        let (place, client) = ops::locate(&self.sandboxes, &self.workspace, &self.id).await?;
        let path = format!("/sandboxes/{}/{tail}", self.id);
        let call = Call { method, path: &path, incarnation: Some(place.incarnation), wait: CALL_WAIT };
        let answer = client.call(call, body).await?;
        ops::note_wake(&self.sandboxes, &place, &self.id, &client).await;
        Ok(answer)
    }

    async fn send(&self, method: Method, tail: &str, body: Body) -> Result<Incoming> {
        let (place, client) = ops::locate(&self.sandboxes, &self.workspace, &self.id).await?;
        let request =
            Request::builder().method(method).uri(format!("/agent/v1/sandboxes/{}/{tail}", self.id));
        let request = request.header(header::CONTENT_TYPE, "application/octet-stream").body(body);
        let answer = client.send(request.map_err(Error::internal)?, Some(place.incarnation)).await?;
        ops::note_wake(&self.sandboxes, &place, &self.id, &client).await;
        Ok(answer.into_body())
    }
}
