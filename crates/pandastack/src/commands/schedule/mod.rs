//! `pandastack schedule`: manages schedules.

mod options;
mod show;

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::ScheduleRunId;
use pandastack_types::api::{CreateSchedule, PatchSchedule, PreviewSchedule, RunStatus, Schedule};

use super::each::{each, show_each};
use super::runtime::with_client;
use super::wait::WaitArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;
use options::{OptionArgs, TargetArgs, TimingArgs};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a schedule
    Create {
        /// Human-readable name
        name: String,
        #[command(flatten)]
        timing: TimingArgs,
        #[command(flatten)]
        target: Box<TargetArgs>,
        #[command(flatten)]
        options: Box<OptionArgs>,
        /// Create the schedule paused
        #[arg(long)]
        paused: bool,
    },
    /// List schedules
    #[command(visible_alias = "ls")]
    List,
    /// Show schedules
    Get {
        /// Schedule IDs or names
        #[arg(required = true, value_name = "SCHEDULE")]
        schedules: Vec<String>,
    },
    /// Change a schedule; omitted settings are kept
    Update {
        /// Schedule ID or name
        schedule: String,
        /// New name
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        timing: TimingArgs,
        #[command(flatten)]
        target: Box<TargetArgs>,
        #[command(flatten)]
        options: Box<OptionArgs>,
    },
    /// Pause schedules
    Pause {
        /// Schedule IDs or names
        #[arg(required = true, value_name = "SCHEDULE")]
        schedules: Vec<String>,
    },
    /// Resume schedules
    Resume {
        /// Schedule IDs or names
        #[arg(required = true, value_name = "SCHEDULE")]
        schedules: Vec<String>,
    },
    /// Run a schedule now and show the result
    Run {
        /// Schedule ID or name
        schedule: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// List runs of a schedule, newest first, or show one with its output
    Runs {
        /// Schedule ID or name
        schedule: String,
        /// Run ID to show
        run: Option<ScheduleRunId>,
        /// Number of runs to list
        #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 20)]
        limit: u32,
    },
    /// Cancel a run
    Cancel {
        /// Schedule ID or name
        schedule: String,
        /// Run ID
        run: ScheduleRunId,
    },
    /// Show the next run times of a schedule, a cron expression or an interval
    Next {
        /// Schedule ID or name
        #[arg(required_unless_present_any = ["cron", "every", "at"])]
        schedule: Option<String>,
        #[command(flatten)]
        timing: TimingArgs,
        /// Number of run times to show
        #[arg(long, value_name = "COUNT", default_value_t = 5)]
        count: u32,
    },
    /// Delete schedules and their run history
    #[command(name = "delete", visible_alias = "rm")]
    Rm {
        /// Schedule IDs or names
        #[arg(required = true)]
        schedules: Vec<String>,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move { self.dispatch(&client, output).await })
    }

    async fn dispatch(self, client: &Client, output: Output) -> Result<ExitCode> {
        match self {
            Command::Create { name, timing, target, options, paused } => {
                let request = CreateSchedule {
                    name,
                    timing: timing.timing()?,
                    target: target.target()?,
                    options: options.options()?,
                    paused,
                    ..CreateSchedule::default()
                };
                let created = client.create_schedule(&request).await?;
                output.value(&created, |created| created.id.to_string())?;
            }
            Command::List => show::list(output, &client.list_schedules().await?)?,
            Command::Get { schedules } => {
                let fetch = async |text: &str| resolve(client, text).await;
                return show_each(&schedules, output, fetch, show::details).await;
            }
            Command::Update { schedule, name, timing, target, options } => {
                let change = PatchSchedule {
                    name,
                    timing: timing.timing()?,
                    target: target.target()?,
                    options: options.options()?,
                    paused: None,
                };
                output.value(&patch(client, &schedule, &change).await?, show::details)?;
            }
            Command::Pause { schedules } => return set_paused(client, output, &schedules, true).await,
            Command::Resume { schedules } => return set_paused(client, output, &schedules, false).await,
            Command::Run { schedule, wait } => return trigger(client, output, &schedule, wait).await,
            Command::Runs { schedule, run, limit } => {
                let id = resolve(client, &schedule).await?.id;
                match run {
                    Some(run) => show::run(output, &client.get_schedule_run(&id, &run).await?)?,
                    None => show::runs(output, &client.list_schedule_runs(&id, limit).await?)?,
                }
            }
            Command::Cancel { schedule, run } => {
                let id = resolve(client, &schedule).await?.id;
                show::run(output, &client.cancel_schedule_run(&id, &run).await?)?;
            }
            Command::Next { schedule, timing, count } => {
                let next = match schedule {
                    Some(text) => {
                        let id = resolve(client, &text).await?.id;
                        client.next_schedule_runs(&id, count).await?
                    }
                    None => {
                        let (timing, count) = (timing.timing()?, Some(count));
                        client.preview_schedule(&PreviewSchedule { timing, after: None, count }).await?
                    }
                };
                output.value(&next, |next| next.local.join("\n"))?;
            }
            Command::Rm { schedules } => {
                let delete = async |text: &str| {
                    let id = resolve(client, text).await?.id;
                    client.delete_schedule(&id).await?;
                    Ok(id.to_string())
                };
                return each(&schedules, output, delete).await;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn set_paused(client: &Client, output: Output, names: &[String], paused: bool) -> Result<ExitCode> {
    let change = PatchSchedule { paused: Some(paused), ..PatchSchedule::default() };
    let patched = async |text: &str| patch(client, text, &change).await;
    show_each(names, output, patched, show::details).await
}

async fn patch(client: &Client, text: &str, change: &PatchSchedule) -> Result<Schedule> {
    let id = resolve(client, text).await?.id;
    Ok(client.patch_schedule(&id, change).await?)
}

async fn trigger(client: &Client, output: Output, text: &str, wait: WaitArgs) -> Result<ExitCode> {
    let id = resolve(client, text).await?.id;
    let background = format!("the run continues; to see its result, run `pandastack schedule runs {text}`");
    let triggered = async {
        let _progress = Progress::start(format!("Running schedule {text}"));
        Ok(client.trigger_schedule(&id, wait.waits()).await?)
    };
    let run = wait.until(&background, triggered).await?;
    show::run(output, &run)?;
    let succeeded = matches!(run.status, RunStatus::Success | RunStatus::Queued | RunStatus::Running);
    Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Resolves a schedule id or a unique name.
async fn resolve(client: &Client, text: &str) -> Result<Schedule> {
    let all = client.list_schedules().await?;
    if let Some(found) = all.iter().find(|schedule| schedule.id.as_str() == text) {
        return Ok(found.clone());
    }
    let mut named: Vec<_> = all.into_iter().filter(|schedule| schedule.name == text).collect();
    match (named.pop(), named.len()) {
        (Some(found), 0) => Ok(found),
        (Some(_), more) => {
            let failure =
                Failure::new(format!("schedule name `{text}` is ambiguous: {} schedules have it", more + 1));
            Err(failure.hint("use the ID; run `pandastack schedule list` to see all IDs").into())
        }
        (None, _) => Err(Failure::not_found("schedule", text)
            .hint("run `pandastack schedule list` to see all schedules")
            .into()),
    }
}
