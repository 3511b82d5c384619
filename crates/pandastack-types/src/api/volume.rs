//! Volumes: durable disks that outlive sandboxes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{HostId, SandboxId, VolumeId};

/// `POST /v1/volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateVolume {
    /// Name, unique in the workspace: lowercase letters, digits and `-`.
    pub name: String,
    /// Size in MiB. Space is taken as it is written.
    pub size_mb: u64,
    /// Refuse to delete it until this is changed.
    #[serde(default)]
    pub protected: bool,
}

/// `POST /v1/volumes/{name}/grow`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrowVolume {
    /// New size in MiB; at least the present one. A running sandbox has the room when the call returns.
    pub size_mb: u64,
}

/// `POST /v1/volumes/{name}/clone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CloneVolume {
    /// Name of the clone.
    pub name: String,
}

/// `POST /v1/volumes/{name}/snapshot`; the body may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotVolume {
    /// Name of the snapshot; made of the volume's name and the time when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// `PATCH /v1/volumes/{name}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PatchVolume {
    /// Refuse to delete it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<bool>,
    /// Delete it together with the sandbox that has it, as volumes made by a fork are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_with_sandbox: Option<bool>,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its id, which no other volume ever has.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Size in MiB.
    pub size_mb: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes it takes on its host, as of the host's last report; what it shares with clones is counted.
    pub used_bytes: u64,
    /// Raised with every sandbox that may write it. A sandbox that slept through that is not woken with it.
    pub generation: u64,
    /// Host that holds it; sandboxes with it are made there.
    pub host: HostId,
    /// Refuses to be deleted.
    pub protected: bool,
    /// Deleted together with its sandbox.
    pub delete_with_sandbox: bool,
    /// Can be read and cloned, not written.
    pub snapshot: bool,
    /// Volume it was made from, by id, also when that is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloned_from: Option<VolumeId>,
    /// Sandboxes that have it: one that writes, or any number that read.
    pub attached_to: Vec<VolumeHolder>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// A sandbox that has a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeHolder {
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// It only reads.
    pub read_only: bool,
}

/// A volume for a new sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachVolume {
    /// Name of the volume.
    pub name: String,
    /// Where it is mounted; `/volumes/<name>` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Only read it. Any number of sandboxes may, as long as none writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// A volume of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachedVolume {
    /// Which.
    pub id: VolumeId,
    /// Its name when it was attached.
    pub name: String,
    /// Where it is mounted.
    pub path: String,
    /// Only read.
    pub read_only: bool,
    /// The volume's generation since this sandbox has it.
    pub generation: u64,
}
