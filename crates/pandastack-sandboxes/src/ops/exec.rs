//! Runs a command and waits for it: in an existing sandbox, or in a temporary one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Response;
use hyper::body::Incoming;
use pandastack_agent_client::{AgentClient, AgentError, CallOptions, StreamOptions};
use pandastack_store::SandboxRecord;
use pandastack_types::agent_api::{ExecQuery, endpoints};
use pandastack_types::api::{
    CreateSandbox, ExecRequest, ExecResult, Process, ProcessState, RunRequest, Signal, SignalProcess,
};
use pandastack_types::limits::EXEC_TIMEOUT_SECONDS_DEFAULT;
use pandastack_types::{Error, ErrorCode, Result, SandboxId, WorkspaceId, chain};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::Sandboxes;
use crate::ops;

/// Time beyond the command's own, for its host to answer and for its sandbox to live.
const GRACE: Duration = Duration::from_secs(30);

/// Runs a command in a sandbox of a workspace, which is woken for it. `tag` names its process, so
/// that [`kill`] finds it. Of long output the end is answered.
pub async fn exec(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    id: &SandboxId,
    request: &ExecRequest,
    tag: &str,
    last_bytes: usize,
) -> Result<ExecResult> {
    let (place, client) = ops::locate(sandboxes, workspace, id).await?;
    let query = ExecQuery { tag: Some(tag.to_owned()), last_bytes: Some(last_bytes) };
    let call = endpoints::Exec::new(id.clone(), query);
    let options = CallOptions::on_sandbox(place.incarnation, wait_for(request));
    let result = client.call(call, options, request).await?;
    ops::note_wake(sandboxes, &place, id, &client).await;
    Ok(result)
}

/// Ends the processes of a sandbox with that tag, and everything they started.
pub async fn kill(sandboxes: &Sandboxes, workspace: &WorkspaceId, id: &SandboxId, tag: &str) -> Result<()> {
    let (place, client) = ops::locate(sandboxes, workspace, id).await?;
    let options = CallOptions::on_sandbox(place.incarnation, GRACE);
    let list = client.call(endpoints::ListProcesses::new(id.clone()), options, ()).await?;
    let named = |process: &&Process| {
        let runs = process.state == ProcessState::Running || process.lingering;
        runs && process.tag.as_deref() == Some(tag)
    };
    for process in list.processes.iter().filter(named) {
        let call = endpoints::SignalProcess::new(id.clone(), process.id);
        client.call(call, options, &SignalProcess { signal: Signal::KILL }).await?;
    }
    Ok(())
}

/// Runs a command in a sandbox of its own and answers the end of its output. Its sandbox is deleted even
/// if the caller is dropped; `gone` ends it early.
pub async fn run(
    sandboxes: &Arc<Sandboxes>,
    workspace: WorkspaceId,
    request: RunRequest,
    last_bytes: usize,
    gone: CancellationToken,
) -> Result<(SandboxId, ExecResult)> {
    let query = ExecQuery { last_bytes: Some(last_bytes), ..ExecQuery::default() };
    let work = |client: AgentClient, record: SandboxRecord, exec: ExecRequest| async move {
        let call = endpoints::Exec::new(record.id.clone(), query);
        Ok::<_, Error>(client.call(call, ops::options_for(&record, wait_for(&exec)), &exec).await?)
    };
    let (result, ran) = in_own(sandboxes, workspace, request, gone, work).await?;
    Ok((ran.sandbox_id, result))
}

/// The same, with all output, which is streamed and not buffered here.
pub async fn run_streamed(
    sandboxes: &Arc<Sandboxes>,
    workspace: WorkspaceId,
    request: RunRequest,
    gone: CancellationToken,
) -> Result<RunStream> {
    let work = |client: AgentClient, record: SandboxRecord, exec: ExecRequest| async move {
        let call = endpoints::Exec::new(record.id.clone(), ExecQuery::default());
        let (wait, options) = (wait_for(&exec), StreamOptions::on_sandbox(record.incarnation));
        // The response starts when the command has ended: until then the host holds its output.
        let head = tokio::time::timeout(wait, client.stream(call, options, &exec)).await;
        Ok::<_, Error>(head.map_err(|_| AgentError::Timeout { host: record.host.clone(), wait })??)
    };
    let (response, ran) = in_own(sandboxes, workspace, request, gone, work).await?;
    Ok(RunStream { ran, response })
}

/// The response to a run: an [`ExecResult`] that is still to be read, and the other fields of a
/// [`RunResult`].
///
/// [`RunResult`]: pandastack_types::api::RunResult
pub struct RunStream {
    /// The rest of the result.
    pub ran: RunInfo,
    /// The host's response.
    pub response: Response<Incoming>,
}

/// Data of a run besides its result, as in a `RunResult`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunInfo {
    sandbox_id: SandboxId,
    create_ms: u64,
    total_ms: u64,
    engine: String,
    isolation: String,
}

async fn in_own<T, F>(
    sandboxes: &Arc<Sandboxes>,
    workspace: WorkspaceId,
    request: RunRequest,
    gone: CancellationToken,
    work: impl FnOnce(AgentClient, SandboxRecord, ExecRequest) -> F + Send + 'static,
) -> Result<(T, RunInfo)>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let began = Instant::now();
    let create = CreateSandbox {
        template: request.template.clone(),
        // Should this process die, the reaper of the next one deletes the sandbox.
        ttl_seconds: Some(seconds(&request.exec) + 2 * GRACE.as_secs()),
        ..CreateSandbox::default()
    };
    let own = Arc::clone(sandboxes);
    sandboxes
        .owned(async move {
            let record = ops::create::create(&own, workspace, create, None).await?;
            let create_ms = milliseconds(began);
            let ran = match own.hosts.client(&record.host) {
                Ok(client) => tokio::select! {
                    ran = work(client, record.clone(), request.exec) => ran,
                    () = gone.cancelled() => Err(Error::new(ErrorCode::Unavailable, "the client disconnected")),
                },
                Err(error) => Err(error.into()),
            };
            let (sandbox_id, spec) = (record.id.clone(), record.spec.clone());
            if let Err(error) = ops::delete::delete(&own, record, None).await {
                tracing::warn!(
                    sandbox = %sandbox_id, error = %chain(&error),
                    "cannot delete the sandbox of a run; the reaper does"
                );
            }
            let (engine, isolation) = (spec.engine, spec.isolation);
            let total_ms = milliseconds(began);
            Ok((ran?, RunInfo { sandbox_id, create_ms, total_ms, engine, isolation }))
        })
        .await
}

fn wait_for(request: &ExecRequest) -> Duration {
    Duration::from_secs(seconds(request)) + GRACE
}

fn seconds(request: &ExecRequest) -> u64 {
    request.timeout_seconds.unwrap_or(EXEC_TIMEOUT_SECONDS_DEFAULT)
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
