//! The states of a sandbox and the one function that moves between them.
//!
//! ```text
//!               Created            Paused
//!   creating ------------> running ------> paused
//!      |                   ^  |  ^ Resumed   |
//!      |                   |  |  +-----------+
//!      |             Woken |  | Hibernated   | Hibernated
//!      |                   |  v              |
//!      |                 hibernated <--------+
//!      v
//!    failed <--- Lost (from creating, running, paused)       any but deleted --Deleting--> stopping --Deleted--> deleted
//! ```

use serde::{Deserialize, Serialize};

/// State of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// Being created; not usable yet.
    Creating,
    /// Running.
    Running,
    /// In memory, with stopped vCPUs.
    Paused,
    /// Asleep; the next call wakes it.
    Hibernated,
    /// Being deleted.
    Stopping,
    /// Failed; its events show the reason.
    Failed,
    /// Deleted; not listed.
    Deleted,
}

/// Location of a sleeping sandbox's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Residency {
    /// Suspended in memory.
    Memory,
    /// Written to disk; the sandbox uses no process, network slot or memory.
    Disk,
}

/// A change of a sandbox's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// Ready for the first command.
    Created,
    /// The vCPUs were stopped.
    Paused,
    /// The vCPUs run again.
    Resumed,
    /// The sandbox went to sleep.
    Hibernated,
    /// The sandbox woke up.
    Woken,
    /// The machine died, or its host lost it.
    Lost,
    /// Deletion started.
    Deleting,
    /// Deletion finished.
    Deleted,
}

/// A transition that the current state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the sandbox is {} and cannot become {}", .state.as_str(), .transition.as_str())]
pub struct TransitionRefused {
    /// Current state.
    pub state: SandboxState,
    /// Requested transition.
    pub transition: Transition,
}

impl SandboxState {
    /// Every state.
    pub const ALL: &'static [SandboxState] = &[
        SandboxState::Creating,
        SandboxState::Running,
        SandboxState::Paused,
        SandboxState::Hibernated,
        SandboxState::Stopping,
        SandboxState::Failed,
        SandboxState::Deleted,
    ];

    /// The state after `transition`. Repeating the transition that led here is allowed and changes nothing.
    pub fn step(self, transition: Transition) -> Result<SandboxState, TransitionRefused> {
        use SandboxState as S;
        use Transition as T;
        match (self, transition) {
            (S::Creating | S::Running, T::Created) => Ok(S::Running),
            (S::Running | S::Paused, T::Paused) => Ok(S::Paused),
            (S::Paused | S::Running, T::Resumed) => Ok(S::Running),
            (S::Running | S::Paused | S::Hibernated, T::Hibernated) => Ok(S::Hibernated),
            (S::Hibernated | S::Running | S::Paused, T::Woken) => Ok(S::Running),
            (S::Creating | S::Running | S::Paused | S::Hibernated | S::Failed, T::Lost) => Ok(S::Failed),
            (S::Deleted, T::Deleting | T::Deleted) => Ok(S::Deleted),
            (_, T::Deleting) => Ok(S::Stopping),
            (S::Stopping, T::Deleted) => Ok(S::Deleted),
            (state, transition) => Err(TransitionRefused { state, transition }),
        }
    }

    /// Returns whether the sandbox has a machine, awake or asleep.
    pub fn is_live(self) -> bool {
        matches!(self, SandboxState::Running | SandboxState::Paused | SandboxState::Hibernated)
    }

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            SandboxState::Creating => "creating",
            SandboxState::Running => "running",
            SandboxState::Paused => "paused",
            SandboxState::Hibernated => "hibernated",
            SandboxState::Stopping => "stopping",
            SandboxState::Failed => "failed",
            SandboxState::Deleted => "deleted",
        }
    }

    /// The state of that name.
    pub fn parse(name: &str) -> Option<SandboxState> {
        Self::ALL.iter().copied().find(|state| state.as_str() == name)
    }
}

impl Transition {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Transition::Created => "created",
            Transition::Paused => "paused",
            Transition::Resumed => "resumed",
            Transition::Hibernated => "hibernated",
            Transition::Woken => "woken",
            Transition::Lost => "lost",
            Transition::Deleting => "deleting",
            Transition::Deleted => "deleted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SandboxState::*;
    use super::*;

    #[track_caller]
    fn check(from: SandboxState, transition: Transition, to: Option<SandboxState>) {
        assert_eq!(from.step(transition).ok(), to, "{from:?} {transition:?}");
    }

    #[test]
    fn a_sandbox_passes_through_its_normal_lifecycle() {
        check(Creating, Transition::Created, Some(Running));
        check(Running, Transition::Hibernated, Some(Hibernated));
        check(Hibernated, Transition::Woken, Some(Running));
        check(Running, Transition::Deleting, Some(Stopping));
        check(Stopping, Transition::Deleted, Some(Deleted));
    }

    #[test]
    fn ended_sandboxes_cannot_be_revived() {
        for transition in [Transition::Created, Transition::Woken, Transition::Resumed, Transition::Lost] {
            check(Deleted, transition, None);
            check(Stopping, transition, None);
        }
        check(Failed, Transition::Woken, None);
    }

    #[test]
    fn every_state_can_be_deleted() {
        for &state in SandboxState::ALL {
            assert!(state.step(Transition::Deleting).is_ok(), "{state:?}");
        }
    }

    #[test]
    fn repeating_a_transition_changes_nothing() {
        for &state in SandboxState::ALL {
            for transition in [
                Transition::Created,
                Transition::Paused,
                Transition::Resumed,
                Transition::Hibernated,
                Transition::Woken,
                Transition::Lost,
                Transition::Deleted,
            ] {
                if let Ok(next) = state.step(transition) {
                    assert_eq!(next.step(transition), Ok(next), "{state:?} {transition:?}");
                }
            }
        }
    }

    #[test]
    fn names_round_trip() {
        for &state in SandboxState::ALL {
            assert_eq!(SandboxState::parse(state.as_str()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}
