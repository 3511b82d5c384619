//! One attempt of one run, and the interface that makes it.

use async_trait::async_trait;
use pandastack_store::schedules::{RunOutcome, RunRecord, RunState, ScheduleRecord};
use tokio_util::sync::CancellationToken;

/// The end of an attempt.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// In which state.
    pub state: RunState,
    /// Result.
    pub outcome: RunOutcome,
}

/// Runs targets.
#[async_trait]
pub(crate) trait Runner: Send + Sync {
    /// Makes one attempt. Once `stop` is cancelled, the result is discarded.
    async fn attempt(&self, schedule: &ScheduleRecord, run: &RunRecord, stop: &CancellationToken) -> Attempt;
}
