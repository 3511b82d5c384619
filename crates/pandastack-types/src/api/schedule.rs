//! Schedules and their runs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ExecRequest;
use crate::{SandboxId, ScheduleId, ScheduleRunId, WorkspaceId};

/// When a schedule runs: exactly one of `cron`, `every_seconds` and `at`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleTiming {
    /// Five fields (minute, hour, day of month, month, day of week), with names, lists, ranges, steps, `L`, `W` and `#`,
    /// or one of `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// IANA time zone of `cron`; `UTC` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Seconds from one run to the next, counted from when the schedule was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u64>,
    /// Once, at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub at: Option<Timestamp>,
}

/// What happens when a run is due while an earlier one is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// The later one is not run.
    #[default]
    Skip,
    /// The later one waits.
    Queue,
    /// The earlier one is ended.
    Replace,
    /// Both run.
    Allow,
}

/// What happens to times that passed while nothing could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MissedRuns {
    /// Nothing, unless the last of them is at most `starting_deadline_seconds` ago.
    Skip,
    /// One run stands for all of them.
    #[default]
    RunOnce,
    /// The last `missed_max` of them run, oldest first.
    RunAll,
}

/// What a run does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ScheduleTarget {
    /// An HTTP request. Any answer but 2xx is a failure; redirects are not followed.
    Http(HttpTarget),
    /// A command, in a sandbox that exists (and is woken for it) or in one of its own that is gone afterwards.
    Command(CommandTarget),
    /// Wakes or hibernates a sandbox.
    Sandbox(SandboxTarget),
    /// An HTTP request to an app, which wakes for it. Any answer but 2xx is a failure.
    App(AppTarget),
    /// Invokes a function.
    Function(FunctionTarget),
    /// Runs SQL on a database.
    Sql(SqlTarget),
}

/// See [`ScheduleTarget::Http`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HttpTarget {
    /// `http` or `https`.
    pub url: String,
    /// `POST` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Sent with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// See [`ScheduleTarget::Command`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommandTarget {
    /// Where; a fresh sandbox of `template` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Template of the fresh sandbox; `base` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The command. Its timeout is the schedule's.
    #[serde(flatten)]
    pub exec: ExecRequest,
}

/// See [`ScheduleTarget::Sandbox`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxTarget {
    /// Which.
    pub sandbox_id: SandboxId,
    /// What to do with it.
    pub action: SandboxAction,
}

/// What a schedule does with a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxAction {
    /// Wake it.
    Wake,
    /// Put it to sleep on disk.
    Hibernate,
}

/// See [`ScheduleTarget::App`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppTarget {
    /// Which, by id or name.
    pub app_id: String,
    /// Path, and a query if it has one; `/` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// `POST` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Sent with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// See [`ScheduleTarget::Function`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionTarget {
    /// Which.
    pub function_id: String,
    /// Its input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<serde_json::Value>,
}

/// See [`ScheduleTarget::Sql`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SqlTarget {
    /// Which.
    pub database_id: String,
    /// Statements.
    pub sql: String,
}

/// Whom to tell when runs keep failing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleAlert {
    /// Gets a `POST` with the schedule and the last run.
    pub url: String,
    /// After this many failures in a row.
    pub after_failures: u32,
}

/// How a schedule runs. Absent fields have their defaults on create, and stay as they are on change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleOptions {
    /// `skip` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
    /// `run_once` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed: Option<MissedRuns>,
    /// Most runs of `run_all`; 10 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_max: Option<u32>,
    /// With `missed: skip`, how late a run may still begin; 30 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting_deadline_seconds: Option<u64>,
    /// Each run begins up to this much later, by an amount that is fixed for its schedule and time; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_seconds: Option<u64>,
    /// A try that takes longer is ended; 300 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// How often a failed run is tried again; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Wait before the first of them, doubled for each further one; 10 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_delay_seconds: Option<u64>,
    /// Whom to tell when runs keep failing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alert: Option<ScheduleAlert>,
    /// The schedule is paused after this many failures in a row; 0 for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_after_failures: Option<u32>,
}

/// `POST /v1/schedules`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateSchedule {
    /// Name for people.
    #[serde(default)]
    pub name: String,
    /// When.
    #[serde(flatten)]
    pub timing: ScheduleTiming,
    /// What.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<ScheduleTarget>,
    /// Short for a target of type `function`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_id: Option<String>,
    /// How.
    #[serde(flatten)]
    pub options: ScheduleOptions,
    /// Made, but not run until resumed.
    #[serde(default)]
    pub paused: bool,
}

/// `PATCH /v1/schedules/{id}`: what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PatchSchedule {
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When. Giving one of its three kinds replaces the others.
    #[serde(flatten)]
    pub timing: ScheduleTiming,
    /// What.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<ScheduleTarget>,
    /// How.
    #[serde(flatten)]
    pub options: ScheduleOptions,
    /// Stop or go on. Times that pass while it is paused are not missed runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// A schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Schedule {
    /// Its id.
    pub id: ScheduleId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Name for people.
    pub name: String,
    /// The function it invokes; empty for other targets.
    pub function_id: String,
    /// Its cron expression; empty for intervals and one-off schedules.
    pub cron: String,
    /// Time zone of `cron`.
    pub timezone: String,
    /// Its interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u64>,
    /// Its one time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub at: Option<Timestamp>,
    /// What it does.
    pub target: ScheduleTarget,
    /// How, with every default filled in.
    #[serde(flatten)]
    pub options: ScheduleOptions,
    /// Whether it rests.
    pub paused: bool,
    /// Why, when it was not a client that paused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_reason: Option<String>,
    /// Failures since the last success.
    pub consecutive_failures: u32,
    /// When the last run was due, or was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_run_at: Option<Timestamp>,
    /// When the next run is due; absent when paused or over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_run_at: Option<Timestamp>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was last changed by a client.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// Not begun, or waiting for its next try.
    Queued,
    /// Under way.
    Running,
    /// Done.
    Success,
    /// Failed, and not tried again.
    Error,
    /// Took too long, and not tried again.
    Timeout,
    /// Not run: an earlier one was under way, or its time was missed.
    Skipped,
    /// Ended by a later one, or by a client.
    Cancelled,
}

/// Who asked for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunOrigin {
    /// Its time came.
    Schedule,
    /// A client.
    Manual,
}

/// One run of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleRun {
    /// Its id.
    pub id: ScheduleRunId,
    /// Whose run.
    pub schedule_id: ScheduleId,
    /// The function it invoked; empty for other targets.
    pub function_id: String,
    /// The sandbox it ran in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// State.
    pub status: RunStatus,
    /// Who asked for it.
    pub origin: RunOrigin,
    /// The instant it stands for; a schedule has one run per instant.
    #[schema(value_type = String, format = DateTime)]
    pub scheduled_for: Timestamp,
    /// Tries so far, those included that a restart of the server cut off.
    pub attempt: u32,
    /// Exit code of a command; 0 for other successes, -1 for other failures.
    pub exit_code: i32,
    /// Status of an HTTP answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// Standard output, or what was answered.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Some of it was dropped.
    pub truncated: bool,
    /// Why it failed, was skipped or was cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Times before this one that passed while nothing could run and that get no run of their own.
    pub missed: u32,
    /// Time of the last try.
    pub duration_ms: u64,
    /// When the last try began; before the first, when the run was recorded.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
}

/// `POST /v1/schedules/{id}/trigger`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TriggerSchedule {
    /// `false` answers at once, with the run as it is then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<bool>,
}

/// `POST /v1/schedules/preview`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PreviewSchedule {
    /// When.
    #[serde(flatten)]
    pub timing: ScheduleTiming,
    /// The times after this one; now when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub after: Option<Timestamp>,
    /// How many; 5 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

/// The next times of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextRuns {
    /// Earliest first.
    #[schema(value_type = Vec<String>)]
    pub items: Vec<Timestamp>,
    /// The same on the clock of the schedule's time zone.
    pub local: Vec<String>,
    /// That time zone.
    pub timezone: String,
}
