//! Schedules and their runs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schedule_target::ScheduleTarget;
use crate::{SandboxId, ScheduleId, ScheduleRunId, WorkspaceId};

/// When a schedule runs: exactly one of `cron`, `every_seconds` and `at`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleTiming {
    /// Cron expression with five fields (minute, hour, day of month, month, day of week), which support
    /// names, lists, ranges, steps, `L`, `W` and `#`; or `@hourly`, `@daily`, `@weekly`, `@monthly` or
    /// `@yearly`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// IANA time zone of `cron`. Default: `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Seconds between runs, counted from when the schedule was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u64>,
    /// Time of a single run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub at: Option<Timestamp>,
}

/// What to do when a run is due while an earlier one is in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Skip the new run.
    #[default]
    Skip,
    /// Queue the new run.
    Queue,
    /// Cancel the earlier run.
    Replace,
    /// Run both.
    Allow,
}

/// What to do with runs that were missed during downtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissedRuns {
    /// Skip them, unless the last one is at most `starting_deadline_seconds` late.
    Skip,
    /// Start one run for all of them.
    #[default]
    RunOnce,
    /// Start the last `missed_max` of them, oldest first.
    RunAll,
}

/// Notification about runs that keep failing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleAlert {
    /// URL that receives a `POST` with the schedule and its last run.
    pub url: String,
    /// Number of consecutive failures before a notification.
    pub after_failures: u32,
}

/// Options of a schedule. On create, omitted options have their defaults; on update, they are kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleOptions {
    /// What to do when a run is due while an earlier one is in progress. Default: `skip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// What to do with runs that were missed during downtime. Default: `run_once`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<MissedRuns>,
    /// Maximum number of missed runs to start with `run_all`. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_max: Option<u32>,
    /// Latest start of a run with `missed: skip`, in seconds after its time. Default: 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting_deadline_seconds: Option<u64>,
    /// Maximum delay of a run in seconds. The delay is fixed for a schedule and a time. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_seconds: Option<u64>,
    /// Timeout of each attempt in seconds. Default: 300; 3 hours to rebuild a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Maximum retries of a failed run. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Delay before the first retry in seconds; it doubles with each retry. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay_seconds: Option<u64>,
    /// Notification about runs that keep failing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alert: Option<ScheduleAlert>,
    /// Number of consecutive failures after which the schedule is paused; 0 for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_after_failures: Option<u32>,
}

/// Request body of `POST /v1/schedules`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateSchedule {
    /// Human-readable name.
    #[serde(default)]
    pub name: String,
    /// When the schedule runs.
    #[serde(flatten)]
    pub timing: ScheduleTiming,
    /// Action of the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<ScheduleTarget>,
    /// Short form of a target of type `function`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_id: Option<String>,
    /// Options of the schedule.
    #[serde(flatten)]
    pub options: ScheduleOptions,
    /// Create the schedule paused.
    #[serde(default)]
    pub paused: bool,
}

/// Request body of `PATCH /v1/schedules/{id}`. Omitted settings are kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PatchSchedule {
    /// Human-readable name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When the schedule runs. Setting one of the three kinds replaces the others.
    #[serde(flatten)]
    pub timing: ScheduleTiming,
    /// Action of the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<ScheduleTarget>,
    /// Options of the schedule.
    #[serde(flatten)]
    pub options: ScheduleOptions,
    /// Pause or resume the schedule. Runs that are due while it is paused do not count as missed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// Schedule ID.
    pub id: ScheduleId,
    /// Workspace of the schedule.
    pub workspace: WorkspaceId,
    /// Human-readable name.
    pub name: String,
    /// Function that the schedule calls; empty for other targets.
    pub function_id: String,
    /// Cron expression; empty for intervals and single runs.
    pub cron: String,
    /// Time zone of `cron`.
    pub timezone: String,
    /// Seconds between runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u64>,
    /// Time of a single run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub at: Option<Timestamp>,
    /// Action of the schedule.
    pub target: ScheduleTarget,
    /// Options of the schedule, including defaults.
    #[serde(flatten)]
    pub options: ScheduleOptions,
    /// Whether the schedule is paused.
    pub paused: bool,
    /// Reason for the pause, unless a client paused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_reason: Option<String>,
    /// Number of failures since the last success.
    pub consecutive_failures: u32,
    /// Time when the last run was due or requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_run_at: Option<Timestamp>,
    /// Time when the next run is due; absent if paused or finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_run_at: Option<Timestamp>,
    /// Creation time.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time of the last change by a client.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// Status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Waiting for its first or next attempt.
    Queued,
    /// In progress.
    Running,
    /// Succeeded.
    Success,
    /// Failed, with no more retries.
    Error,
    /// Timed out, with no more retries.
    Timeout,
    /// Skipped, because an earlier run was in progress or the time was missed.
    Skipped,
    /// Cancelled by a client or replaced by a later run.
    Cancelled,
}

/// Origin of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunOrigin {
    /// The schedule was due.
    Schedule,
    /// A client requested it.
    Manual,
}

/// A run of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleRun {
    /// Run ID.
    pub id: ScheduleRunId,
    /// Run ID again, under the name that a trigger answers.
    pub run_id: ScheduleRunId,
    /// Schedule ID.
    pub schedule_id: ScheduleId,
    /// Function that the run called; empty for other targets.
    pub function_id: String,
    /// Sandbox that the run used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Current status.
    pub status: RunStatus,
    /// Origin of the run.
    pub origin: RunOrigin,
    /// Time that the run was scheduled for. A schedule has at most one run for a time.
    #[schema(value_type = String, format = DateTime)]
    pub scheduled_for: Timestamp,
    /// Number of attempts so far, including those that a server restart interrupted.
    pub attempt: u32,
    /// Exit code of a command; 0 for other successes, -1 for other failures.
    pub exit_code: i32,
    /// HTTP status of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// Standard output, or the response body.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Whether output beyond the limit was dropped.
    pub truncated: bool,
    /// Reason why the run failed, was skipped or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Number of earlier times that were missed and get no run of their own.
    pub missed: u32,
    /// Duration of the last attempt.
    pub duration_ms: u64,
    /// Start time of the last attempt; before the first attempt, the time when the run was recorded.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// End time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
}

/// Request body of `POST /v1/schedules/{id}/trigger`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TriggerSchedule {
    /// Set to `false` to return immediately, without waiting for the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<bool>,
}

/// Request body of `POST /v1/schedules/preview`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PreviewSchedule {
    /// Timing to preview.
    #[serde(flatten)]
    pub timing: ScheduleTiming,
    /// Show times after this one. Default: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub after: Option<Timestamp>,
    /// Number of times to show. Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}
