//! Formats schedules and runs.

use anyhow::Result;
use jiff::Timestamp;
use pandastack_types::api::{Schedule, ScheduleRun, ScheduleTarget};
use serde::Serialize;

use crate::output::{Output, fields};

/// Prints all schedules.
pub fn list(output: Output, schedules: &[Schedule]) -> Result<()> {
    output.table(schedules, ["ID", "NAME", "TIMING", "TARGET", "NEXT RUN", "LAST RUN"], |schedule| {
        let next = if schedule.paused { "paused".to_owned() } else { time(schedule.next_run_at) };
        [
            schedule.id.to_string(),
            schedule.name.clone(),
            timing(schedule),
            target(&schedule.target),
            next,
            time(schedule.last_run_at),
        ]
    })
}

/// All details of a schedule.
pub fn details(schedule: &Schedule) -> String {
    let paused = match (&schedule.paused_reason, schedule.paused) {
        (Some(reason), true) => format!("yes: {reason}"),
        (None, true) => "yes".to_owned(),
        (_, false) => "no".to_owned(),
    };
    fields(&[
        ("id", schedule.id.to_string()),
        ("name", schedule.name.clone()),
        ("timing", timing(schedule)),
        ("target", target(&schedule.target)),
        ("paused", paused),
        ("next run", time(schedule.next_run_at)),
        ("last run", time(schedule.last_run_at)),
        ("consecutive failures", schedule.consecutive_failures.to_string()),
        ("overlap", as_text(&schedule.options.overlap)),
        ("missed runs", as_text(&schedule.options.missed)),
        ("retries", as_text(&schedule.options.retries)),
        ("timeout", format!("{} s", as_text(&schedule.options.timeout_seconds))),
    ])
}

/// Prints the runs of a schedule.
pub fn runs(output: Output, runs: &[ScheduleRun]) -> Result<()> {
    output.table(runs, ["ID", "SCHEDULED FOR", "STATUS", "ATTEMPTS", "DURATION", "ERROR"], |run| {
        [
            run.id.to_string(),
            run.scheduled_for.to_string(),
            as_text(&run.status),
            run.attempt.to_string(),
            format!("{} ms", run.duration_ms),
            run.error.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    })
}

/// Prints a run with its output.
pub fn run(output: Output, run: &ScheduleRun) -> Result<()> {
    output.value(run, |run| {
        let mut text = fields(&[
            ("id", run.id.to_string()),
            ("status", as_text(&run.status)),
            ("scheduled for", run.scheduled_for.to_string()),
            ("attempts", run.attempt.to_string()),
            ("duration", format!("{} ms", run.duration_ms)),
            ("error", run.error.clone().unwrap_or_else(|| "-".to_owned())),
        ]);
        for (name, stream) in [("stdout", &run.stdout), ("stderr", &run.stderr)] {
            if !stream.is_empty() {
                text.push_str(&format!("\n--- {name}\n{}", stream.trim_end()));
            }
        }
        text
    })
}

fn timing(schedule: &Schedule) -> String {
    match (schedule.every_seconds, schedule.at) {
        (Some(seconds), _) => format!("every {seconds} s"),
        (None, Some(at)) => format!("at {at}"),
        (None, None) => format!("{} ({})", schedule.cron, schedule.timezone),
    }
}

fn target(target: &ScheduleTarget) -> String {
    match target {
        ScheduleTarget::Http(target) => target.url.clone(),
        ScheduleTarget::Command(target) => {
            let sandbox = target.sandbox_id.as_ref().map_or("new sandbox", |id| id.as_str());
            format!("command in {sandbox}")
        }
        ScheduleTarget::Sandbox(target) => format!("{} {}", as_text(&target.action), target.sandbox_id),
        ScheduleTarget::App(target) => {
            format!("app {}{}", target.app_id, target.path.as_deref().unwrap_or("/"))
        }
        ScheduleTarget::Function(target) => format!("function {}", target.function_id),
        ScheduleTarget::Sql(target) => format!("SQL on {}", target.database_id),
        ScheduleTarget::Template(target) => format!("rebuild {}", target.template),
    }
}

fn time(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| at.to_string())
}

/// A value as written by the API.
fn as_text(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(serde_json::Value::Null) | Err(_) => "-".to_owned(),
        Ok(other) => other.to_string(),
    }
}
