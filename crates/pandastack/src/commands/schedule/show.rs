//! Schedules and runs, as people see them.

use anyhow::Result;
use jiff::Timestamp;
use pandastack_types::api::{Schedule, ScheduleRun, ScheduleTarget};
use serde::Serialize;

use crate::output::{Output, fields};

/// All schedules.
pub fn list(output: Output, schedules: &[Schedule]) -> Result<()> {
    output.table(schedules, ["ID", "NAME", "WHEN", "WHAT", "NEXT", "LAST"], |schedule| {
        let next = if schedule.paused { "paused".to_owned() } else { time(schedule.next_run_at) };
        [
            schedule.id.to_string(),
            schedule.name.clone(),
            when(schedule),
            what(&schedule.target),
            next,
            time(schedule.last_run_at),
        ]
    })
}

/// One schedule.
pub fn one(output: Output, schedule: &Schedule) -> Result<()> {
    output.value(schedule, |schedule| {
        let paused = match (&schedule.paused_reason, schedule.paused) {
            (Some(reason), true) => format!("yes: {reason}"),
            (None, true) => "yes".to_owned(),
            (_, false) => "no".to_owned(),
        };
        fields(&[
            ("id", schedule.id.to_string()),
            ("name", schedule.name.clone()),
            ("when", when(schedule)),
            ("what", what(&schedule.target)),
            ("paused", paused),
            ("next run", time(schedule.next_run_at)),
            ("last run", time(schedule.last_run_at)),
            ("failures in a row", schedule.consecutive_failures.to_string()),
            ("overlap", word(&schedule.options.overlap)),
            ("missed", word(&schedule.options.missed)),
            ("retries", word(&schedule.options.retries)),
            ("timeout", format!("{} s", word(&schedule.options.timeout_seconds))),
        ])
    })
}

/// Runs of a schedule.
pub fn runs(output: Output, runs: &[ScheduleRun]) -> Result<()> {
    output.table(runs, ["ID", "SCHEDULED FOR", "STATUS", "TRIES", "TOOK", "WHY"], |run| {
        [
            run.id.to_string(),
            run.scheduled_for.to_string(),
            word(&run.status),
            run.attempt.to_string(),
            format!("{} ms", run.duration_ms),
            run.error.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    })
}

/// One run with its output.
pub fn run(output: Output, run: &ScheduleRun) -> Result<()> {
    output.value(run, |run| {
        let mut text = fields(&[
            ("id", run.id.to_string()),
            ("status", word(&run.status)),
            ("scheduled for", run.scheduled_for.to_string()),
            ("tries", run.attempt.to_string()),
            ("took", format!("{} ms", run.duration_ms)),
            ("why", run.error.clone().unwrap_or_else(|| "-".to_owned())),
        ]);
        for (name, stream) in [("stdout", &run.stdout), ("stderr", &run.stderr)] {
            if !stream.is_empty() {
                text.push_str(&format!("\n--- {name}\n{}", stream.trim_end()));
            }
        }
        text
    })
}

fn when(schedule: &Schedule) -> String {
    match (schedule.every_seconds, schedule.at) {
        (Some(seconds), _) => format!("every {seconds} s"),
        (None, Some(at)) => format!("at {at}"),
        (None, None) => format!("{} ({})", schedule.cron, schedule.timezone),
    }
}

fn what(target: &ScheduleTarget) -> String {
    match target {
        ScheduleTarget::Http(target) => target.url.clone(),
        ScheduleTarget::Command(target) => {
            let place = target.sandbox_id.as_ref().map_or("fresh sandbox", |id| id.as_str());
            format!("command in {place}")
        }
        ScheduleTarget::Sandbox(target) => format!("{} {}", word(&target.action), target.sandbox_id),
        ScheduleTarget::App(target) => {
            format!("app {}{}", target.app_id, target.path.as_deref().unwrap_or("/"))
        }
        ScheduleTarget::Function(target) => format!("function {}", target.function_id),
        ScheduleTarget::Sql(target) => format!("sql on {}", target.database_id),
    }
}

fn time(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| at.to_string())
}

/// A value as the API writes it.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(serde_json::Value::Null) | Err(_) => "-".to_owned(),
        Ok(other) => other.to_string(),
    }
}
