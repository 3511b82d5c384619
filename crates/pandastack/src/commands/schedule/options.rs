//! When, what and how, as the command line says it.

use anyhow::Result;
use jiff::Timestamp;
use pandastack_types::SandboxId;
use pandastack_types::api::{
    AppTarget, CommandTarget, ExecRequest, FunctionTarget, HttpTarget, MissedRuns, Overlap, SandboxAction,
    SandboxTarget, ScheduleAlert, ScheduleOptions, ScheduleTarget, ScheduleTiming, SqlTarget,
};

use crate::commands::{command_line, pairs};
use crate::failure::Failure;

/// When.
#[derive(Debug, clap::Args)]
pub struct TimingArgs {
    /// Five fields, or a name such as @daily
    #[arg(long, group = "when")]
    cron: Option<String>,
    /// Time zone of the cron expression, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Seconds from one run to the next
    #[arg(long, value_name = "SECONDS", group = "when")]
    every: Option<u64>,
    /// Once, at this time, such as 2027-01-31T09:00:00Z
    #[arg(long, value_name = "TIME", group = "when")]
    at: Option<Timestamp>,
}

impl TimingArgs {
    /// As the API takes it.
    pub fn timing(self) -> Result<ScheduleTiming> {
        let TimingArgs { cron, timezone, every, at } = self;
        Ok(ScheduleTiming { cron, timezone, every_seconds: every, at })
    }
}

/// What.
#[derive(Debug, clap::Args)]
pub struct TargetArgs {
    /// Call this URL
    #[arg(long, value_name = "URL", groups = ["what", "called"])]
    url: Option<String>,
    /// Call this app, which wakes for it
    #[arg(long, value_name = "APP", groups = ["what", "called"])]
    app: Option<String>,
    /// Path in the app [default: /]
    #[arg(long, requires = "app")]
    path: Option<String>,
    /// Method of the call [default: POST]
    #[arg(long, requires = "called")]
    method: Option<String>,
    /// Header of the call; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE", requires = "called")]
    headers: Vec<String>,
    /// Body of the call
    #[arg(long, requires = "called")]
    body: Option<String>,
    /// Run the command in this sandbox instead of a fresh one
    #[arg(long, value_name = "ID", conflicts_with = "template")]
    sandbox: Option<SandboxId>,
    /// Template of the fresh sandbox [default: base]
    #[arg(long)]
    template: Option<String>,
    /// Wake this sandbox
    #[arg(long, value_name = "ID", group = "what")]
    wake: Option<SandboxId>,
    /// Hibernate this sandbox
    #[arg(long, value_name = "ID", group = "what")]
    hibernate: Option<SandboxId>,
    /// Invoke this function
    #[arg(long, value_name = "ID", group = "what")]
    function: Option<String>,
    /// Input of the function, as JSON
    #[arg(long, value_name = "JSON", requires = "function")]
    input: Option<String>,
    /// Run SQL on this database
    #[arg(long, value_name = "ID", requires = "sql", group = "what")]
    database: Option<String>,
    /// The SQL
    #[arg(long, requires = "database")]
    sql: Option<String>,
    /// Run this command, in a fresh sandbox unless --sandbox names one
    #[arg(last = true, group = "what")]
    command: Vec<String>,
}

impl TargetArgs {
    /// As the API takes it; `None` when nothing was said.
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
        let moved = self.wake.map(|id| (id, SandboxAction::Wake));
        let moved = moved.or(self.hibernate.map(|id| (id, SandboxAction::Hibernate)));
        if let Some((sandbox_id, action)) = moved {
            return Ok(Some(ScheduleTarget::Sandbox(SandboxTarget { sandbox_id, action })));
        }
        if let Some(function_id) = self.function {
            let read = |text: String| serde_json::from_str(&text);
            let input = self.input.map(read).transpose();
            let input = input.map_err(|error| Failure::new(format!("--input is not JSON: {error}")))?;
            return Ok(Some(ScheduleTarget::Function(FunctionTarget { function_id, input })));
        }
        if let (Some(database_id), Some(sql)) = (self.database, self.sql) {
            return Ok(Some(ScheduleTarget::Sql(SqlTarget { database_id, sql })));
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

/// How.
#[derive(Debug, clap::Args)]
pub struct OptionArgs {
    /// When a run is due while an earlier one is under way: skip, queue, replace or allow [default: skip]
    #[arg(long, value_parser = overlap)]
    overlap: Option<Overlap>,
    /// Times that passed while nothing could run: skip, run_once or run_all [default: run_once]
    #[arg(long, value_parser = missed)]
    missed: Option<MissedRuns>,
    /// Most runs of run_all [default: 10]
    #[arg(long, value_name = "COUNT")]
    missed_max: Option<u32>,
    /// With --missed skip, how late a run may begin [default: 30]
    #[arg(long, value_name = "SECONDS")]
    starting_deadline: Option<u64>,
    /// Begin up to this much later [default: 0]
    #[arg(long, value_name = "SECONDS")]
    jitter: Option<u64>,
    /// End a try after this [default: 300]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Try a failed run this often again [default: 0]
    #[arg(long, value_name = "COUNT")]
    retries: Option<u32>,
    /// Wait before the first of them; doubled for each [default: 10]
    #[arg(long, value_name = "SECONDS")]
    retry_delay: Option<u64>,
    /// Tell this URL when runs keep failing
    #[arg(long, value_name = "URL")]
    alert_url: Option<String>,
    /// After this many failures in a row; 0 for never
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "alert_url")]
    alert_after: u32,
    /// Pause after this many failures in a row; 0 for never
    #[arg(long, value_name = "COUNT")]
    pause_after: Option<u32>,
}

impl OptionArgs {
    /// As the API takes it.
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
    named(text).ok_or_else(|| "it is skip, queue, replace or allow".to_owned())
}

fn missed(text: &str) -> Result<MissedRuns, String> {
    named(text).ok_or_else(|| "it is skip, run_once or run_all".to_owned())
}

/// A value by its name in the API.
fn named<T: serde::de::DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_value(serde_json::Value::String(text.to_owned())).ok()
}
