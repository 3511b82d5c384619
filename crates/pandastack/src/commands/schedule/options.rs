//! Options of schedules: timing, target and run options.

use anyhow::Result;
use jiff::Timestamp;
use pandastack_types::SandboxId;
use pandastack_types::api::{
    AppTarget, CommandTarget, ExecRequest, FunctionTarget, HttpTarget, MissedRuns, Overlap, SandboxAction,
    SandboxTarget, ScheduleAlert, ScheduleOptions, ScheduleTarget, ScheduleTiming, SqlTarget, TemplateTarget,
};

use crate::commands::command_line::command_line;
use crate::commands::pairs::pairs;
use crate::failure::Failure;

/// Timing of a schedule.
#[derive(Debug, clap::Args)]
pub struct TimingArgs {
    /// Cron expression with five fields, or a name such as @daily
    #[arg(long, value_name = "EXPRESSION", group = "when")]
    cron: Option<String>,
    /// Time zone of the cron expression, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Seconds between runs
    #[arg(long, value_name = "SECONDS", group = "when")]
    every: Option<u64>,
    /// Run once at this time, such as 2027-01-31T09:00:00Z
    #[arg(long, value_name = "TIME", group = "when")]
    at: Option<Timestamp>,
}

impl TimingArgs {
    /// Converts to the API type.
    pub fn timing(self) -> Result<ScheduleTiming> {
        let TimingArgs { cron, timezone, every, at } = self;
        Ok(ScheduleTiming { cron, timezone, every_seconds: every, at })
    }
}

/// Target of a schedule.
#[derive(Debug, clap::Args)]
pub struct TargetArgs {
    /// URL to call
    #[arg(long, value_name = "URL", groups = ["what", "called"])]
    url: Option<String>,
    /// App to call, by name or ID; wakes it if it is asleep
    #[arg(long, value_name = "APP", groups = ["what", "called"])]
    app: Option<String>,
    /// Path to call in the app [default: /]
    #[arg(long, requires = "app")]
    path: Option<String>,
    /// HTTP method of the call [default: POST]
    #[arg(long, requires = "called")]
    method: Option<String>,
    /// HTTP header of the call; can be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", requires = "called")]
    headers: Vec<String>,
    /// Request body of the call
    #[arg(long, requires = "called")]
    body: Option<String>,
    /// Sandbox to run the command in [default: a new sandbox]
    #[arg(long, value_name = "ID", conflicts_with = "template")]
    sandbox: Option<SandboxId>,
    /// Template of the new sandbox [default: base]
    #[arg(long)]
    template: Option<String>,
    /// Sandbox to wake
    #[arg(long, value_name = "ID", group = "what")]
    wake: Option<SandboxId>,
    /// Sandbox to hibernate
    #[arg(long, value_name = "ID", group = "what")]
    hibernate: Option<SandboxId>,
    /// Function to call
    #[arg(long, value_name = "ID", group = "what")]
    function: Option<String>,
    /// Event for the function, as JSON
    #[arg(long, value_name = "JSON", requires = "function")]
    input: Option<String>,
    /// Database to run --sql on
    #[arg(long, value_name = "ID", requires = "sql", group = "what")]
    database: Option<String>,
    /// SQL statement to run
    #[arg(long, requires = "database")]
    sql: Option<String>,
    /// Template to rebuild
    #[arg(long, value_name = "NAME[:TAG]", group = "what")]
    rebuild: Option<String>,
    /// Command to run, in a new sandbox unless --sandbox is given
    #[arg(last = true, value_name = "CMD", group = "what")]
    command: Vec<String>,
}

impl TargetArgs {
    /// Converts to the API type; `None` if no target was given.
    pub fn target(self) -> Result<Option<ScheduleTarget>> {
        if let Some(url) = self.url {
            let headers = pairs(&self.headers)?.unwrap_or_default();
            let target = HttpTarget { url, method: self.method, headers, body: self.body };
            return Ok(Some(ScheduleTarget::Http(target)));
        }
        if let Some(app_id) = self.app {
            let headers = pairs(&self.headers)?.unwrap_or_default();
            let target = AppTarget { app_id, path: self.path, method: self.method, headers, body: self.body };
            return Ok(Some(ScheduleTarget::App(target)));
        }
        let action = self.wake.map(|id| (id, SandboxAction::Wake));
        let action = action.or(self.hibernate.map(|id| (id, SandboxAction::Hibernate)));
        if let Some((sandbox_id, action)) = action {
            return Ok(Some(ScheduleTarget::Sandbox(SandboxTarget { sandbox_id, action })));
        }
        if let Some(function_id) = self.function {
            let read = |text: String| serde_json::from_str(&text);
            let input = self.input.map(read).transpose();
            let input = input.map_err(|error| Failure::new(format!("--input is not valid JSON: {error}")))?;
            return Ok(Some(ScheduleTarget::Function(FunctionTarget { function_id, input })));
        }
        if let (Some(database_id), Some(sql)) = (self.database, self.sql) {
            return Ok(Some(ScheduleTarget::Sql(SqlTarget { database_id, sql })));
        }
        if let Some(template) = self.rebuild {
            return Ok(Some(ScheduleTarget::Template(TemplateTarget { template })));
        }
        if self.command.is_empty() {
            return Ok(None);
        }
        let (cmd, argv) = command_line(self.command);
        let exec = ExecRequest { cmd, argv, ..ExecRequest::default() };
        let target = CommandTarget { sandbox_id: self.sandbox, template: self.template, exec };
        Ok(Some(ScheduleTarget::Command(target)))
    }
}

/// Run options of a schedule.
#[derive(Debug, clap::Args)]
pub struct OptionArgs {
    /// If an earlier run is still in progress: skip, queue, replace or allow [default: skip]
    #[arg(long, value_parser = overlap)]
    overlap: Option<Overlap>,
    /// If runs were missed during downtime: skip, run_once or run_all [default: run_once]
    #[arg(long, value_parser = missed)]
    missed: Option<MissedRuns>,
    /// Maximum number of missed runs to start with run_all [default: 10]
    #[arg(long, value_name = "COUNT")]
    missed_max: Option<u32>,
    /// Latest start of a run with --missed skip, in seconds after its time [default: 30]
    #[arg(long, value_name = "SECONDS")]
    starting_deadline: Option<u64>,
    /// Maximum random delay of a run, in seconds [default: 0]
    #[arg(long, value_name = "SECONDS")]
    jitter: Option<u64>,
    /// Timeout of each attempt, in seconds [default: 300]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Maximum retries of a failed run [default: 0]
    #[arg(long, value_name = "COUNT")]
    retries: Option<u32>,
    /// Delay before the first retry, in seconds; doubles with each retry [default: 10]
    #[arg(long, value_name = "SECONDS")]
    retry_delay: Option<u64>,
    /// URL to notify when runs keep failing
    #[arg(long, value_name = "URL")]
    alert_url: Option<String>,
    /// Notify after this many consecutive failures; 0 for never
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "alert_url")]
    alert_after: u32,
    /// Pause the schedule after this many consecutive failures; 0 for never
    #[arg(long, value_name = "COUNT")]
    pause_after: Option<u32>,
}

impl OptionArgs {
    /// Converts to the API type.
    pub fn options(self) -> Result<ScheduleOptions> {
        let after_failures = self.alert_after;
        Ok(ScheduleOptions {
            overlap: self.overlap,
            missed: self.missed,
            missed_max: self.missed_max,
            starting_deadline_seconds: self.starting_deadline,
            jitter_seconds: self.jitter,
            timeout_seconds: self.timeout,
            retries: self.retries,
            retry_delay_seconds: self.retry_delay,
            alert: self.alert_url.map(|url| ScheduleAlert { url, after_failures }),
            pause_after_failures: self.pause_after,
        })
    }
}

fn overlap(text: &str) -> Result<Overlap, String> {
    parse(text).ok_or_else(|| "expected `skip`, `queue`, `replace` or `allow`".to_owned())
}

fn missed(text: &str) -> Result<MissedRuns, String> {
    parse(text).ok_or_else(|| "expected `skip`, `run_once` or `run_all`".to_owned())
}

/// Parses a value by its name in the API.
fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).ok()
}
