//! Looks up processes by id: one, all, or the exit of one.

use pandastack_guest_proto::client::{ClientError, GuestClient};
use pandastack_guest_proto::message::{ErrorCode, ProcessId, ProcessInfo};
use pandastack_types::api::Process;
use tokio::time::{Duration, Instant};

use super::view;
use crate::error::{AgentError, Result};
use crate::sandbox::handle::SandboxHandle;
use crate::warm::WARM_TAG;

/// The current state of a process.
pub(crate) async fn process_info(guest: &GuestClient, id: ProcessId) -> Result<ProcessInfo> {
    let found = guest.processes().await?.into_iter().find(|info| info.process == id);
    found.ok_or(AgentError::NoProcess(id.0))
}

/// All processes.
pub(crate) async fn list(guest: &GuestClient) -> Result<Vec<Process>> {
    let theirs = |info: &ProcessInfo| info.tag.as_deref() != Some(WARM_TAG);
    Ok(guest.processes().await?.into_iter().filter(theirs).map(view::process).collect())
}

/// Returns the process for the API.
pub(crate) async fn show(guest: &GuestClient, id: ProcessId) -> Result<Process> {
    Ok(view::process(process_info(guest, id).await?))
}

/// Waits for a process's end, at most that long; then returns its state. A sleep in between only adds to
/// the time.
pub(crate) async fn wait(handle: &SandboxHandle, id: ProcessId, at_most: Duration) -> Result<Process> {
    let give_up = Instant::now() + at_most;
    let mut lease = handle.lease().await?;
    loop {
        let info = process_info(&lease.guest, id).await?;
        if info.exit.is_some() {
            return Ok(view::process(info));
        }
        match tokio::time::timeout_at(give_up, lease.guest.wait_exit(&info)).await {
            Err(_) => return Ok(view::process(info)),
            Ok(Ok(_)) => {}
            Ok(Err(ClientError::Disconnected { .. })) => {
                lease = match tokio::time::timeout_at(give_up, handle.rejoin()).await {
                    Ok(joined) => joined?,
                    Err(_) => return Ok(view::process(info)),
                };
            }
            Ok(Err(error)) => return Err(named(error, id)),
        }
    }
}

/// Converts a refusal because of an unknown process to its own error.
pub(crate) fn named(error: ClientError, id: ProcessId) -> AgentError {
    match error.refusal() {
        Some(ErrorCode::NotFound) => AgentError::NoProcess(id.0),
        Some(ErrorCode::Unsupported) => AgentError::Conflict(format!(
            "{error}; this sandbox was created by a version without this call, so create a new one"
        )),
        _ => error.into(),
    }
}
