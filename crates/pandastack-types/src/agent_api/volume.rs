//! Volumes in the private API.

use serde::{Deserialize, Serialize};

use crate::{SandboxId, VolumeId};

/// A durable disk of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// The volume's id.
    pub id: VolumeId,
    /// Mount path in the guest.
    pub path: String,
    /// Only read.
    #[serde(default)]
    pub read_only: bool,
    /// The volume's generation for this sandbox: the fencing token of everything it does with it.
    /// An older one than the host knows is refused.
    pub generation: u64,
}

/// Make a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentVolumeCreate {
    /// The volume's id.
    pub id: VolumeId,
    /// Size in bytes; at least that of `from`.
    pub size_bytes: u64,
    /// Volume to copy. Default: create an empty volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<VolumeId>,
    /// The sandbox that writes `from`: it is paused during the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<SandboxId>,
}

/// Make a volume larger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentVolumeGrow {
    /// New size in bytes.
    pub size_bytes: u64,
    /// The sandbox that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<SandboxId>,
}

/// A volume as its host has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentVolume {
    /// The volume's id.
    pub id: VolumeId,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes it takes on disk.
    pub used_bytes: u64,
    /// Highest generation that opened it.
    pub generation: u64,
}
