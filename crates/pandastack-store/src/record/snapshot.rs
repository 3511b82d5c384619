//! A snapshot.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pandastack_types::api::{AttachedVolume, Metadata, SnapshotKind};
use pandastack_types::network::NetworkPolicy;
use pandastack_types::{HostId, SandboxId, SnapshotId, WorkspaceId};
use serde::{Deserialize, Serialize};

/// A snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotRecord {
    /// The snapshot's id.
    pub id: SnapshotId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Sandbox it shows.
    pub sandbox: SandboxId,
    /// Host that holds it.
    pub host: HostId,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time at which it expires, if it does.
    pub expires_at: Option<Timestamp>,
    /// The rest.
    pub spec: SnapshotSpecRecord,
}

/// Fields of a snapshot that no query filters by. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotSpecRecord {
    /// Template of that sandbox.
    pub template: String,
    /// Origin of the snapshot.
    pub kind: SnapshotKind,
    /// Name, unique in the workspace.
    pub name: Option<String>,
    /// Labels.
    pub metadata: Metadata,
    /// Bytes written for it.
    pub size_bytes: u64,
    /// Milliseconds for which the sandbox was paused.
    pub pause_ms: Option<f64>,
    /// Virtual processors of that sandbox.
    pub cpu: u32,
    /// Memory of that sandbox.
    pub memory_mb: u32,
    /// Environment of that sandbox.
    pub env: BTreeMap<String, String>,
    /// Template of the workspace that the sandbox was made from.
    pub from_template: Option<String>,
    /// User of its commands that name none.
    pub user: Option<String>,
    /// Working directory of its commands that name none.
    pub cwd: Option<String>,
    /// Network policy of that sandbox.
    pub network: NetworkPolicy,
    /// Volumes that the sandbox had, of which it has copies.
    pub volumes: Vec<AttachedVolume>,
}
