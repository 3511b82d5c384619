//! Machines of suspended workspaces: they are hibernated, also when something wakes one.
//!
//! A machine is hibernated with its memory, so that it continues where it was. One that cannot be, on a
//! full disk for example, is paused: it uses no processor, and nothing of it is lost.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use pandastack_store::{SandboxRecord, Select};
use pandastack_types::agent_api::HostReport;
use pandastack_types::api::{Keep, WorkspaceState};
use pandastack_types::{Result, SandboxState, WorkspaceId, chain};

use crate::Sandboxes;
use crate::ops::lifecycle::{StateChange, change_state};

/// Machines of one workspace put to sleep at once.
const AT_ONCE: usize = 16;

/// Puts every machine of a workspace to sleep. A failure is retried with the next report of the host.
pub async fn stop_machines(sandboxes: &Arc<Sandboxes>, workspace: &WorkspaceId) -> Result<()> {
    let rows = sandboxes.store.sandboxes(&Select::WholeWorkspace(workspace.clone())).await?;
    let running = rows.into_iter().filter(|row| row.state == SandboxState::Running);
    futures::stream::iter(running).for_each_concurrent(AT_ONCE, |row| stop(sandboxes, row)).await;
    Ok(())
}

/// Puts machines to sleep that a host reports as running although their workspace is suspended.
pub async fn stop_reported(sandboxes: &Arc<Sandboxes>, report: &HostReport) -> Result<()> {
    let closed = sandboxes.store.closed_workspaces().await?;
    let suspended: HashSet<_> = closed
        .into_iter()
        .filter(|record| record.state == WorkspaceState::Suspended)
        .map(|record| record.id)
        .collect();
    if suspended.is_empty() {
        return Ok(());
    }
    let running: HashSet<_> = report
        .sandboxes
        .iter()
        .filter(|seen| seen.state == SandboxState::Running)
        .map(|seen| seen.id.clone())
        .collect();
    let rows = sandboxes.store.sandboxes(&Select::Host(report.host.clone())).await?;
    for row in rows.into_iter().filter(|row| suspended.contains(&row.workspace) && running.contains(&row.id))
    {
        let own = Arc::clone(sandboxes);
        sandboxes.background.tasks.spawn(async move { stop(&own, row).await });
    }
    Ok(())
}

async fn stop(sandboxes: &Arc<Sandboxes>, row: SandboxRecord) {
    let id = row.id.clone();
    let Ok(client) = sandboxes.hosts.client(&row.host) else { return };
    let asleep =
        change_state(sandboxes, row.clone(), client.clone(), StateChange::Hibernate(Keep::Memory), false)
            .await;
    let Err(error) = asleep else { return };
    tracing::warn!(
        sandbox = %id, error = %chain(&error),
        "paused a machine of a suspended workspace instead of hibernating it"
    );
    if let Err(error) = change_state(sandboxes, row, client, StateChange::Pause, false).await {
        tracing::warn!(
            sandbox = %id, error = %chain(&error),
            "cannot stop a machine of a suspended workspace; retrying later"
        );
    }
}
