//! Records of schedules and their runs.
//!
//! ```text
//!            +--------- no retry, or no more ----> success | error | timeout
//!   queued --+--> running --- failed, tried again ----> queued (with a later `not_before`)
//!     | ^    +--> skipped | cancelled
//!     v |
//!   waiting: for an earlier run; queued again when one ends
//! ```
//!
//! Must hold: a schedule has one run per instant, by a unique index; the runs of an instant and the
//! schedule's cursor change in one transaction, and only if the schedule is unchanged since it was
//! read ([`DueRuns::revision`]); a run that is `running` names the process that works on it.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::{RunOrigin, RunStatus, ScheduleOptions, ScheduleTarget, ScheduleTiming};
use pandastack_types::{SandboxId, ScheduleId, ScheduleRunId, WorkspaceId};
use serde::{Deserialize, Serialize};

use super::Result;

/// The definition of a schedule, without its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduleSpec {
    /// When; checked.
    pub timing: ScheduleTiming,
    /// Intervals count from here.
    pub anchor: Timestamp,
    /// Target of the schedule.
    pub target: ScheduleTarget,
    /// Options, with every default filled in.
    pub options: ScheduleOptions,
    /// Reason why it is paused, if no client paused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_reason: Option<String>,
}

/// An alert that is still to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingAlert {
    /// The run that it is about.
    pub run: ScheduleRunId,
    /// Times it was tried.
    pub attempts: u32,
    /// Time of the next attempt.
    pub at: Timestamp,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleRecord {
    /// Id.
    pub id: ScheduleId,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// Human-readable name.
    pub name: String,
    /// The definition of the schedule.
    pub spec: ScheduleSpec,
    /// Whether the schedule is paused.
    pub paused: bool,
    /// Every instant up to here is decided.
    pub cursor: Timestamp,
    /// The next one.
    pub next_run_at: Option<Timestamp>,
    /// Counts changes.
    pub revision: i64,
    /// Failures in a row.
    pub failures: u32,
    /// Time at which the last run was due.
    pub last_run_at: Option<Timestamp>,
    /// An alert that is still to be sent.
    pub alert: Option<PendingAlert>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of the last change by a client.
    pub updated_at: Timestamp,
}

impl ScheduleRecord {
    /// Records the final result of a scheduled run: counts failures, and pauses or alerts after
    /// enough in a row.
    pub fn note_end(&mut self, run: &ScheduleRunId, state: RunState, at: Timestamp) {
        match state {
            RunState::Success => self.failures = 0,
            RunState::Error | RunState::Timeout => self.failures = self.failures.saturating_add(1),
            _ => return,
        }
        let options = &self.spec.options;
        let alert = options.alert.as_ref().map_or(0, |alert| alert.after_failures);
        if alert > 0 && self.failures == alert {
            self.alert = Some(PendingAlert { run: run.clone(), attempts: 0, at });
        }
        let pause = options.pause_after_failures.unwrap_or(0);
        if pause > 0 && self.failures >= pause && !self.paused {
            (self.paused, self.next_run_at) = (true, None);
            self.spec.paused_reason = Some(format!("{} runs in a row failed", self.failures));
        }
    }
}

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// Starts when its time comes.
    Queued,
    /// Starts when an earlier run has ended.
    Waiting,
    /// In progress.
    Running,
    /// Done.
    Success,
    /// Failed.
    Error,
    /// Took too long.
    Timeout,
    /// Skipped.
    Skipped,
    /// Cancelled.
    Cancelled,
}

impl RunState {
    const ALL: [RunState; 8] = [
        RunState::Queued,
        RunState::Waiting,
        RunState::Running,
        RunState::Success,
        RunState::Error,
        RunState::Timeout,
        RunState::Skipped,
        RunState::Cancelled,
    ];

    /// The name in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            RunState::Queued => "queued",
            RunState::Waiting => "waiting",
            RunState::Running => "running",
            RunState::Success => "success",
            RunState::Error => "error",
            RunState::Timeout => "timeout",
            RunState::Skipped => "skipped",
            RunState::Cancelled => "cancelled",
        }
    }

    /// The state of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// The status in API responses.
    pub fn status(self) -> RunStatus {
        match self {
            RunState::Queued | RunState::Waiting => RunStatus::Queued,
            RunState::Running => RunStatus::Running,
            RunState::Success => RunStatus::Success,
            RunState::Error => RunStatus::Error,
            RunState::Timeout => RunStatus::Timeout,
            RunState::Skipped => RunStatus::Skipped,
            RunState::Cancelled => RunStatus::Cancelled,
        }
    }
}

/// The result of a run so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunOutcome {
    /// Exit code of a command; 0 for other successes, -1 for other failures.
    pub exit_code: i32,
    /// Status of an HTTP answer.
    pub http_status: Option<u16>,
    /// Standard output, or the response.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Some of it was dropped.
    pub truncated: bool,
    /// Reason why it failed, was skipped or was cancelled.
    pub error: Option<String>,
    /// Time of the last try.
    pub duration_ms: u64,
    /// Sandbox of the run.
    pub sandbox: Option<SandboxId>,
    /// Missed instants before this one that get no run.
    pub missed: u32,
}

/// A run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// Id.
    pub id: ScheduleRunId,
    /// Owner.
    pub schedule: ScheduleId,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// Origin of the run.
    pub origin: RunOrigin,
    /// The scheduled instant that the run is for.
    pub scheduled_for: Timestamp,
    /// State.
    pub state: RunState,
    /// Earliest start.
    pub not_before: Timestamp,
    /// Started attempts.
    pub attempt: u32,
    /// Attempts that ended with their server.
    pub interruptions: u32,
    /// Catches up on a missed run.
    pub is_catch_up: bool,
    /// Time at which the run was recorded.
    pub created_at: Timestamp,
    /// Start of the last attempt.
    pub started_at: Option<Timestamp>,
    /// Time at which the run ended, without further attempts.
    pub ended_at: Option<Timestamp>,
    /// Result.
    pub outcome: RunOutcome,
}

/// The decision about the due runs of a schedule.
#[derive(Debug, Clone)]
pub struct DueRuns {
    /// Owner.
    pub schedule: ScheduleId,
    /// The revision that was read.
    pub revision: i64,
    /// Instants up to this time are decided.
    pub cursor: Timestamp,
    /// Time of the next run.
    pub next_run_at: Option<Timestamp>,
    /// The runs.
    pub runs: Vec<RunRecord>,
}

/// The runs claimed by one read of the queue.
#[derive(Debug, Default)]
pub struct ClaimedRuns {
    /// Started runs, with their schedules.
    pub started: Vec<(ScheduleRecord, RunRecord)>,
    /// Runs that ended without a start, or because a later one replaces them.
    pub ended: Vec<ScheduleRunId>,
}

/// Result of an attempt.
#[derive(Debug, Clone)]
pub struct RunEnd {
    /// Run ID.
    pub run: ScheduleRunId,
    /// The process that worked on it.
    pub instance: String,
    /// Success, error, timeout or cancelled.
    pub state: RunState,
    /// Result.
    pub outcome: RunOutcome,
    /// Time of the next attempt; `None` if there is none.
    pub retry_at: Option<Timestamp>,
    /// Now.
    pub at: Timestamp,
}

/// Schedules.
#[async_trait]
pub trait ScheduleStore: Send + Sync {
    /// Adds one. Quota: `SCHEDULES_PER_WORKSPACE_MAX`.
    async fn insert_schedule(&self, schedule: &ScheduleRecord) -> Result<()>;
    /// A schedule of a workspace.
    async fn schedule(&self, workspace: &WorkspaceId, id: &ScheduleId) -> Result<ScheduleRecord>;
    /// Schedules of a workspace, oldest first.
    async fn schedules(&self, workspace: &WorkspaceId) -> Result<Vec<ScheduleRecord>>;
    /// Schedules of all workspaces that have a next run.
    async fn schedules_pending(&self) -> Result<Vec<ScheduleRecord>>;
    /// Replaces a schedule if it is still at `record.revision`, and makes waiting runs due again;
    /// returns whether it did.
    async fn replace_schedule(&self, record: &ScheduleRecord) -> Result<bool>;
    /// Removes a schedule with its runs; returns the runs that were in progress.
    async fn delete_schedule(&self, workspace: &WorkspaceId, id: &ScheduleId) -> Result<Vec<ScheduleRunId>>;
    /// Schedules whose next run is due, longest overdue first.
    async fn schedules_due(&self, at: Timestamp, limit: u32) -> Result<Vec<ScheduleRecord>>;
    /// Stores decisions, each if its schedule is still at the revision that was read; returns their
    /// number.
    async fn fire(&self, firings: &[DueRuns]) -> Result<u64>;
    /// Time of the next work: a firing, an alert, or with `with_runs` a run that may start.
    async fn next_schedule_work(&self, with_runs: bool) -> Result<Option<Timestamp>>;
    /// Alerts to be sent now; each counts as tried, and is retried at `retry_at` unless it is settled.
    async fn claim_alerts(
        &self,
        at: Timestamp,
        retry_at: Timestamp,
        limit: u32,
    ) -> Result<Vec<(ScheduleRecord, RunRecord)>>;
    /// Records that an alert was sent, or is no longer retried.
    async fn settle_alert(&self, id: &ScheduleId, run: &ScheduleRunId) -> Result<()>;
}

/// Runs of schedules.
#[async_trait]
pub trait RunStore: Send + Sync {
    /// Adds a run requested by a client.
    async fn insert_run(&self, run: &RunRecord) -> Result<()>;
    /// Starts due runs, as far as the overlap policy allows, at most `limit`.
    async fn claim_runs(&self, instance: &str, at: Timestamp, limit: u32) -> Result<ClaimedRuns>;
    /// Ends an attempt; `false` if the run has already ended in another way.
    async fn end_run(&self, end: &RunEnd) -> Result<bool>;
    /// Cancels a run; `false` if it has already ended.
    async fn cancel_run(&self, workspace: &WorkspaceId, id: &ScheduleRunId, at: Timestamp) -> Result<bool>;
    /// Takes over the runs of processes that have ended: scheduled runs are retried, and runs that
    /// a client waited for fail. Returns the number of runs.
    async fn take_over_runs(&self, instance: &str, at: Timestamp) -> Result<u64>;
    /// Returns the run of a workspace's schedule.
    async fn run(
        &self,
        workspace: &WorkspaceId,
        schedule: &ScheduleId,
        id: &ScheduleRunId,
    ) -> Result<RunRecord>;
    /// Runs of a schedule recorded before a time, newest first.
    async fn runs(
        &self,
        workspace: &WorkspaceId,
        schedule: &ScheduleId,
        before: Option<Timestamp>,
        limit: u32,
    ) -> Result<Vec<RunRecord>>;
    /// Removes runs that ended before a time, and per schedule all but the last `per_schedule` that ended.
    async fn prune_runs(&self, before: Timestamp, per_schedule: u32) -> Result<u64>;
}
