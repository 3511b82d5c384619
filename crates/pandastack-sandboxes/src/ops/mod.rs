//! Operations on sandboxes, apart from HTTP: each moves a row and its machine together.
//!
//! Must hold: a row exists before its host is asked for the machine, and a machine is gone before
//! its row is. So a machine on a host without a row is garbage and may be deleted, even after a
//! crash at any point.

pub mod create;
pub mod delete;
pub mod exec;
pub mod fork;
pub mod lifecycle;
pub mod listening;
pub mod network;
pub mod rollback;
pub mod snapshot;
pub mod template;

use std::time::Duration;

use pandastack_agent_client::{AgentClient, AgentError, CallOptions};
use pandastack_store::clock::now;
use pandastack_store::{Change, SandboxRecord};
use pandastack_types::agent_api::{AgentSandbox, endpoints};
use pandastack_types::api::SandboxMetrics;
use pandastack_types::{Error, ErrorCode, Owner, Result, SandboxId, SandboxState, WorkspaceId, chain};

use crate::Sandboxes;
use crate::location::Location;

/// Longest time for a host to create sandboxes: the hold for a bake, and the creation.
pub const MAKE_WAIT: Duration = Duration::from_secs(90);
/// Longest time for a host to stop, wake or remove a sandbox.
pub const MOVE_WAIT: Duration = Duration::from_secs(60);
/// Longest time for a host to take a snapshot; published clients wait as long.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(180);
/// Longest time to look up a sandbox.
const READ_WAIT: Duration = Duration::from_secs(5);

/// Longest time for a host to measure a sandbox; it gives a busy guest five seconds of that.
const METRICS_WAIT: Duration = Duration::from_secs(15);

/// Options of a call on a sandbox: it carries the intended incarnation.
pub fn options_for(record: &SandboxRecord, wait: Duration) -> CallOptions {
    CallOptions::on_sandbox(record.incarnation, wait)
}

/// Removes a machine. Succeeds if it does not exist.
async fn remove_machine(client: &AgentClient, record: &SandboxRecord) -> Result<(), AgentError> {
    let call = endpoints::DeleteSandbox::new(record.id.clone());
    match client.call(call, options_for(record, MOVE_WAIT), ()).await {
        Err(error) if !error.is_absent() => Err(error),
        _ => Ok(()),
    }
}

/// The sandbox as its host sees it now.
pub async fn describe(client: &AgentClient, record: &SandboxRecord) -> Result<AgentSandbox, AgentError> {
    client.call(endpoints::ReadSandbox::new(record.id.clone()), options_for(record, READ_WAIT), ()).await
}

/// Refuses calls on a sandbox that has no machine.
pub fn check_live(record: &SandboxRecord) -> Result<()> {
    let id = &record.id;
    match record.state {
        SandboxState::Running | SandboxState::Paused | SandboxState::Hibernated => Ok(()),
        SandboxState::Creating => {
            Err(Error::conflict(format!("sandbox `{id}` is still being created; try again in a moment")))
        }
        SandboxState::Stopping | SandboxState::Deleted => {
            Err(Error::conflict(format!("sandbox `{id}` is being deleted")))
        }
        SandboxState::Failed => {
            let why = record.spec.failure.as_deref().unwrap_or("its machine was lost");
            let message = format!("sandbox `{id}` failed: {why}; delete it and create another");
            Err(Error::new(ErrorCode::SandboxFailed, message))
        }
    }
}

/// Refuses access to a machine with a database's data: root there is superuser of the server.
/// Machines of template builds are closed, too: they run for their build only.
fn check_unsealed(record: &SandboxRecord) -> Result<()> {
    if let Some(Owner::Build(build)) = &record.owner {
        return Err(Error::conflict(format!(
            "sandbox `{}` runs template build `{build}`; create a sandbox of your own instead",
            record.id
        )));
    }
    match record.owner.as_ref().and_then(Owner::sealed_for) {
        None => Ok(()),
        Some(database) => Err(Error::conflict(format!(
            "sandbox `{}` runs database `{database}`; use the database instead: `pandastack db get \
             {database}`",
            record.id
        ))),
    }
}

/// Location of a live sandbox of the workspace, and a client of its host. Most calls do not query
/// the store.
pub async fn locate(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    id: &SandboxId,
) -> Result<(Location, AgentClient)> {
    let location = match sandboxes.locations.find(workspace, id) {
        Ok(location) => location,
        Err(reading) => {
            let SandboxRecord { workspace, host, incarnation, state, .. } =
                live_record(sandboxes, workspace, id).await?;
            let location =
                Location { workspace, host, incarnation, asleep: state == SandboxState::Hibernated };
            sandboxes.locations.remember(reading, id, &location);
            location
        }
    };
    let client = sandboxes.hosts.client(&location.host)?;
    Ok((location, client))
}

/// Records that a call woke a sandbox, before the client gets the call's response. The host reports
/// it too, but a client that reads the state at once could be faster.
pub async fn note_wake(sandboxes: &Sandboxes, location: &Location, id: &SandboxId, client: &AgentClient) {
    if !location.asleep {
        return;
    }
    let noted = async {
        let record = sandboxes.store.sandbox(None, id).await?;
        if record.state == SandboxState::Hibernated {
            let seen = describe(client, &record).await?;
            if seen.state != SandboxState::Hibernated {
                lifecycle::settle(sandboxes, &record, seen, Change::at(now())).await?;
            }
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = noted.await {
        tracing::debug!(sandbox = %id, error = %chain(&error), "waiting for the host to report the wake-up");
    }
}

/// A sandbox of the workspace, in any state, that users may operate on.
pub async fn unsealed(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    id: &SandboxId,
) -> Result<SandboxRecord> {
    let record = sandboxes.store.sandbox(Some(workspace), id).await?;
    check_unsealed(&record)?;
    Ok(record)
}

async fn live_record(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    id: &SandboxId,
) -> Result<SandboxRecord> {
    let record = unsealed(sandboxes, workspace, id).await?;
    check_live(&record)?;
    Ok(record)
}

/// A live sandbox of the workspace and a client of its host.
pub async fn live(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    id: &SandboxId,
) -> Result<(SandboxRecord, AgentClient)> {
    let record = live_record(sandboxes, workspace, id).await?;
    let client = sandboxes.hosts.client(&record.host)?;
    Ok((record, client))
}

/// Current resource usage of a machine, as its host measures it. Never wakes a sleeping sandbox.
pub async fn metrics(
    sandboxes: &Sandboxes,
    workspace: &WorkspaceId,
    id: &SandboxId,
) -> Result<SandboxMetrics> {
    let (record, client) = live(sandboxes, workspace, id).await?;
    let call = endpoints::ReadMetrics::new(id.clone());
    let seen = client.call(call, options_for(&record, METRICS_WAIT), ()).await?;
    Ok(SandboxMetrics { egress_denied: record.spec.egress_denied, ..seen })
}
