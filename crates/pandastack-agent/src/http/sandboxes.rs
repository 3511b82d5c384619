//! Routes that create, change and delete sandboxes and snapshots.

use pandastack_types::agent_api::endpoints::{
    CreateSandbox, DeleteSandbox, DeleteSnapshot, ForkSandbox, HibernateSandbox, KeepAwake, PatchSandbox,
    PauseSandbox, ReadHost, ReadSandbox, ResumeSandbox, RollBack, SetNetwork, TakeSnapshot, WakeSandbox,
};
use pandastack_types::agent_api::{AgentForked, AgentSandbox, AgentSnapshotDone, HostReport};
use pandastack_types::limits;

use super::endpoint::{HostCall, SandboxCall};
use crate::error::{AgentError, Result};
use crate::sandbox::{self, Request};

pub(super) async fn host_report(call: HostCall<ReadHost>) -> Result<HostReport> {
    Ok(crate::report::report(&call.host))
}

pub(super) async fn create(call: HostCall<CreateSandbox>) -> Result<AgentSandbox> {
    sandbox::create(&call.host, call.body).await
}

pub(super) async fn read(call: SandboxCall<ReadSandbox>) -> Result<AgentSandbox> {
    Ok(call.sandbox.view())
}

/// Deletes a sandbox. Deleting an absent one succeeds, for any incarnation.
pub(super) async fn delete(call: HostCall<DeleteSandbox>) -> Result<()> {
    let Ok(sandbox) = call.host.sandbox(&call.endpoint.sandbox) else { return Ok(()) };
    match sandbox.delete().await {
        Ok(()) | Err(AgentError::NoSandbox(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

pub(super) async fn patch(call: SandboxCall<PatchSandbox>) -> Result<AgentSandbox> {
    call.sandbox.set_idle(call.body.idle_timeout_seconds).await
}

pub(super) async fn set_network(call: SandboxCall<SetNetwork>) -> Result<AgentSandbox> {
    call.sandbox.set_network(call.body).await
}

pub(super) async fn pause(call: SandboxCall<PauseSandbox>) -> Result<AgentSandbox> {
    call.sandbox.move_to(Request::Pause).await
}

pub(super) async fn resume(call: SandboxCall<ResumeSandbox>) -> Result<AgentSandbox> {
    call.sandbox.move_to(Request::Resume).await
}

pub(super) async fn hibernate(call: SandboxCall<HibernateSandbox>) -> Result<AgentSandbox> {
    call.sandbox.hibernate(call.body.keep).await
}

pub(super) async fn keep_awake(call: SandboxCall<KeepAwake>) -> Result<AgentSandbox> {
    call.sandbox.keep_awake(call.body.until).await
}

pub(super) async fn roll_back(call: SandboxCall<RollBack>) -> Result<AgentSandbox> {
    call.sandbox.rollback(call.body.snapshot_id).await
}

pub(super) async fn wake(call: SandboxCall<WakeSandbox>) -> Result<AgentSandbox> {
    call.sandbox.move_to(Request::Wake).await
}

pub(super) async fn fork(call: SandboxCall<ForkSandbox>) -> Result<AgentForked> {
    let count = call.body.children.len();
    if count == 0 || count > limits::FORK_TREE_COUNT_MAX as usize {
        return Err(AgentError::BadRequest(format!(
            "a fork creates 1 to {} children, not {count}",
            limits::FORK_TREE_COUNT_MAX
        )));
    }
    call.sandbox.fork(call.body.children).await
}

pub(super) async fn snapshot(call: SandboxCall<TakeSnapshot>) -> Result<AgentSnapshotDone> {
    call.sandbox.snapshot(call.body.snapshot_id).await
}

pub(super) async fn delete_snapshot(call: HostCall<DeleteSnapshot>) -> Result<()> {
    call.host.remove_snapshot(&call.endpoint.snapshot).await;
    call.host.changed.notify_one();
    Ok(())
}
