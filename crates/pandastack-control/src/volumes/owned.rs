//! Volumes that belong to a service.
//!
//! They outlive the machine they came with, are attached for that service only, and are changed and deleted through it.
//! Lists of the workspace do not show them.

use std::sync::Arc;

use pandastack_types::WorkspaceId;

use super::ops;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::store::volumes::{VolumeRecord, VolumeSpecRecord};
use crate::store::{Owner, SandboxRecord};

/// Gives a service the volumes that its new machine came with: from here on they do not go with the machine.
pub(crate) async fn claim(app: &App, machine: &SandboxRecord, owner: &Owner) -> ApiResult<()> {
    let rows = app.store.volumes(&machine.workspace).await?;
    let had = |row: &VolumeRecord| machine.spec.volumes.iter().any(|volume| volume.id == row.id);
    for row in rows.into_iter().filter(had) {
        let spec = VolumeSpecRecord { owner: Some(owner.clone()), delete_with_sandbox: false, ..row.spec };
        app.store.update_volume(&row.id, &spec).await?;
    }
    Ok(())
}

/// Keeps everybody else from the volumes of a service's machine, with which they go.
pub(crate) async fn seal(app: &App, machine: &SandboxRecord, owner: &Owner) -> ApiResult<()> {
    let rows = app.store.volumes(&machine.workspace).await?;
    let had = |row: &VolumeRecord| machine.spec.volumes.iter().any(|volume| volume.id == row.id);
    for row in rows.into_iter().filter(had) {
        let spec = VolumeSpecRecord { owner: Some(owner.clone()), ..row.spec };
        app.store.update_volume(&row.id, &spec).await?;
    }
    Ok(())
}

/// Leaves a volume to the machine that has it: it is deleted with the machine. The new owner keeps others away.
pub(crate) async fn release(app: &App, volume: VolumeRecord, owner: Owner) -> ApiResult<()> {
    let spec = VolumeSpecRecord { owner: Some(owner), delete_with_sandbox: true, ..volume.spec };
    Ok(app.store.update_volume(&volume.id, &spec).await?)
}

/// Those of a service.
pub(crate) async fn of(app: &App, workspace: &WorkspaceId, owner: &Owner) -> ApiResult<Vec<VolumeRecord>> {
    let rows = app.store.volumes(workspace).await?;
    Ok(rows.into_iter().filter(|row| row.spec.owner.as_ref() == Some(owner)).collect())
}

/// Makes one of a service larger.
pub(crate) async fn grow(app: &Arc<App>, volume: VolumeRecord, size_mb: u64) -> ApiResult<VolumeRecord> {
    ops::grow(app, volume, size_mb).await
}

/// Deletes all of a service, whose machines are gone. Safe to repeat.
pub(crate) async fn delete_all(app: &App, workspace: &WorkspaceId, owner: &Owner) -> ApiResult<()> {
    for row in of(app, workspace, owner).await? {
        app.store.delete_volume(&row.id).await?;
        ops::finish_delete(app, &row).await?;
    }
    Ok(())
}

/// Refuses a volume that belongs to somebody else than `caller`, which is a service or, without one, a user.
pub(super) fn check(record: &VolumeRecord, caller: Option<&Owner>) -> ApiResult<()> {
    match &record.spec.owner {
        Some(owner) if caller != Some(owner) => Err(ApiError::conflict(format!(
            "volume `{}` belongs to `{owner}`, which alone may use and delete it",
            record.name
        ))),
        _ => Ok(()),
    }
}
