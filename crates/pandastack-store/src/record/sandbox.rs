//! A sandbox.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pandastack_types::agent_api::Usage;
use pandastack_types::api::{AttachedVolume, Checkpoints, Keep, Metadata, OnTimeout};
use pandastack_types::host_header::HostHeader;
use pandastack_types::network::NetworkPolicy;
use pandastack_types::preview::Visibility;
use pandastack_types::{HostId, Owner, Residency, SandboxId, SandboxState, SnapshotId, TreeId, WorkspaceId};
use serde::{Deserialize, Serialize};

/// A sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRecord {
    /// The sandbox's id.
    pub id: SandboxId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Host it lives on.
    pub host: HostId,
    /// Current state.
    pub state: SandboxState,
    /// Every command to its host carries this.
    pub incarnation: u64,
    /// Template it descends from.
    pub template: String,
    /// Sandbox it was forked from.
    pub parent: Option<SandboxId>,
    /// The fork that created it.
    pub tree: Option<TreeId>,
    /// The service it belongs to, if any. The sandbox API neither lists nor deletes such a machine.
    pub owner: Option<Owner>,
    /// Time of the request.
    pub created_at: Timestamp,
    /// Time of the last change of its state.
    pub changed_at: Timestamp,
    /// End of its lifetime. The reaper uses only this.
    pub expires_at: Option<Timestamp>,
    /// Labels.
    pub metadata: Metadata,
    /// The rest.
    pub spec: SandboxSpecRecord,
}

/// Fields of a sandbox that no query filters by. New fields need a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxSpecRecord {
    /// Name, unique in the workspace. Set at creation.
    pub name: Option<String>,
    /// Snapshot that it was created from.
    pub from_snapshot: Option<SnapshotId>,
    /// Template of the workspace that it was made from; absent for the platform's own.
    pub from_template: Option<String>,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
    /// User of commands that name none.
    pub user: Option<String>,
    /// Working directory of commands that name none.
    pub cwd: Option<String>,
    /// Lifetime in seconds, also kept while persistent.
    pub ttl_seconds: u64,
    /// No TTL; hibernates when idle.
    pub persistent: bool,
    /// Idle seconds before it hibernates, if it does.
    pub idle_timeout_seconds: u64,
    /// Hibernates when idle though it is not persistent: it was given an idle timeout.
    pub idle_given: bool,
    /// Action at the end of the TTL.
    pub on_timeout: OnTimeout,
    /// State that the sandbox keeps if it goes to sleep at the end of the TTL.
    pub keep_on_timeout: Keep,
    /// Snapshots taken by the platform.
    pub checkpoints: Option<Checkpoints>,
    /// From its parent up; the farthest are dropped beyond `ANCESTORS_MAX`.
    pub ancestors: Vec<SandboxId>,
    /// A candidate that is deleted at its expiry unless it is promoted.
    pub candidate: bool,
    /// The sandbox was promoted: no sibling's promotion deletes it.
    pub promoted: bool,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// Engine.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// Location of the memory while asleep.
    pub residency: Option<Residency>,
    /// State that the sandbox kept when it was put to sleep.
    pub kept: Option<Keep>,
    /// Address on its host, while awake.
    pub guest_ip: Option<String>,
    /// `fork`, `restore` or `boot`.
    pub boot_mode: Option<String>,
    /// Time from request to ready.
    pub boot_ms: Option<u64>,
    /// Duration of each stage of that time.
    pub boot_stages_us: BTreeMap<String, u64>,
    /// Milliseconds for which the parent of a fork was paused.
    pub pause_ms: Option<f64>,
    /// Reason for the failure.
    pub failure: Option<String>,
    /// Totals already in the usage events.
    pub usage: Usage,
    /// Network policy.
    pub network: NetworkPolicy,
    /// Number of connections and lookups that the policy refused.
    pub egress_denied: u64,
    /// Visibility of its ports.
    pub visibility: Visibility,
    /// Number of times the credentials of its previews were revoked.
    pub preview_revision: u64,
    /// `Host` header of requests to its ports, if it is not the client's.
    pub host_header: Option<HostHeader>,
    /// Attached volumes, in order of their slots in the machine.
    pub volumes: Vec<AttachedVolume>,
}

impl Default for SandboxSpecRecord {
    fn default() -> Self {
        Self {
            name: None,
            from_snapshot: None,
            from_template: None,
            env: BTreeMap::new(),
            user: None,
            cwd: None,
            ttl_seconds: pandastack_types::limits::TTL_SECONDS_DEFAULT,
            persistent: false,
            idle_timeout_seconds: pandastack_types::limits::IDLE_SECONDS_DEFAULT,
            idle_given: false,
            on_timeout: OnTimeout::Kill,
            keep_on_timeout: Keep::Memory,
            checkpoints: None,
            ancestors: Vec::new(),
            candidate: false,
            promoted: false,
            cpu: 1,
            memory_mb: 0,
            engine: String::new(),
            isolation: String::new(),
            residency: None,
            kept: None,
            guest_ip: None,
            boot_mode: None,
            boot_ms: None,
            boot_stages_us: BTreeMap::new(),
            pause_ms: None,
            failure: None,
            usage: Usage::default(),
            network: NetworkPolicy::default(),
            egress_denied: 0,
            visibility: Visibility::default(),
            preview_revision: 0,
            host_header: None,
            volumes: Vec::new(),
        }
    }
}
