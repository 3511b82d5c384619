//! Decides whether a run may start while others of its schedule are in progress.

use pandastack_types::api::Overlap;
use pandastack_types::limits::{RUNS_PER_SCHEDULE_MAX, RUNS_WAITING_MAX};

/// The decision about a run that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The run begins.
    Start,
    /// Runs in progress are ended, then this one starts.
    Replace,
    /// The run waits until one in progress has ended.
    Wait,
    /// The run is skipped, because another is in progress.
    Skip,
    /// The run is skipped, because too many wait already.
    Full,
}

/// Decides whether a run may start. `in_progress` counts runs that have begun, including runs that
/// wait for a retry; `waiting` counts runs that wait for them. A run that catches up a missed time
/// is not skipped because of other runs: it waits.
pub fn admit(overlap: Overlap, in_progress: u64, waiting: u64, is_catch_up: bool) -> Admission {
    if in_progress == 0 {
        return Admission::Start;
    }
    match overlap {
        Overlap::Allow if in_progress < RUNS_PER_SCHEDULE_MAX => Admission::Start,
        Overlap::Skip if !is_catch_up => Admission::Skip,
        Overlap::Replace if !is_catch_up => Admission::Replace,
        _ if waiting >= RUNS_WAITING_MAX => Admission::Full,
        _ => Admission::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_overlap_policy_is_applied() {
        use Admission as A;
        for (overlap, in_progress, waiting, is_catch_up, expected) in [
            (Overlap::Skip, 0, 0, false, A::Start),
            (Overlap::Skip, 1, 0, false, A::Skip),
            (Overlap::Skip, 1, 0, true, A::Wait),
            (Overlap::Queue, 1, 0, false, A::Wait),
            (Overlap::Queue, 1, RUNS_WAITING_MAX - 1, false, A::Wait),
            (Overlap::Queue, 1, RUNS_WAITING_MAX, false, A::Full),
            (Overlap::Replace, 1, 0, false, A::Replace),
            (Overlap::Replace, 1, 0, true, A::Wait),
            (Overlap::Allow, RUNS_PER_SCHEDULE_MAX - 1, 0, false, A::Start),
            (Overlap::Allow, RUNS_PER_SCHEDULE_MAX, 0, false, A::Wait),
        ] {
            assert_eq!(
                admit(overlap, in_progress, waiting, is_catch_up),
                expected,
                "{overlap:?} {in_progress}"
            );
        }
    }
}
