//! Volumes: durable disks that outlive sandboxes.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{HostId, SandboxId, VolumeId};

/// Request body of `POST /v1/volumes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateVolume {
    /// Volume name, unique in the workspace: lowercase letters, digits and `-`.
    pub name: String,
    /// Size in MiB. Disk space is allocated as data is written.
    #[schema(minimum = 1)]
    pub size_mb: u64,
    /// Whether the volume is protected from deletion.
    #[serde(default)]
    pub protected: bool,
}

/// Request body of `POST /v1/volumes/{name}/grow`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GrowVolume {
    /// New size in MiB, at least the current one. A running sandbox sees it when the call returns.
    #[schema(minimum = 1)]
    pub size_mb: u64,
}

/// Request body of `POST /v1/volumes/{name}/clone`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CloneVolume {
    /// Name of the clone.
    pub name: String,
}

/// Request body of `POST /v1/volumes/{name}/snapshot`, or empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotVolume {
    /// Name of the snapshot. Default: volume name and time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Request body of `PATCH /v1/volumes/{name}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PatchVolume {
    /// Whether the volume is protected from deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<bool>,
    /// Whether to delete the volume with its sandbox, as for volumes created by a fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_with_sandbox: Option<bool>,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Volume ID, which is never reused.
    pub id: VolumeId,
    /// Volume name.
    pub name: String,
    /// Size in MiB.
    pub size_mb: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes used on the host, as of its last report. Includes blocks shared with clones.
    pub used_bytes: u64,
    /// Incremented whenever a sandbox attaches the volume for writing. A sandbox that slept through a change
    /// cannot wake with the volume.
    pub generation: u64,
    /// Host that stores the volume. Sandboxes that use the volume are created there.
    pub host: HostId,
    /// Whether the volume is protected from deletion.
    pub protected: bool,
    /// Whether the volume is deleted with its sandbox.
    pub delete_with_sandbox: bool,
    /// Whether this is a snapshot: it can be read and cloned, but not written.
    pub snapshot: bool,
    /// ID of the volume that this one was cloned from, which may be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloned_from: Option<VolumeId>,
    /// Sandboxes that use the volume: one writer, or any number of readers.
    pub attached_to: Vec<VolumeHolder>,
    /// Creation time.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// A sandbox that uses a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeHolder {
    /// Sandbox ID.
    pub sandbox_id: SandboxId,
    /// Whether the volume is attached read-only.
    pub read_only: bool,
}

/// A volume to attach to a new sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachVolume {
    /// Volume name.
    pub name: String,
    /// Mount path. Default: `/volumes/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Attach the volume read-only. Any number of sandboxes can read a volume while none writes to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
}

/// A volume that is attached to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttachedVolume {
    /// Volume ID.
    pub id: VolumeId,
    /// Name of the volume when it was attached.
    pub name: String,
    /// Mount path.
    pub path: String,
    /// Whether the volume is attached read-only.
    pub read_only: bool,
    /// Generation of the volume when it was attached.
    pub generation: u64,
}
