//! Sandboxes: creation, state and events.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AttachVolume, AttachedVolume};
use crate::host_header::HostHeader;
use crate::network::NetworkPolicy;
use crate::preview::Visibility;
use crate::{HostId, Residency, SandboxId, SandboxState, SnapshotId, WorkspaceId};

/// User-chosen labels.
pub type Metadata = BTreeMap<String, String>;

/// Request body of `POST /v1/sandboxes`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateSandbox {
    /// Template name or alias. Default: `base`. Omit it with `from_snapshot`: a template other than the
    /// snapshot's is rejected, except the defaults of clients (`base`, `ubuntu-24.04` and
    /// `code-interpreter`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Snapshot to create from, instead of a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<SnapshotId>,
    /// Number of vCPUs. Default: from the template. Each host builds a new size of a template once, on first
    /// use. With `from_snapshot`, the snapshot's size applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub cpu: Option<u32>,
    /// Memory in MiB, a multiple of 128. Default: from the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub memory_mb: Option<u32>,
    /// Name, unique in the workspace: 1 to 63 lowercase letters, digits and `-`. It can be used in the place
    /// of the ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Metadata labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Environment variables for all commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Time to live in seconds. Default: 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub ttl_seconds: Option<u64>,
    /// Never expire; hibernate when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Idle seconds before the sandbox hibernates. Default: 300 if persistent, otherwise never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub idle_timeout_seconds: Option<u64>,
    /// Action when the TTL ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// State to keep when the TTL ends with `on_timeout: hibernate`. Default: `memory`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_on_timeout: Option<Keep>,
    /// Automatic snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
    /// Network policy. Default: allow the public internet, or with `from_snapshot` the policy of its sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Visibility of the sandbox's ports. Default: `unlisted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// `Host` header of requests to the sandbox's ports, for programs that refuse names they do not know.
    /// `${PORT}` is the port. Default: the name that the client used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_header: Option<HostHeader>,
    /// Volumes to mount, at most 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<AttachVolume>>,
    /// Isolation that the sandbox needs; `any` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<RequiredIsolation>,
}

/// Isolation that a sandbox needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequiredIsolation {
    /// Any host.
    #[default]
    Any,
    /// A host with hardware virtualization, never one that emulates processors.
    Hardware,
}

/// A word that is not the name of an isolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected any or hardware")]
pub struct UnknownIsolation;

impl std::str::FromStr for RequiredIsolation {
    type Err = UnknownIsolation;

    fn from_str(text: &str) -> Result<Self, UnknownIsolation> {
        match text {
            "any" => Ok(Self::Any),
            "hardware" => Ok(Self::Hardware),
            _ => Err(UnknownIsolation),
        }
    }
}

/// Automatic snapshots of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoints {
    /// Minimum interval between snapshots, in seconds. No snapshot is taken while the sandbox is inactive. 0
    /// disables them.
    pub every_seconds: u64,
    /// Number of newest snapshots to keep.
    #[serde(default = "keep_last_default")]
    pub keep_last: u32,
}

fn keep_last_default() -> u32 {
    crate::limits::CHECKPOINTS_KEPT_DEFAULT
}

/// Request body of `POST /v1/sandboxes/{id}/keep-awake`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeepAwake {
    /// Seconds from now during which the sandbox does not count as idle; 0 ends an earlier lease.
    pub seconds: u64,
}

/// Request body of `POST /v1/sandboxes/{id}/hibernate`, or empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Hibernate {
    /// State to keep.
    #[serde(default)]
    pub keep: Keep,
}

/// State that a hibernated sandbox keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Memory and disk: the sandbox continues where it stopped.
    #[default]
    Memory,
    /// Only the disk, which uses the least space: the sandbox boots when it wakes.
    Disk,
}

/// Action when the TTL ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// The sandbox is deleted.
    #[default]
    Kill,
    /// The sandbox goes to sleep.
    Hibernate,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Sandbox ID.
    pub id: SandboxId,
    /// Name, unique in the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Workspace of the sandbox.
    pub workspace: WorkspaceId,
    /// Template that the sandbox was created from.
    pub template: String,
    /// Number of vCPUs.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mb: u32,
    /// Current state.
    pub status: SandboxState,
    /// Where the memory of a sleeping sandbox is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residency: Option<Residency>,
    /// State kept by a hibernation that was requested; with `disk`, the sandbox boots when it wakes. Absent
    /// while it is awake, and after it hibernated by itself, which keeps memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Keep>,
    /// IP address on its host, while awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_ip: Option<String>,
    /// Host that the sandbox is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostId>,
    /// Whether the host responds. If not, `status` is the last known state.
    pub host_reachable: bool,
    /// Engine that runs the sandbox.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// Metadata labels.
    pub metadata: Metadata,
    /// Network policy; absent if it allows the whole public internet.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_default")]
    pub network: NetworkPolicy,
    /// Snapshot that the sandbox was created from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<SnapshotId>,
    /// Sandbox that this one was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<SandboxId>,
    /// How the sandbox was started: `fork`, `restore` or `boot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_mode: Option<String>,
    /// Time from request to ready, as measured by the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_ms: Option<u64>,
    /// Stages of `boot_ms`, in microseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub boot_stages_us: BTreeMap<String, u64>,
    /// Time that the parent was paused for the fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// Attached volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<AttachedVolume>,
    /// Whether the sandbox never expires.
    pub persistent: bool,
    /// Time to live in seconds, unless persistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Creation time.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time when the TTL ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Reason for the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A list: `{"items": [...]}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Items<T> {
    /// Elements of the list.
    pub items: Vec<T>,
}

/// Response of hibernate and wake.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatusAnswer {
    /// Current state of the sandbox.
    pub status: SandboxState,
}

/// Response of `GET` and `PATCH /v1/sandboxes/{id}/lifecycle`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lifecycle {
    /// Time to live in seconds, from creation.
    pub ttl_seconds: u64,
    /// Whether the sandbox never expires.
    pub persistent: bool,
    /// Seconds since the last activity.
    pub idle_seconds: u64,
    /// Idle seconds before the sandbox hibernates, if it does.
    pub idle_timeout_seconds: u64,
    /// Whether the sandbox hibernates when idle: if it is persistent or has an idle timeout.
    #[serde(default)]
    pub sleeps_when_idle: bool,
    /// Action when the TTL ends.
    pub on_timeout: OnTimeout,
    /// Time when the TTL ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Time until which the sandbox does not count as idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub awake_until: Option<Timestamp>,
    /// Automatic snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
}

/// Request body of `PATCH /v1/sandboxes/{id}/lifecycle`. Omitted settings are kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PatchLifecycle {
    /// New time to live in seconds, from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub ttl_seconds: Option<u64>,
    /// Whether the sandbox never expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Idle seconds before the sandbox hibernates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub idle_timeout_seconds: Option<u64>,
    /// Action when the TTL ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// Automatic snapshots; an `every_seconds` of 0 disables them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
}

/// A listening port in a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Port {
    /// TCP port number.
    pub port: u16,
    /// Address that the port is bound to in the guest.
    pub address: String,
    /// Always true: only listening ports are listed.
    pub listening: bool,
    /// URL of the port; absent if the port accepts only connections from inside the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_url: Option<String>,
}

/// Response of `GET /v1/sandboxes/{id}/ports`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PortList {
    /// Ports, sorted by number.
    pub ports: Vec<Port>,
}

/// An event of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Event ID, which increases across the installation.
    pub id: i64,
    /// Sandbox ID.
    pub sandbox_id: SandboxId,
    /// Kind of event: the name of a transition, or another such as `snapshot_created`.
    pub kind: String,
    /// Kind again, under its other name.
    #[serde(rename = "type", default)]
    pub event_type: String,
    /// Time of the event.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Details, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Response of `GET /v1/sandboxes/{id}/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// Events, oldest first.
    pub events: Vec<Event>,
}
