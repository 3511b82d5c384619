//! Reconciles a host's volumes with the records.
//!
//! Rules: a volume in `creating` without an operation in progress is ready if its host has it, and
//! otherwise never existed; one in `deleting` is deleted until its host no longer has it; one that
//! is deleted with its sandbox goes when no sandbox has it. A volume that a host has and the record
//! does not is reported in the log and left alone.

use std::collections::HashSet;
use std::sync::Arc;

use pandastack_store::SandboxRecord;
use pandastack_store::volumes::{VolumeRecord, VolumeState};
use pandastack_types::agent_api::HostReport;
use pandastack_types::{Result, VolumeId, chain};

use super::ops;
use crate::Sandboxes;
use crate::in_flight::OperationKey;

/// Reconciles the rows of a host's volumes. Safe to repeat.
pub async fn take(sandboxes: &Arc<Sandboxes>, report: &HostReport) -> Result<()> {
    let rows = sandboxes.store.volumes_on(&report.host).await?;
    let seen: HashSet<&VolumeId> = report.volumes.iter().map(|volume| &volume.id).collect();
    let known: HashSet<&VolumeId> = rows.iter().map(|row| &row.id).collect();
    for orphan in seen.difference(&known) {
        tracing::debug!(host = %report.host, volume = %orphan, "a host has an unknown volume; keeping it");
    }
    let doubtful = |row: &&VolumeRecord| row.state != VolumeState::Ready || goes_with_sandbox(row);
    if !rows.iter().any(|row| doubtful(&row)) {
        return Ok(());
    }
    // Servers beside this one make volumes too.
    let marks = sandboxes.marks_of_all().await?;
    for row in rows.iter().filter(|row| !marks.contains(&OperationKey::Volume(row.id.clone()))) {
        settle(sandboxes, row, seen.contains(&row.id)).await?;
    }
    Ok(())
}

fn goes_with_sandbox(row: &VolumeRecord) -> bool {
    row.spec.delete_with_sandbox && !row.spec.protected
}

async fn settle(sandboxes: &Arc<Sandboxes>, row: &VolumeRecord, is_there: bool) -> Result<()> {
    match row.state {
        VolumeState::Creating if is_there => Ok(sandboxes.store.update_volume(&row.id, &row.spec).await?),
        VolumeState::Creating => Ok(sandboxes.store.remove_volume(&row.id).await?),
        VolumeState::Deleting => {
            let (own, row) = (Arc::clone(sandboxes), row.clone());
            sandboxes.background.tasks.spawn(async move {
                if let Err(error) = ops::finish_delete(&own, &row).await {
                    tracing::warn!(
                        volume = %row.id, error = %chain(&error),
                        "cannot delete; retrying at the next report"
                    );
                }
            });
            Ok(())
        }
        VolumeState::Ready if goes_with_sandbox(row) => delete_unheld(sandboxes, row).await,
        VolumeState::Ready => Ok(()),
    }
}

/// Deletes the volumes that belong to a deleted sandbox.
pub async fn on_sandbox_deleted(sandboxes: &Sandboxes, sandbox: &SandboxRecord) {
    if sandbox.spec.volumes.is_empty() {
        return;
    }
    let rows = match sandboxes.store.volumes(&sandbox.workspace).await {
        Ok(rows) => rows,
        Err(error) => {
            tracing::warn!(
                sandbox = %sandbox.id, error = %chain(&error),
                "cannot reconcile volumes; retrying when the host reports"
            );
            return;
        }
    };
    let had = |row: &VolumeRecord| sandbox.spec.volumes.iter().any(|volume| volume.id == row.id);
    for row in rows.iter().filter(|row| had(row) && goes_with_sandbox(row)) {
        if let Err(error) = delete_unheld(sandboxes, row).await {
            tracing::warn!(
                volume = %row.id, error = %chain(&error),
                "cannot delete a volume; retrying when its host reports"
            );
        }
    }
}

/// Deletes a volume unless a sandbox has it.
async fn delete_unheld(sandboxes: &Sandboxes, row: &VolumeRecord) -> Result<()> {
    match sandboxes.store.delete_volume(&row.id).await {
        Ok(()) => ops::finish_delete(sandboxes, row).await,
        Err(pandastack_store::StoreError::Held(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
