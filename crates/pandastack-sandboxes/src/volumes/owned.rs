//! Volumes that belong to a service, such as `database:<id>`.
//!
//! They outlive their first machine, and only that service attaches, changes and deletes them.
//! Lists of the workspace do not show them.

use std::sync::Arc;

use async_trait::async_trait;
use pandastack_store::SandboxRecord;
use pandastack_store::volumes::{VolumeRecord, VolumeSpecRecord};
use pandastack_types::{Error, Owner, Result, WorkspaceId};

use super::ops;
use crate::Sandboxes;

/// Volumes of services.
#[async_trait]
pub trait OwnedVolumes: Send + Sync {
    /// Transfers the volumes of a new machine to a service: they are no longer deleted with the machine.
    async fn claim(&self, machine: &SandboxRecord, owner: &Owner) -> Result<()>;

    /// Reserves the volumes of a service's machine for that service; they are deleted with the
    /// machine.
    async fn seal(&self, machine: &SandboxRecord, owner: &Owner) -> Result<()>;

    /// Leaves a volume to the machine that holds it, so that it is deleted with the machine. `to`
    /// is its owner until then.
    async fn release(&self, volume: VolumeRecord, to: &Owner) -> Result<()>;

    /// Volumes of an owner.
    async fn owned_by(&self, workspace: &WorkspaceId, owner: &Owner) -> Result<Vec<VolumeRecord>>;

    /// Volumes that a machine was created with, of any owner.
    async fn of_machine(&self, machine: &SandboxRecord) -> Result<Vec<VolumeRecord>>;

    /// Grows a volume.
    async fn grow(&self, volume: VolumeRecord, size_mb: u64) -> Result<VolumeRecord>;

    /// Used bytes of a volume, as last reported by its host.
    fn used_bytes(&self, volume: &VolumeRecord) -> Option<u64>;

    /// Deletes all volumes of an owner whose machines are deleted. Safe to repeat.
    async fn delete_all(&self, workspace: &WorkspaceId, owner: &Owner) -> Result<()>;
}

impl Sandboxes {
    /// Volumes of services.
    pub fn owned_volumes(self: &Arc<Self>) -> Arc<dyn OwnedVolumes> {
        Arc::new(Arc::clone(self))
    }
}

#[async_trait]
impl OwnedVolumes for Arc<Sandboxes> {
    async fn claim(&self, machine: &SandboxRecord, owner: &Owner) -> Result<()> {
        for row in self.of_machine(machine).await? {
            let spec =
                VolumeSpecRecord { owner: Some(owner.clone()), delete_with_sandbox: false, ..row.spec };
            self.store.update_volume(&row.id, &spec).await?;
        }
        Ok(())
    }

    async fn seal(&self, machine: &SandboxRecord, owner: &Owner) -> Result<()> {
        for row in self.of_machine(machine).await? {
            let spec = VolumeSpecRecord { owner: Some(owner.clone()), ..row.spec };
            self.store.update_volume(&row.id, &spec).await?;
        }
        Ok(())
    }

    async fn release(&self, volume: VolumeRecord, to: &Owner) -> Result<()> {
        let owner = Some(to.clone());
        let spec = VolumeSpecRecord { owner, delete_with_sandbox: true, ..volume.spec };
        Ok(self.store.update_volume(&volume.id, &spec).await?)
    }

    async fn owned_by(&self, workspace: &WorkspaceId, owner: &Owner) -> Result<Vec<VolumeRecord>> {
        let rows = self.store.volumes(workspace).await?;
        Ok(rows.into_iter().filter(|row| row.spec.owner.as_ref() == Some(owner)).collect())
    }

    async fn of_machine(&self, machine: &SandboxRecord) -> Result<Vec<VolumeRecord>> {
        let rows = self.store.volumes(&machine.workspace).await?;
        let had = |row: &VolumeRecord| machine.spec.volumes.iter().any(|volume| volume.id == row.id);
        Ok(rows.into_iter().filter(had).collect())
    }

    async fn grow(&self, volume: VolumeRecord, size_mb: u64) -> Result<VolumeRecord> {
        ops::grow(self, volume, size_mb).await
    }

    fn used_bytes(&self, volume: &VolumeRecord) -> Option<u64> {
        self.hosts.volume(&volume.host, &volume.id).map(|seen| seen.used_bytes)
    }

    async fn delete_all(&self, workspace: &WorkspaceId, owner: &Owner) -> Result<()> {
        for row in OwnedVolumes::owned_by(self, workspace, owner).await? {
            self.store.delete_volume(&row.id).await?;
            ops::finish_delete(self, &row).await?;
        }
        Ok(())
    }
}

/// Refuses a volume with another owner than `caller`, which is a service or, without one, a user.
pub(super) fn check(record: &VolumeRecord, caller: Option<&Owner>) -> Result<()> {
    match &record.spec.owner {
        Some(owner) if caller != Some(owner) => Err(Error::conflict(format!(
            "volume `{}` belongs to `{owner}`; only its owner can use or delete it",
            record.name
        ))),
        _ => Ok(()),
    }
}
