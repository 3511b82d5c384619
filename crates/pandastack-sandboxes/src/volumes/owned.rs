//! Volumes that belong to a service, such as `database:<id>`.
//!
//! They outlive the machine they came with, are attached for that service only, and are changed and
//! deleted through it. Lists of the workspace do not show them.

use std::sync::Arc;

use pandastack_store::SandboxRecord;
use pandastack_store::volumes::{VolumeRecord, VolumeSpecRecord};
use pandastack_types::{Error, Owner, Result, WorkspaceId};

use super::ops;
use crate::Sandboxes;

/// Gives a service the volumes that its new machine came with: from here on they do not go with the machine.
pub async fn claim(sandboxes: &Sandboxes, machine: &SandboxRecord, owner: &Owner) -> Result<()> {
    let rows = sandboxes.store.volumes(&machine.workspace).await?;
    let had = |row: &VolumeRecord| machine.spec.volumes.iter().any(|volume| volume.id == row.id);
    for row in rows.into_iter().filter(had) {
        let spec = VolumeSpecRecord { owner: Some(owner.clone()), delete_with_sandbox: false, ..row.spec };
        sandboxes.store.update_volume(&row.id, &spec).await?;
    }
    Ok(())
}

/// Keeps everybody else from the volumes of a service's machine, with which they go.
pub async fn seal(sandboxes: &Sandboxes, machine: &SandboxRecord, owner: &Owner) -> Result<()> {
    let rows = sandboxes.store.volumes(&machine.workspace).await?;
    let had = |row: &VolumeRecord| machine.spec.volumes.iter().any(|volume| volume.id == row.id);
    for row in rows.into_iter().filter(had) {
        let spec = VolumeSpecRecord { owner: Some(owner.clone()), ..row.spec };
        sandboxes.store.update_volume(&row.id, &spec).await?;
    }
    Ok(())
}

/// Leaves a volume to the machine that has it, with which it goes. `to` is what it belongs to until then.
pub async fn release(sandboxes: &Sandboxes, volume: VolumeRecord, to: &Owner) -> Result<()> {
    let owner = Some(to.clone());
    let spec = VolumeSpecRecord { owner, delete_with_sandbox: true, ..volume.spec };
    Ok(sandboxes.store.update_volume(&volume.id, &spec).await?)
}

/// Those of a service.
pub async fn of(sandboxes: &Sandboxes, workspace: &WorkspaceId, owner: &Owner) -> Result<Vec<VolumeRecord>> {
    let rows = sandboxes.store.volumes(workspace).await?;
    Ok(rows.into_iter().filter(|row| row.spec.owner.as_ref() == Some(owner)).collect())
}

/// Makes one of a service larger.
pub async fn grow(sandboxes: &Arc<Sandboxes>, volume: VolumeRecord, size_mb: u64) -> Result<VolumeRecord> {
    ops::grow(sandboxes, volume, size_mb).await
}

/// Deletes all of a service, whose machines are gone. Safe to repeat.
pub async fn delete_all(sandboxes: &Sandboxes, workspace: &WorkspaceId, owner: &Owner) -> Result<()> {
    for row in of(sandboxes, workspace, owner).await? {
        sandboxes.store.delete_volume(&row.id).await?;
        ops::finish_delete(sandboxes, &row).await?;
    }
    Ok(())
}

/// Refuses a volume that belongs to somebody else than `caller`, which is a service or, without one, a user.
pub(super) fn check(record: &VolumeRecord, caller: Option<&Owner>) -> Result<()> {
    match &record.spec.owner {
        Some(owner) if caller != Some(owner) => Err(Error::conflict(format!(
            "volume `{}` belongs to `{owner}`; only its owner can use or delete it",
            record.name
        ))),
        _ => Ok(()),
    }
}
