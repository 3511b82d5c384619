//! Validates and completes schedules from clients, and converts records to API responses.

use jiff::Timestamp;
use pandastack_rest::Lookup;
use pandastack_sandboxes::validate;
use pandastack_schedule::Timing;
use pandastack_store::schedules::{RunRecord, ScheduleRecord, ScheduleSpec};
use pandastack_types::api::{
    CommandTarget, MissedRuns, Overlap, SandboxTarget, Schedule, ScheduleOptions, ScheduleRun,
    ScheduleTarget, ScheduleTiming, SqlTarget,
};
use pandastack_types::limits::{
    EXEC_TIMEOUT_SECONDS_DEFAULT, EXEC_TIMEOUT_SECONDS_MAX, SCHEDULE_JITTER_SECONDS_MAX, SCHEDULE_MISSED_MAX,
    SCHEDULE_NAME_BYTES_MAX, SCHEDULE_RETRIES_MAX, SCHEDULE_RETRY_DELAY_SECONDS_MAX,
    TEMPLATE_BUILD_SECONDS_MAX,
};
use pandastack_types::{DatabaseId, Error, Result, WorkspaceId};
use pandastack_webhooks::Webhooks;

use crate::scheduler::Scheduler;
use crate::{app_target, http_target};

/// See [`ScheduleOptions::starting_deadline_seconds`].
pub(crate) const STARTING_DEADLINE_SECONDS_DEFAULT: u64 = 30;
/// See [`ScheduleOptions::missed_max`].
pub(crate) const MISSED_RUNS_DEFAULT: u32 = 10;
/// See [`ScheduleOptions::retry_delay_seconds`].
pub(crate) const RETRY_DELAY_SECONDS_DEFAULT: u64 = 10;
/// Timeout of a rebuild: the longest build, and an hour in which others are in progress.
const REBUILD_SECONDS_DEFAULT: u64 = TEMPLATE_BUILD_SECONDS_MAX + 3600;
/// Zone of a cron expression that names none.
const ZONE_DEFAULT: &str = "UTC";
/// Longest deadline to start, and most failures in a row that can be waited for.
const DEADLINE_SECONDS_MAX: u64 = 24 * 3600;
const FAILURES_MAX: u32 = 1_000;
/// Longest SQL of a target.
const SQL_BYTES_MAX: usize = 128 * 1024;

/// Reads a timing that a client sent.
pub(crate) fn read_timing(timing: &ScheduleTiming, anchor: Timestamp) -> Result<Timing> {
    let zone = timing.timezone.as_deref();
    match (&timing.cron, timing.every_seconds, timing.at) {
        (Some(cron), None, None) => Ok(Timing::cron(cron, zone.unwrap_or(ZONE_DEFAULT))?),
        (None, ..) if zone.is_some() => Err(Error::bad_request("`timezone` is only valid with `cron`")),
        (None, Some(seconds), None) => Ok(Timing::every(seconds, anchor)?),
        (None, None, Some(at)) => Ok(Timing::Once(at)),
        _ => Err(Error::bad_request("no time given; set exactly one of `cron`, `every_seconds` and `at`")),
    }
}

/// The timing of a record.
pub(crate) fn timing(spec: &ScheduleSpec) -> Result<Timing> {
    read_timing(&spec.timing, spec.anchor)
}

/// Name of the zone whose clock a timing follows.
pub(crate) fn zone_name(timing: &ScheduleTiming) -> String {
    timing.timezone.clone().unwrap_or_else(|| ZONE_DEFAULT.to_owned())
}

pub(crate) fn check_name(name: &str) -> Result<()> {
    match name.len() {
        1..=SCHEDULE_NAME_BYTES_MAX => Ok(()),
        _ => Err(Error::bad_request(format!("`name` must be 1 to {SCHEDULE_NAME_BYTES_MAX} bytes"))),
    }
}

/// Merges options: those in `asked` win over those in `before`.
pub(crate) fn overlay(asked: ScheduleOptions, before: ScheduleOptions) -> ScheduleOptions {
    ScheduleOptions {
        overlap: asked.overlap.or(before.overlap),
        missed: asked.missed.or(before.missed),
        missed_max: asked.missed_max.or(before.missed_max),
        starting_deadline_seconds: asked.starting_deadline_seconds.or(before.starting_deadline_seconds),
        jitter_seconds: asked.jitter_seconds.or(before.jitter_seconds),
        timeout_seconds: asked.timeout_seconds.or(before.timeout_seconds),
        retries: asked.retries.or(before.retries),
        retry_delay_seconds: asked.retry_delay_seconds.or(before.retry_delay_seconds),
        // No failures to wait for: no alert any more.
        alert: asked.alert.or(before.alert).filter(|alert| alert.after_failures > 0),
        pause_after_failures: asked.pause_after_failures.or(before.pause_after_failures),
    }
}

/// Every default.
pub(crate) fn defaults(target: &ScheduleTarget) -> ScheduleOptions {
    let timeout_seconds = match target {
        ScheduleTarget::Template(_) => REBUILD_SECONDS_DEFAULT,
        _ => EXEC_TIMEOUT_SECONDS_DEFAULT,
    };
    ScheduleOptions {
        overlap: Some(Overlap::default()),
        missed: Some(MissedRuns::default()),
        missed_max: Some(MISSED_RUNS_DEFAULT),
        starting_deadline_seconds: Some(STARTING_DEADLINE_SECONDS_DEFAULT),
        jitter_seconds: Some(0),
        timeout_seconds: Some(timeout_seconds),
        retries: Some(0),
        retry_delay_seconds: Some(RETRY_DELAY_SECONDS_DEFAULT),
        alert: None,
        pause_after_failures: Some(0),
    }
}

pub(crate) fn check_options(webhooks: &Webhooks, options: &ScheduleOptions) -> Result<()> {
    let within = |field: &str, value: Option<u64>, least: u64, most: u64| match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(Error::bad_request(format!("`{field}` must be {least} to {most}")))
        }
        _ => Ok(()),
    };
    within("missed_max", options.missed_max.map(u64::from), 1, SCHEDULE_MISSED_MAX.into())?;
    within("starting_deadline_seconds", options.starting_deadline_seconds, 1, DEADLINE_SECONDS_MAX)?;
    within("jitter_seconds", options.jitter_seconds, 0, SCHEDULE_JITTER_SECONDS_MAX)?;
    within("timeout_seconds", options.timeout_seconds, 1, EXEC_TIMEOUT_SECONDS_MAX)?;
    within("retries", options.retries.map(u64::from), 0, SCHEDULE_RETRIES_MAX.into())?;
    within("retry_delay_seconds", options.retry_delay_seconds, 1, SCHEDULE_RETRY_DELAY_SECONDS_MAX)?;
    within("pause_after_failures", options.pause_after_failures.map(u64::from), 0, FAILURES_MAX.into())?;
    if let Some(alert) = &options.alert {
        within("alert.after_failures", Some(alert.after_failures.into()), 1, FAILURES_MAX.into())?;
        webhooks.check_url("alert.url", &alert.url)?;
    }
    Ok(())
}

/// Replaces names and beginnings of ids by ids.
pub(crate) async fn resolve_target(target: &mut ScheduleTarget, lookup: &Lookup) -> Result<()> {
    match target {
        ScheduleTarget::Sandbox(SandboxTarget { sandbox_id: id, .. })
        | ScheduleTarget::Command(CommandTarget { sandbox_id: Some(id), .. }) => {
            *id = lookup.id(id.as_str()).await?;
        }
        ScheduleTarget::Sql(SqlTarget { database_id: id, .. }) => {
            *id = lookup.id::<DatabaseId>(id).await?.to_string();
        }
        _ => {}
    }
    Ok(())
}

/// Refuses a target that could never work.
pub(crate) async fn check_target(
    scheduler: &Scheduler,
    workspace: &WorkspaceId,
    target: &ScheduleTarget,
) -> Result<()> {
    match target {
        ScheduleTarget::Http(target) => http_target::check(&scheduler.webhooks, target),
        ScheduleTarget::Command(target) => check_command(scheduler, workspace, target).await,
        ScheduleTarget::Sandbox(target) => {
            scheduler.machines.find(Some(workspace), &target.sandbox_id).await?;
            Ok(())
        }
        ScheduleTarget::App(target) => app_target::check(scheduler, workspace, target).await,
        ScheduleTarget::Function(target) => scheduler.services.check_function(workspace, target).await,
        ScheduleTarget::Sql(target) => {
            if target.sql.is_empty() || target.sql.len() > SQL_BYTES_MAX {
                return Err(Error::bad_request(format!("`target.sql` must be 1 to {SQL_BYTES_MAX} bytes")));
            }
            scheduler.services.check_database(workspace, target).await
        }
        ScheduleTarget::Template(target) => scheduler.services.check_template(workspace, target).await,
    }
}

async fn check_command(scheduler: &Scheduler, workspace: &WorkspaceId, target: &CommandTarget) -> Result<()> {
    validate::exec(&target.exec)?;
    if target.exec.timeout_seconds.is_some() {
        return Err(Error::bad_request("set `timeout_seconds` on the schedule, not on its command"));
    }
    match (&target.sandbox_id, &target.template) {
        (Some(_), Some(_)) => Err(Error::bad_request("give `sandbox_id` or `template`, not both")),
        (Some(id), None) => scheduler.machines.find(Some(workspace), id).await.map(drop).map_err(Into::into),
        (None, Some(template)) => validate::template_name(template),
        (None, None) => Ok(()),
    }
}

fn function_of(spec: &ScheduleSpec) -> String {
    match &spec.target {
        ScheduleTarget::Function(target) => target.function_id.clone(),
        _ => String::new(),
    }
}

/// Kind of a target, in a word.
pub(crate) fn target_kind(target: &ScheduleTarget) -> &'static str {
    match target {
        ScheduleTarget::Http(_) => "http",
        ScheduleTarget::Command(_) => "command",
        ScheduleTarget::Sandbox(_) => "sandbox",
        ScheduleTarget::App(_) => "app",
        ScheduleTarget::Function(_) => "function",
        ScheduleTarget::Sql(_) => "sql",
        ScheduleTarget::Template(_) => "template",
    }
}

/// A schedule as clients see it.
pub(crate) fn schedule_view(record: ScheduleRecord) -> Schedule {
    let function_id = function_of(&record.spec);
    let spec = record.spec;
    Schedule {
        id: record.id,
        workspace: record.workspace,
        name: record.name,
        function_id,
        timezone: zone_name(&spec.timing),
        cron: spec.timing.cron.unwrap_or_default(),
        every_seconds: spec.timing.every_seconds,
        at: spec.timing.at,
        target: spec.target,
        options: spec.options,
        paused: record.paused,
        paused_reason: spec.paused_reason.filter(|_| record.paused),
        consecutive_failures: record.failures,
        last_run_at: record.last_run_at,
        next_run_at: record.next_run_at,
        created_at: record.created_at,
        updated_at: record.updated_at,
    }
}

/// A run as clients see it.
pub(crate) fn run_view(schedule: &ScheduleRecord, record: RunRecord) -> ScheduleRun {
    let outcome = record.outcome;
    ScheduleRun {
        run_id: record.id.clone(),
        id: record.id,
        schedule_id: record.schedule,
        function_id: function_of(&schedule.spec),
        sandbox_id: outcome.sandbox,
        status: record.state.status(),
        origin: record.origin,
        scheduled_for: record.scheduled_for,
        attempt: record.attempt,
        exit_code: outcome.exit_code,
        http_status: outcome.http_status,
        stdout: outcome.stdout,
        stderr: outcome.stderr,
        truncated: outcome.truncated,
        error: outcome.error,
        missed: outcome.missed,
        duration_ms: outcome.duration_ms,
        started_at: record.started_at.unwrap_or(record.created_at),
        ended_at: record.ended_at,
    }
}
