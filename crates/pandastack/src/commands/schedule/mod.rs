//! `pandastack schedule`: manages schedules.

mod options;
mod show;

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::ScheduleRunId;
use pandastack_types::api::{CreateSchedule, PatchSchedule, PreviewSchedule, RunStatus, Schedule};

use super::each::each;
use super::runtime::with_client;
use crate::failure::Failure;
use crate::output::Output;
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
    /// Show a schedule
    Get {
        /// Schedule ID or name
        schedule: String,
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
    /// Pause a schedule
    Pause {
        /// Schedule ID or name
        schedule: String,
    },
    /// Resume a schedule
    Resume {
        /// Schedule ID or name
        schedule: String,
    },
    /// Run a schedule now and show the result
    Run {
        /// Schedule ID or name
        schedule: String,
        /// Return without waiting for the run to finish
        #[arg(long)]
        no_wait: bool,
    },
    /// List runs of a schedule, newest first, or show one with its output
    Runs {
        /// Schedule ID or name
        schedule: String,
        /// Run ID to show
        run: Option<ScheduleRunId>,
        /// Number of runs to list
        #[arg(long, value_name = "COUNT", default_value_t = 20)]
        limit: u32,
    },
    /// Cancel a run
    Cancel {
        /// Schedule ID or name
        schedule: String,
        /// Run ID
        run: ScheduleRunId,
    },
    /// Show the next run times of a schedule or a timing
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
            Command::Get { schedule } => show::one(output, &resolve(client, &schedule).await?)?,
            Command::Update { schedule, name, timing, target, options } => {
                let change = PatchSchedule {
                    name,
                    timing: timing.timing()?,
                    target: target.target()?,
                    options: options.options()?,
                    paused: None,
                };
                patch(client, output, &schedule, &change).await?;
            }
            Command::Pause { schedule } => set_paused(client, output, &schedule, true).await?,
            Command::Resume { schedule } => set_paused(client, output, &schedule, false).await?,
            Command::Run { schedule, no_wait } => return trigger(client, output, &schedule, !no_wait).await,
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

async fn set_paused(client: &Client, output: Output, text: &str, paused: bool) -> Result<()> {
    let change = PatchSchedule { paused: Some(paused), ..PatchSchedule::default() };
    patch(client, output, text, &change).await
}

async fn patch(client: &Client, output: Output, text: &str, change: &PatchSchedule) -> Result<()> {
    let id = resolve(client, text).await?.id;
    show::one(output, &client.patch_schedule(&id, change).await?)
}

async fn trigger(client: &Client, output: Output, text: &str, wait: bool) -> Result<ExitCode> {
    let id = resolve(client, text).await?.id;
    let run = client.trigger_schedule(&id, wait).await?;
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
        (None, _) => Err(Failure::new(format!("schedule `{text}` not found"))
            .hint("run `pandastack schedule list` to see all schedules")
            .into()),
    }
}
