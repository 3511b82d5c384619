//! Sandboxes: how they are made, what they look like, what happens to them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{AttachVolume, AttachedVolume};
use crate::network::NetworkPolicy;
use crate::preview::Visibility;
use crate::{HostId, Residency, SandboxId, SandboxState, SnapshotId, WorkspaceId};

/// User-chosen labels.
pub type Metadata = BTreeMap<String, String>;

/// `POST /v1/sandboxes`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateSandbox {
    /// Template name or alias; `base` when neither this nor `from_snapshot` is given. With `from_snapshot` leave it out: another
    /// one than the snapshot's own is refused, apart from those that clients send when nobody names one (`base`,
    /// `ubuntu-24.04`, `code-interpreter`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Start from this snapshot instead of a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<SnapshotId>,
    /// Virtual processors; the template's when absent. Like `memory_mb`, another number than the template's is baked once
    /// per host, at its first use. A sandbox `from_snapshot` has the snapshot's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Memory in MiB, in steps of 128; the template's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Environment of every command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Lifetime in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// No TTL; hibernates when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Idle seconds before the sandbox hibernates. When absent, persistent ones do after 300 and others never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    /// What happens at the end of the TTL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// Snapshots taken by the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
    /// What it may reach; the public internet unless said, or what the sandbox of `from_snapshot` could reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Who may open its ports; `unlisted` unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// Volumes to mount in it, at most `VOLUMES_PER_SANDBOX_MAX`.
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

/// Snapshots that the platform takes of a sandbox by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoints {
    /// At least so long between two; none is taken while nothing happens in the sandbox. 0 takes none.
    pub every_seconds: u64,
    /// How many are kept, the newest.
    #[serde(default = "keep_last_default")]
    pub keep_last: u32,
}

fn keep_last_default() -> u32 {
    crate::limits::CHECKPOINTS_KEPT_DEFAULT
}

/// `POST /v1/sandboxes/{id}/keep-awake`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeepAwake {
    /// Do not count it as idle for this long from now; 0 ends an earlier lease.
    pub seconds: u64,
}

/// `POST /v1/sandboxes/{id}/hibernate`; the body may be empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Hibernate {
    /// What is kept.
    #[serde(default)]
    pub keep: Keep,
}

/// What a sleeping sandbox keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Memory and disk: it wakes in the middle of what it did.
    #[default]
    Memory,
    /// The disk only, which takes the least space: it wakes by booting.
    Disk,
}

/// What happens at the end of a TTL.
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
    /// Its id.
    pub id: SandboxId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Template it was made from.
    pub template: String,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// Where it stands.
    pub status: SandboxState,
    /// Where a sleeper's memory is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residency: Option<Residency>,
    /// What it kept when it was told to sleep: with `disk` it wakes by booting. Absent while it is awake, and where it fell
    /// asleep by itself, which keeps memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Keep>,
    /// Address on its host, while awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_ip: Option<String>,
    /// Host it lives on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostId>,
    /// False when its host does not answer; the status is then the last one known.
    pub host_reachable: bool,
    /// Engine that runs it.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// Labels.
    pub metadata: Metadata,
    /// What it may reach, unless that is the whole public internet.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_default")]
    pub network: NetworkPolicy,
    /// Snapshot it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<SnapshotId>,
    /// Sandbox it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<SandboxId>,
    /// How it came to be: `fork`, `restore`, or `boot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_mode: Option<String>,
    /// Time from request to ready, as the host saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_ms: Option<u64>,
    /// Where that time went, in microseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub boot_stages_us: BTreeMap<String, u64>,
    /// How long the parent of a fork stood still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// Its volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<AttachedVolume>,
    /// No TTL.
    pub persistent: bool,
    /// Lifetime in seconds, unless persistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When its TTL ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// `{"items": [...]}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Items<T> {
    /// The elements.
    pub items: Vec<T>,
}

/// Answer to hibernate and wake.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatusAnswer {
    /// Where the sandbox stands now.
    pub status: SandboxState,
}

/// `GET` and `PATCH /v1/sandboxes/{id}/lifecycle`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lifecycle {
    /// Lifetime in seconds, from creation.
    pub ttl_seconds: u64,
    /// No TTL.
    pub persistent: bool,
    /// Seconds since the last activity.
    pub idle_seconds: u64,
    /// Idle seconds before it hibernates, if it does.
    pub idle_timeout_seconds: u64,
    /// Whether it hibernates when idle: persistent ones, and those that were given an idle timeout.
    #[serde(default)]
    pub sleeps_when_idle: bool,
    /// What happens at the end of the TTL.
    pub on_timeout: OnTimeout,
    /// When the TTL ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Until when it does not count as idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub awake_until: Option<Timestamp>,
    /// Snapshots taken by the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
}

/// Body of `PATCH /v1/sandboxes/{id}/lifecycle`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PatchLifecycle {
    /// New lifetime, counted from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// No TTL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Idle seconds before it hibernates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    /// What happens at the end of the TTL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// Snapshots taken by the platform; `every_seconds` of 0 ends them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<Checkpoints>,
}

/// A port something listens on in a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Port {
    /// TCP port.
    pub port: u16,
    /// Address it is bound to inside the guest.
    pub address: String,
    /// Always true: only listening ports are listed.
    pub listening: bool,
    /// Where it is reached from outside, unless it listens inside the sandbox only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_url: Option<String>,
}

/// `GET /v1/sandboxes/{id}/ports`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PortList {
    /// By number.
    pub ports: Vec<Port>,
}

/// Something that happened to a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Grows with every event of the installation.
    pub id: i64,
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// What happened: a transition's name, or `snapshot_created` and the like.
    pub kind: String,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// `GET /v1/sandboxes/{id}/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// Oldest first.
    pub events: Vec<Event>,
}
