//! Records and the pure rules of how they change.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use pandastack_types::agent_api::{AgentSandbox, HostReport, Usage};
use pandastack_types::api::{AttachedVolume, Checkpoints, Keep, Metadata, OnTimeout, Role, SnapshotKind};
use pandastack_types::network::{Egress, NetworkPolicy};
use pandastack_types::preview::Visibility;
use pandastack_types::{
    HostId, Owner, Residency, SandboxId, SandboxState, SnapshotId, Transition, TransitionRefused, TreeId,
    WorkspaceId,
};
use serde::{Deserialize, Serialize};

use super::StoreError;

/// A key, hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    /// Public part.
    pub prefix: String,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// SHA-256 of the whole key.
    pub hash: Vec<u8>,
    /// Human-readable name.
    pub label: String,
    /// Role of the key in its workspace.
    pub role: Role,
    /// Whether it may also manage the installation. Such keys are of workspace `default`.
    pub operator: bool,
    /// Networks that it may be used from; everywhere when empty.
    pub allow_from: Vec<String>,
    /// Creation time.
    pub created_at: Timestamp,
    /// When it stops working.
    pub expires_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
}

/// A host as it last reported, without the lists that have rows of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct HostRecord {
    /// Its last report; `sandboxes` and `snapshots` are empty.
    pub summary: HostReport,
    /// When that came, by this side's clock.
    pub last_seen_at: Timestamp,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRecord {
    /// Its id.
    pub id: SandboxId,
    /// Workspace that owns it.
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
    /// The fork it came from.
    pub tree: Option<TreeId>,
    /// The service it belongs to, if any. The sandbox API neither lists nor deletes such a machine.
    pub owner: Option<Owner>,
    /// Time of the request.
    pub created_at: Timestamp,
    /// When its state last changed.
    pub changed_at: Timestamp,
    /// When its lifetime ends. The reaper looks at nothing else.
    pub expires_at: Option<Timestamp>,
    /// Labels.
    pub metadata: Metadata,
    /// The other fields.
    pub spec: SandboxSpecRecord,
}

/// Fields that no query selects on, stored as JSON. New fields need a default.
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
    /// Action when the TTL ends.
    pub on_timeout: OnTimeout,
    /// Snapshots taken by the platform.
    pub checkpoints: Option<Checkpoints>,
    /// From its parent up; the farthest are forgotten past `ANCESTORS_MAX`.
    pub ancestors: Vec<SandboxId>,
    /// A candidate that is deleted at its expiry unless it is promoted.
    pub candidate: bool,
    /// It was promoted: no sibling's promotion deletes it.
    pub promoted: bool,
    /// Number of vCPUs.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// Engine.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// Where the memory of a sleeping sandbox is.
    pub residency: Option<Residency>,
    /// State kept by a hibernation that a client requested.
    pub kept: Option<Keep>,
    /// Address on its host, while awake.
    pub guest_ip: Option<String>,
    /// `fork`, `restore` or `boot`.
    pub boot_mode: Option<String>,
    /// Time from request to ready.
    pub boot_ms: Option<u64>,
    /// Stages of the boot time.
    pub boot_stages_us: BTreeMap<String, u64>,
    /// How long the parent of a fork stood still.
    pub pause_ms: Option<f64>,
    /// Why it failed.
    pub failure: Option<String>,
    /// Totals already in the usage events.
    pub usage: Usage,
    /// Network policy.
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

/// A snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotRecord {
    /// Its id.
    pub id: SnapshotId,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// Sandbox it shows.
    pub sandbox: SandboxId,
    /// Host that holds it.
    pub host: HostId,
    /// Creation time.
    pub created_at: Timestamp,
    /// When it is deleted by itself.
    pub expires_at: Option<Timestamp>,
    /// The other fields.
    pub spec: SnapshotSpecRecord,
}

/// Fields that no query selects on, stored as JSON. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotSpecRecord {
    /// Template of that sandbox.
    pub template: String,
    /// Origin of the snapshot.
    pub kind: SnapshotKind,
    /// Human-readable name.
    pub name: Option<String>,
    /// Labels.
    pub metadata: Metadata,
    /// Bytes written for it.
    pub size_bytes: u64,
    /// How long the sandbox stood still.
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
    /// Network policy of the sandbox.
    pub network: NetworkPolicy,
    /// Volumes that the sandbox had, of which it has copies.
    pub volumes: Vec<AttachedVolume>,
}

/// Data of a transition.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// When.
    pub at: Timestamp,
    /// Why, in a sentence.
    pub detail: Option<String>,
    /// The sandbox as its agent sees it.
    pub seen: Option<Box<AgentSandbox>>,
    /// How long the parent of a fork stood still.
    pub pause_ms: Option<f64>,
    /// The transition is the end of a lifetime: there is no other end until it wakes.
    pub ends_lifetime: bool,
    /// State to keep, if a client requested the hibernation.
    pub kept: Option<Keep>,
}

impl Change {
    /// A change with nothing to say.
    pub fn at(at: Timestamp) -> Self {
        Self { at, ..Self::default() }
    }

    /// With a sentence.
    pub fn because(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// With what the agent sees.
    pub fn seeing(mut self, seen: AgentSandbox) -> Self {
        self.seen = Some(Box::new(seen));
        self
    }
}

/// A change that is not one of state.
#[derive(Debug, Clone, PartialEq)]
pub enum Amendment {
    /// New lifetime.
    Lifecycle {
        /// Lifetime in seconds.
        ttl_seconds: u64,
        /// No TTL.
        persistent: bool,
        /// Idle seconds before it hibernates.
        idle_timeout_seconds: u64,
        /// Hibernates when idle though it is not persistent.
        idle_given: bool,
        /// Snapshots taken by the platform.
        checkpoints: Option<Checkpoints>,
        /// Action when the TTL ends.
        on_timeout: OnTimeout,
        /// When that is.
        expires_at: Option<Timestamp>,
    },
    /// The sandbox was rolled back to a snapshot.
    RolledBack(SnapshotId),
    /// Other people may open its ports.
    Visibility(Visibility),
    /// Tokens and signed URLs of its previews work no more.
    PreviewsRevoked,
    /// The network policy was changed.
    Network(Box<NetworkPolicy>),
    /// The network policy denied a connection.
    EgressDenied {
        /// What, as a sentence.
        detail: String,
        /// How often since this was last told.
        count: u64,
    },
}

impl SandboxRecord {
    /// Applies a transition. `false` when it repeats the one before and changes nothing worth an event.
    pub fn apply(&mut self, transition: Transition, change: &Change) -> Result<bool, TransitionRefused> {
        let next = self.state.step(transition)?;
        let moved = next != self.state;
        self.state = next;
        if moved {
            self.changed_at = change.at;
        }
        if let Some(seen) = &change.seen {
            self.note_seen(seen);
        }
        if change.pause_ms.is_some() {
            self.spec.pause_ms = change.pause_ms;
        }
        if next == SandboxState::Failed {
            self.spec.failure = change.detail.clone().or(self.spec.failure.take());
            self.spec.guest_ip = None;
        }
        if next == SandboxState::Hibernated && change.ends_lifetime {
            self.expires_at = None;
        }
        match next {
            SandboxState::Hibernated => self.spec.kept = change.kept.or(self.spec.kept),
            _ => (self.spec.residency, self.spec.kept) = (None, None),
        }
        let restarts = matches!(transition, Transition::Created | Transition::Woken) && moved;
        if restarts && self.expires_at.is_none() && !self.spec.persistent {
            self.expires_at = after_seconds(change.at, self.spec.ttl_seconds);
        }
        Ok(moved)
    }

    /// Takes over what only the agent knows. Totals of use go through usage events instead.
    fn note_seen(&mut self, seen: &AgentSandbox) {
        self.template.clone_from(&seen.template);
        let spec = &mut self.spec;
        spec.cpu = seen.cpu;
        spec.memory_mb = seen.memory_mb;
        spec.engine.clone_from(&seen.engine);
        spec.isolation.clone_from(&seen.isolation);
        spec.guest_ip.clone_from(&seen.guest_ip);
        spec.residency = seen.residency;
        spec.boot_mode = Some(seen.boot_mode.clone());
        spec.boot_ms = Some(seen.boot_ms);
        spec.boot_stages_us.clone_from(&seen.boot_stages_us);
    }

    /// Makes a child of a fork stay: it is a candidate no longer. Refuses one that has no machine,
    /// because another child was promoted first.
    pub fn promote(&mut self, at: Timestamp) -> Result<(), StoreError> {
        if !self.state.is_live() {
            return Err(StoreError::Held(format!(
                "sandbox `{}` is {} and cannot be promoted; it was deleted, or another child of its fork was \
                 promoted first",
                self.id,
                self.state.as_str()
            )));
        }
        self.spec.candidate = false;
        self.spec.promoted = true;
        self.expires_at = match self.spec.persistent {
            true => None,
            false => after_seconds(at, self.spec.ttl_seconds),
        };
        Ok(())
    }

    /// Applies an amendment and returns the kind and sentence of its event.
    pub fn amend(&mut self, amendment: &Amendment) -> (&'static str, Option<String>) {
        match amendment {
            Amendment::Lifecycle {
                ttl_seconds,
                persistent,
                idle_timeout_seconds,
                idle_given,
                checkpoints,
                on_timeout,
                expires_at,
            } => {
                self.spec.ttl_seconds = *ttl_seconds;
                self.spec.persistent = *persistent;
                self.spec.idle_timeout_seconds = *idle_timeout_seconds;
                self.spec.idle_given = *idle_given;
                self.spec.checkpoints = *checkpoints;
                self.spec.on_timeout = *on_timeout;
                self.spec.candidate = false;
                self.expires_at = *expires_at;
                let detail = match persistent {
                    true => "persistent".to_owned(),
                    false => format!("{ttl_seconds} seconds from now"),
                };
                ("lifecycle_changed", Some(detail))
            }
            Amendment::Visibility(visibility) => {
                self.spec.visibility = *visibility;
                ("visibility_changed", Some(visibility.as_str().to_owned()))
            }
            Amendment::PreviewsRevoked => {
                self.spec.preview_revision += 1;
                ("previews_revoked", None)
            }
            Amendment::Network(policy) => {
                self.spec.network = policy.as_ref().clone();
                ("network_changed", Some(network_detail(policy)))
            }
            Amendment::EgressDenied { detail, count } => {
                self.spec.egress_denied = self.spec.egress_denied.saturating_add(*count);
                ("egress_denied", Some(detail.clone()))
            }
            Amendment::RolledBack(snapshot) => ("rolled_back", Some(snapshot.to_string())),
        }
    }

    /// Idle time that the agent shall watch for.
    pub fn agent_idle_seconds(&self) -> Option<u64> {
        (self.spec.persistent || self.spec.idle_given).then_some(self.spec.idle_timeout_seconds)
    }
}

/// A policy in a few words.
fn network_detail(policy: &NetworkPolicy) -> String {
    let start = match policy.egress {
        Egress::All => "all",
        Egress::None => "none",
    };
    let presets: Vec<_> = policy.presets.iter().map(|preset| preset.as_str()).collect();
    match (policy.allow.len(), policy.deny.len()) {
        (0, 0) if presets.is_empty() => start.to_owned(),
        (allow, deny) => {
            let presets = if presets.is_empty() { String::new() } else { format!(" {}", presets.join(" ")) };
            format!("{start}, {allow} allowed, {deny} denied{presets}")
        }
    }
}

/// That many seconds later; `None` past the end of time.
pub fn after_seconds(at: Timestamp, seconds: u64) -> Option<Timestamp> {
    at.checked_add(SignedDuration::from_secs(i64::try_from(seconds).ok()?)).ok()
}

/// What was used between two totals. A total that went back began again at zero.
pub fn usage_since(before: Usage, now: Usage) -> Usage {
    let since = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now);
    Usage {
        cpu_ms: since(before.cpu_ms, now.cpu_ms),
        memory_mb_seconds: since(before.memory_mb_seconds, now.memory_mb_seconds),
        asleep_seconds: since(before.asleep_seconds, now.asleep_seconds),
        sent_bytes: since(before.sent_bytes, now.sent_bytes),
        received_bytes: since(before.received_bytes, now.received_bytes),
    }
}
