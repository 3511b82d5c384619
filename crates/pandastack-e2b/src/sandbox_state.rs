//! The state of a sandbox, in the terms of E2B's clients.

use pandastack_types::SandboxState;
use pandastack_types::api::Sandbox;

/// Label of a sandbox that traffic wakes.
pub(crate) const AUTO_RESUME_LABEL: &str = "e2b.auto_resume";

/// Returns whether a sandbox is paused. Clients do not distinguish paused from hibernated.
pub(crate) fn is_paused(sandbox: &Sandbox) -> bool {
    matches!(sandbox.status, SandboxState::Paused | SandboxState::Hibernated)
}

/// Returns whether clients see the sandbox at all. To them a failed or stopping sandbox does not
/// exist.
pub(crate) fn is_visible(sandbox: &Sandbox) -> bool {
    matches!(sandbox.status, SandboxState::Running | SandboxState::Paused | SandboxState::Hibernated)
}

/// Returns whether traffic wakes the sandbox.
pub(crate) fn auto_resumes(sandbox: &Sandbox) -> bool {
    sandbox.metadata.get(AUTO_RESUME_LABEL).is_some_and(|value| value == "true")
}
