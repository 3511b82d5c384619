//! Workspaces as a whole: creating, suspending, resuming and deleting them.
//!
//! Must hold:
//! - The record of a workspace decides. Everything that could use it asks the record: keys, the
//!   edge's routes, services that open machines, and the queues of what falls due.
//! - A suspended workspace has no running machine within seconds, also one that woke in between:
//!   every report of a host is compared ([`pandastack_sandboxes::suspended`]).
//! - A deletion that began ends, also across restarts: [`run`] continues with it.

use std::sync::Arc;
use std::time::Duration;

use pandastack_sandboxes::volumes::ops::finish_delete;
use pandastack_sandboxes::{ops, suspended};
use pandastack_store::clock::now;
use pandastack_store::workspaces::{WorkspaceMove, WorkspaceRecord};
use pandastack_store::{Select, StoreError};
use pandastack_types::api::WorkspaceState;
use pandastack_types::{Error, Result, WorkspaceId, chain};

use crate::services::Services;

/// Interval at which unfinished deletions are retried.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// Adds a workspace.
pub(crate) async fn create(services: &Services, record: &WorkspaceRecord) -> Result<()> {
    services.sandboxes.admit_workspace()?;
    Ok(services.store.insert_workspace(record).await?)
}

/// Suspends a workspace. Returns once each of its machines was requested to sleep.
pub(crate) async fn suspend(
    services: &Arc<Services>,
    id: &WorkspaceId,
    reason: Option<String>,
) -> Result<WorkspaceRecord> {
    refuse_default(id, "suspended")?;
    let sandboxes = &services.sandboxes;
    let record = services.store.move_workspace(id, &WorkspaceMove::Suspend(reason), now()).await?;
    forget(services, id);
    let (own, workspace) = (Arc::clone(sandboxes), id.clone());
    sandboxes.owned(async move { suspended::stop_machines(&own, &workspace).await }).await?;
    Ok(record)
}

/// Resumes a workspace.
pub(crate) async fn resume(services: &Arc<Services>, id: &WorkspaceId) -> Result<WorkspaceRecord> {
    let record = services.store.move_workspace(id, &WorkspaceMove::Resume, now()).await?;
    forget(services, id);
    // Work that fell due during the suspension is due now.
    services.sandboxes.note_expiry_change();
    services.scheduler.wake();
    services.functions.wake_queue();
    services.apps.wake_deployer();
    Ok(record)
}

/// Deletes a workspace with everything in it, now or in the background.
pub(crate) async fn delete(services: &Arc<Services>, id: &WorkspaceId) -> Result<()> {
    refuse_default(id, "deleted")?;
    services.store.move_workspace(id, &WorkspaceMove::Delete, now()).await?;
    forget(services, id);
    let (own, workspace) = (Arc::clone(services), id.clone());
    let emptied = services.sandboxes.owned(async move { empty(&own, &workspace).await }).await;
    if let Err(error) = emptied {
        tracing::warn!(
            workspace = %id, error = %chain(&error),
            "cannot delete a workspace yet; retrying later"
        );
    }
    Ok(())
}

/// Resumes interrupted deletions, until shutdown.
pub(crate) async fn run(services: Arc<Services>) {
    let mut every = tokio::time::interval(RETRY_EVERY);
    while services.background.shutdown.run_until_cancelled(every.tick()).await.is_some() {
        let closed = match services.store.closed_workspaces().await {
            Ok(closed) => closed,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot delete workspaces yet; retrying later");
                continue;
            }
        };
        for record in closed.into_iter().filter(|record| record.state == WorkspaceState::Deleting) {
            if let Err(error) = empty(&services, &record.id).await {
                let (workspace, cause) = (&record.id, error.causes());
                tracing::warn!(%workspace, %error, cause, "cannot delete a workspace yet; retrying later");
            }
        }
    }
}

/// Operators' keys belong to `default`: without it the installation could not be managed.
fn refuse_default(id: &WorkspaceId, what: &str) -> Result<()> {
    match *id == WorkspaceId::default_workspace() {
        true => Err(Error::conflict(format!(
            "workspace `{id}` contains the operator keys and cannot be {what}; choose another workspace"
        ))),
        false => Ok(()),
    }
}

/// Drops cached data of a workspace: its keys, routes and app names.
fn forget(services: &Services, id: &WorkspaceId) {
    services.keys.revoke_workspace(id);
    services.sandboxes.forget_all();
    services.names.notify_all();
}

/// Deletes the contents of a workspace and then the workspace. Safe to repeat.
async fn empty(services: &Arc<Services>, id: &WorkspaceId) -> Result<()> {
    let (sandboxes, store) = (&services.sandboxes, &services.store);
    pandastack_scheduler::delete_all(&services.scheduler, id).await?;
    services.apps.delete_all(id).await?;
    services.functions.delete_all(id).await?;
    services.databases.delete_all(id).await?;
    pandastack_templates::delete_all(&services.templates, id).await?;
    for record in store.sandboxes(&Select::WholeWorkspace(id.clone())).await? {
        ops::delete::delete(sandboxes, record, Some("its workspace was deleted")).await?;
    }
    for snapshot in store.snapshots(id, None).await? {
        ops::snapshot::remove(sandboxes, &snapshot).await?;
    }
    for volume in store.volumes(id).await? {
        store.delete_volume(&volume.id).await?;
        finish_delete(sandboxes, &volume).await?;
    }
    let machines = store.sandboxes(&Select::WholeWorkspace(id.clone())).await?.len();
    let volumes = store.volumes(id).await?.len();
    if machines > 0 || volumes > 0 {
        tracing::info!(workspace = %id, machines, volumes, "a workspace will be deleted when its hosts respond");
        return Ok(());
    }
    match store.move_workspace(id, &WorkspaceMove::Deleted, now()).await {
        // Another request has already deleted it.
        Err(StoreError::NotFound { .. }) => Ok(()),
        moved => Ok(moved.map(drop)?),
    }
}
