//! Volumes and their attachments.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::{HostId, Owner, SandboxId, VolumeId, WorkspaceId};
use serde::{Deserialize, Serialize};

use super::Result;

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRecord {
    /// The volume's id.
    pub id: VolumeId,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// The volume's name.
    pub name: String,
    /// Host that holds it.
    pub host: HostId,
    /// Lifecycle state.
    pub state: VolumeState,
    /// Raised with every writer.
    pub generation: u64,
    /// Time of the request.
    pub created_at: Timestamp,
    /// The other fields.
    pub spec: VolumeSpecRecord,
}

/// Lifecycle state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeState {
    /// The host may not have the volume yet.
    Creating,
    /// Ready to use.
    Ready,
    /// The host may still have the volume.
    Deleting,
}

impl VolumeState {
    /// Its stored form.
    pub fn as_str(self) -> &'static str {
        match self {
            VolumeState::Creating => "creating",
            VolumeState::Ready => "ready",
            VolumeState::Deleting => "deleting",
        }
    }

    /// Its stored form.
    pub fn parse(text: &str) -> Option<Self> {
        [VolumeState::Creating, VolumeState::Ready, VolumeState::Deleting]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}

/// Fields that no query selects on, stored as JSON. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeSpecRecord {
    /// Size.
    pub size_bytes: u64,
    /// Refuses to be deleted.
    pub protected: bool,
    /// Deleted together with its sandbox.
    pub delete_with_sandbox: bool,
    /// Can be read and cloned, not written.
    pub snapshot: bool,
    /// Volume it was made from.
    pub cloned_from: Option<VolumeId>,
    /// The service it belongs to, if any.
    pub owner: Option<Owner>,
}

/// A sandbox that has a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeHolderRecord {
    /// The volume.
    pub volume: VolumeId,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Whether the volume is attached read-only.
    pub read_only: bool,
}

/// Volumes. Attaching is part of [`super::SandboxStore::insert_sandboxes`]: a sandbox's row and its
/// hold on its volumes are added in one transaction, and the hold ends with the row.
#[async_trait]
pub trait VolumeStore: Send + Sync {
    /// Adds volumes. Quota: `VOLUMES_PER_WORKSPACE_MAX`.
    async fn insert_volumes(&self, volumes: &[VolumeRecord]) -> Result<()>;
    /// Returns the volume of a workspace that is not being deleted.
    async fn volume(&self, workspace: &WorkspaceId, name: &str) -> Result<VolumeRecord>;
    /// Volumes of a workspace that are not being deleted, by name.
    async fn volumes(&self, workspace: &WorkspaceId) -> Result<Vec<VolumeRecord>>;
    /// All volumes on a host.
    async fn volumes_on(&self, host: &HostId) -> Result<Vec<VolumeRecord>>;
    /// Sandboxes that use volumes of a workspace.
    async fn volume_holders(&self, workspace: &WorkspaceId) -> Result<Vec<VolumeHolderRecord>>;
    /// Marks a volume as ready, and stores its details, unless it is being deleted.
    async fn update_volume(&self, id: &VolumeId, spec: &VolumeSpecRecord) -> Result<()>;
    /// Decides that a volume is deleted. Not while a sandbox has it.
    async fn delete_volume(&self, id: &VolumeId) -> Result<()>;
    /// Removes a volume that is being deleted, or was never made, once its host has it no longer.
    async fn remove_volume(&self, id: &VolumeId) -> Result<()>;
}
