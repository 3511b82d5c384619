//! Frozen machine states of a host: their components, and control's verdicts on outdated ones.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::OutdatedAction;
use crate::{SandboxId, SnapshotId};

/// Versions of the programs in a machine's state. A missing one is unknown: the state was written
/// before versions were recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Components {
    /// Release of the guest kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// The guest program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestVersion>,
    /// The engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineVersion>,
}

/// A build of the guest program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestVersion {
    /// Version.
    pub version: String,
    /// Digest of the program.
    pub build: String,
}

/// A version of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineVersion {
    /// Name, such as `qemu-tcg`.
    pub name: String,
    /// Version, as the engine prints it.
    pub version: String,
}

/// The frozen states of a host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFrozen {
    /// Components of machines that the host boots now.
    pub current: Components,
    /// Sandboxes that sleep with their memory.
    pub sandboxes: Vec<FrozenSandbox>,
    /// Snapshots, also those of services.
    pub snapshots: Vec<FrozenSnapshot>,
    /// Bakes of the platform's templates.
    pub templates: Vec<FrozenTemplate>,
}

/// The state of a sleeping sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenSandbox {
    /// The sandbox.
    pub id: SandboxId,
    /// Components of the state.
    pub components: Components,
    /// Decision about the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<OutdatedVerdict>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenSnapshot {
    /// The snapshot.
    pub id: SnapshotId,
    /// Components of the state.
    pub components: Components,
    /// Decision about the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<OutdatedVerdict>,
}

/// A bake of a template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenTemplate {
    /// Name of the template; with `+` and a size for another than its own.
    pub name: String,
    /// Components of the state.
    pub components: Components,
}

/// The action for an outdated state when it is used. The agent keeps the verdict with the state,
/// because it wakes sandboxes without asking control.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutdatedVerdict {
    /// When the owner was notified.
    pub reported_at: Timestamp,
    /// Time from which the action is taken.
    pub from: Timestamp,
    /// The action.
    pub action: OutdatedAction,
    /// The outdated components, in a sentence that begins with the state.
    pub reason: String,
}

impl OutdatedVerdict {
    /// Returns whether the action is taken at that time.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.action != OutdatedAction::Keep && self.from <= now
    }
}

/// New verdicts for states of a host. States that are not named keep theirs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutdatedVerdicts {
    /// Verdicts on sandboxes; `None` removes one.
    pub sandboxes: Vec<(SandboxId, Option<OutdatedVerdict>)>,
    /// Verdicts on snapshots; `None` removes one.
    pub snapshots: Vec<(SnapshotId, Option<OutdatedVerdict>)>,
}
