//! A sandbox.

use std::collections::BTreeMap;

use jiff::Timestamp;
use pandastack_types::agent_api::Usage;
use pandastack_types::api::{AttachedVolume, Checkpoints, Keep, Metadata, OnTimeout};
use pandastack_types::network::NetworkPolicy;
use pandastack_types::preview::Visibility;
use pandastack_types::{HostId, Owner, Residency, SandboxId, SandboxState, SnapshotId, TreeId, WorkspaceId};
use serde::{Deserialize, Serialize};

/// A sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRecord {
    /// Its id.
    pub id: SandboxId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Host it lives on.
    pub host: HostId,
    /// Where it stands.
    pub state: SandboxState,
    /// Every command to its host carries this.
    pub incarnation: u64,
    /// Template it descends from.
    pub template: String,
    /// Sandbox it was forked from.
    pub parent: Option<SandboxId>,
    /// The fork it came from.
    pub tree: Option<TreeId>,
    /// The service it belongs to, if any. The sandbox API neither lists nor deletes such a machine.
    pub owner: Option<Owner>,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When its state last changed.
    pub changed_at: Timestamp,
    /// When its lifetime ends. The reaper looks at nothing else.
    pub expires_at: Option<Timestamp>,
    /// Labels.
    pub metadata: Metadata,
    /// The rest.
    pub spec: SandboxSpecRecord,
}

/// What no query selects on. New fields need a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxSpecRecord {
    /// Snapshot it was made from.
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
    /// What happens at the end of the TTL.
    pub on_timeout: OnTimeout,
    /// Snapshots taken by the platform.
    pub checkpoints: Option<Checkpoints>,
    /// From its parent up; the farthest are forgotten past `ANCESTORS_MAX`.
    pub ancestors: Vec<SandboxId>,
    /// A candidate that is deleted at its expiry unless it is promoted.
    pub candidate: bool,
    /// It was promoted: no sibling's promotion deletes it.
    pub promoted: bool,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// Engine.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// Where a sleeper's memory is.
    pub residency: Option<Residency>,
    /// What a sleeper kept that was told to sleep.
    pub kept: Option<Keep>,
    /// Address on its host, while awake.
    pub guest_ip: Option<String>,
    /// `fork`, `restore` or `boot`.
    pub boot_mode: Option<String>,
    /// Time from request to ready.
    pub boot_ms: Option<u64>,
    /// Where that time went.
    pub boot_stages_us: BTreeMap<String, u64>,
    /// How long the parent of a fork stood still.
    pub pause_ms: Option<f64>,
    /// Why it failed.
    pub failure: Option<String>,
    /// Totals already in the usage events.
    pub usage: Usage,
    /// What it may reach.
    pub network: NetworkPolicy,
    /// How often it wanted to reach something that it may not.
    pub egress_denied: u64,
    /// Visibility of its ports.
    pub visibility: Visibility,
    /// How often the credentials of its previews were revoked.
    pub preview_revision: u64,
    /// Its volumes, by their places in the machine.
    pub volumes: Vec<AttachedVolume>,
}

impl Default for SandboxSpecRecord {
    fn default() -> Self {
        Self {
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
            volumes: Vec::new(),
        }
    }
}
