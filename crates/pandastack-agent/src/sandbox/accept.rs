//! Decides whether a request may be served in a given state: a pure table.

use pandastack_types::SandboxState;

/// A kind of request to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// Talk to the guest: exec, files, ports.
    Use,
    Pause,
    Resume,
    Hibernate,
    Wake,
    Snapshot,
    Fork,
    Rollback,
}

/// The decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Do it on the machine.
    Do,
    /// The sandbox is already in that state.
    Already,
    /// Wake the sandbox; then, for [`Request::Use`], serve it.
    Wake,
    /// Run the stopped processors.
    Resume,
    /// Work from the sleeper's snapshot; it stays asleep.
    FromSleep,
    /// Answer 409 with this sentence.
    Refuse(&'static str),
}

/// The table.
pub(crate) fn accept(state: SandboxState, request: Request) -> Verdict {
    use Request as R;
    use SandboxState as S;
    match (state, request) {
        (S::Running, R::Use | R::Pause | R::Hibernate | R::Snapshot | R::Fork) => Verdict::Do,
        (S::Running | S::Paused | S::Hibernated, R::Rollback) => Verdict::Do,
        (S::Running, R::Resume | R::Wake) => Verdict::Already,
        (S::Paused, R::Hibernate | R::Snapshot | R::Fork) => Verdict::Do,
        (S::Paused, R::Pause) => Verdict::Already,
        (S::Paused, R::Resume | R::Wake) => Verdict::Resume,
        (S::Paused, R::Use) => Verdict::Refuse("the sandbox is paused; resume it first"),
        (S::Hibernated, R::Use | R::Resume | R::Wake) => Verdict::Wake,
        (S::Hibernated, R::Hibernate) => Verdict::Already,
        (S::Hibernated, R::Snapshot | R::Fork) => Verdict::FromSleep,
        (S::Hibernated, R::Pause) => {
            Verdict::Refuse("the sandbox is asleep; a sleeping sandbox cannot be paused")
        }
        (S::Creating, _) => Verdict::Refuse("the sandbox is still being created"),
        (S::Stopping | S::Deleted, _) => Verdict::Refuse("the sandbox is being deleted"),
        (S::Failed, _) => {
            Verdict::Refuse("the sandbox has failed; its events say why. Delete it and create a new one")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(state: SandboxState, request: Request, verdict: Verdict) {
        assert_eq!(accept(state, request), verdict, "{state:?} {request:?}");
    }

    #[test]
    fn a_hibernated_sandbox_wakes_only_for_use() {
        check(SandboxState::Hibernated, Request::Use, Verdict::Wake);
        check(SandboxState::Hibernated, Request::Fork, Verdict::FromSleep);
        check(SandboxState::Hibernated, Request::Snapshot, Verdict::FromSleep);
    }

    #[test]
    fn repeated_lifecycle_requests_are_idempotent() {
        check(SandboxState::Paused, Request::Pause, Verdict::Already);
        check(SandboxState::Running, Request::Wake, Verdict::Already);
        check(SandboxState::Hibernated, Request::Hibernate, Verdict::Already);
    }

    #[test]
    fn failed_and_deleted_sandboxes_refuse_requests() {
        for state in [SandboxState::Failed, SandboxState::Stopping, SandboxState::Deleted] {
            for request in [Request::Use, Request::Wake, Request::Fork, Request::Snapshot, Request::Hibernate]
            {
                assert!(matches!(accept(state, request), Verdict::Refuse(_)), "{state:?} {request:?}");
            }
        }
    }
}
