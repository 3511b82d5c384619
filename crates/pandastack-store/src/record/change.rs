//! Pure rules of how a sandbox changes.

use jiff::{SignedDuration, Timestamp};
use pandastack_types::agent_api::AgentSandbox;
use pandastack_types::api::{Checkpoints, Keep, OnTimeout};
use pandastack_types::network::{Egress, NetworkPolicy};
use pandastack_types::preview::Visibility;
use pandastack_types::{SandboxState, SnapshotId, Transition, TransitionRefused};

use super::sandbox::SandboxRecord;
use crate::StoreError;

/// Data of a transition.
#[derive(Debug, Clone, Default)]
pub struct Change {
    /// Time of the transition.
    pub at: Timestamp,
    /// Reason, as a sentence.
    pub detail: Option<String>,
    /// The sandbox as its agent sees it.
    pub seen: Option<Box<AgentSandbox>>,
    /// Milliseconds for which the parent of a fork was paused.
    pub pause_ms: Option<f64>,
    /// The transition is the end of a lifetime: the lifetime does not end again until the sandbox
    /// wakes.
    pub ends_lifetime: bool,
    /// State that the sandbox keeps when it is put to sleep.
    pub kept: Option<Keep>,
}

impl Change {
    /// A change without details.
    pub fn at(at: Timestamp) -> Self {
        Self { at, ..Self::default() }
    }

    /// Adds a reason.
    pub fn because(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds the agent's view.
    pub fn with_observed(mut self, seen: AgentSandbox) -> Self {
        self.seen = Some(Box::new(seen));
        self
    }
}

/// A change other than a state transition.
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
        /// Action at the end of the lifetime.
        on_timeout: OnTimeout,
        /// End of the lifetime.
        expires_at: Option<Timestamp>,
    },
    /// The sandbox was rolled back to a snapshot.
    RolledBack(SnapshotId),
    /// Other people may open its ports.
    Visibility(Visibility),
    /// Tokens and signed URLs of its previews were revoked.
    PreviewsRevoked,
    /// The network policy changed.
    Network(Box<NetworkPolicy>),
    /// The sandbox, or a snapshot of it, is frozen with outdated components.
    Outdated {
        /// The outdated components, and the action with its time.
        detail: String,
    },
    /// The network policy refused a connection or lookup.
    EgressDenied {
        /// The destination, as a sentence.
        detail: String,
        /// Occurrences since the last report.
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
        // A sandbox may be woken before the record says that its lifetime ended in sleep.
        let sleeps_at_end = self.spec.on_timeout == OnTimeout::Hibernate;
        let is_over = self.expires_at.is_none_or(|at| sleeps_at_end && at <= change.at);
        if restarts && is_over && !self.spec.persistent {
            self.expires_at = after_seconds(change.at, self.spec.ttl_seconds);
        }
        Ok(moved)
    }

    /// Applies the fields that only the agent knows. Usage totals are recorded as usage events
    /// instead.
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

    /// Promotes a child of a fork: it is no longer a candidate. Refuses a child without a machine,
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
            Amendment::Outdated { detail } => ("outdated", Some(detail.clone())),
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

/// Adds seconds to a time; `None` past the end of time.
pub fn after_seconds(at: Timestamp, seconds: u64) -> Option<Timestamp> {
    at.checked_add(SignedDuration::from_secs(i64::try_from(seconds).ok()?)).ok()
}
