//! Runs a command and waits for it: in an existing sandbox, or in a temporary one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pandastack_agent_client::CallOptions;
use pandastack_store::SandboxRecord;
use pandastack_types::agent_api::{ExecQuery, endpoints};
use pandastack_types::api::{
    CreateSandbox, ExecRequest, ExecResult, Process, ProcessState, RunRequest, RunResult, Signal,
    SignalProcess,
};
use pandastack_types::limits::EXEC_TIMEOUT_SECONDS_DEFAULT;
use pandastack_types::{Error, ErrorCode, Result, SandboxId, WorkspaceId, chain};
use tokio_util::sync::CancellationToken;

use crate::Sandboxes;
use crate::ops;

/// Time beyond the command's own, for its host to answer and for its sandbox to live.
const GRACE: Duration = Duration::from_secs(30);

/// Runs a command in a sandbox of a workspace, which is woken for it. `tag` names its process, so
/// that [`kill`] finds it.
pub async fn exec(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    id: &SandboxId,
    request: &ExecRequest,
    tag: &str,
) -> Result<ExecResult> {
    let (place, client) = ops::locate(sandboxes, workspace, id).await?;
    let call = endpoints::Exec::new(id.clone(), ExecQuery { tag: Some(tag.to_owned()) });
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

/// Runs a command in a sandbox of its own. Its sandbox is deleted even if the caller is dropped;
/// `gone` ends it early.
pub async fn run(
    sandboxes: &Arc<Sandboxes>,
    workspace: WorkspaceId,
    request: RunRequest,
    gone: CancellationToken,
) -> Result<RunResult> {
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
            let ran = tokio::select! {
                ran = exec_in(&own, &record, &request.exec) => ran,
                () = gone.cancelled() => Err(Error::new(ErrorCode::Unavailable, "the client disconnected")),
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
            Ok(RunResult { result: ran?, sandbox_id, create_ms, total_ms, engine, isolation })
        })
        .await
}

/// Runs a command in a machine of any owner.
pub async fn exec_in(
    sandboxes: &Sandboxes,
    record: &SandboxRecord,
    request: &ExecRequest,
) -> Result<ExecResult> {
    let client = sandboxes.hosts.client(&record.host)?;
    let call = endpoints::Exec::new(record.id.clone(), ExecQuery::default());
    Ok(client.call(call, ops::options_for(record, wait_for(request)), request).await?)
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
