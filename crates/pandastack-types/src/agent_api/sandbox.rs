//! Sandboxes and snapshots in the private API.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::VolumeSpec;
use crate::network::NetworkPolicy;
use crate::{Residency, SandboxId, SandboxState, SnapshotId, WorkspaceId};

/// The source of a new sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A template, by name.
    Template(String),
    /// A template's disk, by the template's name, booted: for a volume at the place of the
    /// template's own that has seen more than the template's memory knows of.
    TemplateDisk(String),
    /// A snapshot on that host.
    Snapshot(SnapshotId),
}

/// The specification of a sandbox, without its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// The sandbox's id.
    pub id: SandboxId,
    /// The sandbox's incarnation.
    pub incarnation: u64,
    /// Workspace that owns it. `None` for sandboxes from before agents recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceId>,
    /// Environment of every command.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Default user of commands. Default: root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Default working directory of commands. Default: the user's home directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Hibernate after this long without activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    /// Network policy.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_default")]
    pub network: NetworkPolicy,
    /// Durable disks, in order of their slots in the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeSpec>,
}

/// Make a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCreate {
    /// The specification of the sandbox.
    pub spec: SandboxSpec,
    /// The source of the sandbox.
    pub source: Source,
    /// Machine size, where it differs from the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<MachineSize>,
}

/// Processors and memory of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSize {
    /// Number of vCPUs.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mb: u32,
}

/// Change a sandbox's idle behaviour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentPatch {
    /// Hibernate after this long without activity; `None` never.
    pub idle_timeout_seconds: Option<u64>,
}

/// Keep a sandbox awake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentKeepAwake {
    /// Time until which it does not count as idle; `None` ends an earlier lease.
    pub until: Option<Timestamp>,
}

/// Return a sandbox to one of its snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRollback {
    /// Snapshot to return to.
    pub snapshot_id: SnapshotId,
}

/// A sandbox as its agent sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSandbox {
    /// The sandbox's id.
    pub id: SandboxId,
    /// The sandbox's incarnation.
    pub incarnation: u64,
    /// Current state.
    pub state: SandboxState,
    /// Location of a sleeping sandbox's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residency: Option<Residency>,
    /// Template it descends from.
    pub template: String,
    /// Number of vCPUs.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// Address on the host, while awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_ip: Option<String>,
    /// Engine.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// `fork`, `restore` or `boot`.
    pub boot_mode: String,
    /// Time from request to ready.
    pub boot_ms: u64,
    /// Stages of the boot time, in microseconds.
    #[serde(default)]
    pub boot_stages_us: BTreeMap<String, u64>,
    /// Seconds since the last activity.
    pub idle_seconds: u64,
    /// Time until which it does not count as idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awake_until: Option<Timestamp>,
    /// Reason for the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Usage so far. It only grows within an incarnation.
    #[serde(default)]
    pub usage: Usage,
}

/// Totals since the sandbox was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time of its process, in milliseconds.
    pub cpu_ms: u64,
    /// Memory promised to it times seconds awake.
    pub memory_mb_seconds: u64,
    /// Seconds asleep.
    pub asleep_seconds: u64,
    /// Bytes it sent.
    pub sent_bytes: u64,
    /// Bytes it received.
    pub received_bytes: u64,
}

/// Take a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentSnapshot {
    /// Id it shall have.
    pub snapshot_id: SnapshotId,
}

/// A snapshot was taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentSnapshotDone {
    /// Bytes written for it.
    pub size_bytes: u64,
    /// Milliseconds for which the sandbox was paused.
    pub pause_ms: f64,
}

/// Fork a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentFork {
    /// One per child.
    pub children: Vec<SandboxSpec>,
}

/// A fork was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentForked {
    /// Milliseconds for which the parent was paused.
    pub pause_ms: f64,
    /// One per child, in order.
    pub children: Vec<ChildOutcome>,
}

/// The result of one child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildOutcome {
    /// The child is ready.
    Made(Box<AgentSandbox>),
    /// The child could not be created, and nothing is left of it.
    Failed(String),
}
