//! `pandastack schedule`: run something at certain times.

mod options;
mod show;

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::ScheduleRunId;
use pandastack_types::api::{CreateSchedule, PatchSchedule, PreviewSchedule, RunStatus, Schedule};

use crate::failure::Failure;
use crate::output::Output;
use options::{OptionArgs, TargetArgs, TimingArgs};

/// Its commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a schedule
    Create {
        /// Name for people
        name: String,
        #[command(flatten)]
        timing: TimingArgs,
        #[command(flatten)]
        target: Box<TargetArgs>,
        #[command(flatten)]
        options: Box<OptionArgs>,
        /// Make it, but do not run it until it is resumed
        #[arg(long)]
        paused: bool,
    },
    /// List schedules
    #[command(visible_alias = "ls")]
    List,
    /// Show one schedule
    Get {
        /// Its id or name
        schedule: String,
    },
    /// Change a schedule; what is not given stays
    Update {
        /// Its id or name
        schedule: String,
        /// A new name
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        timing: TimingArgs,
        #[command(flatten)]
        target: Box<TargetArgs>,
        #[command(flatten)]
        options: Box<OptionArgs>,
    },
    /// Let a schedule rest
    Pause {
        /// Its id or name
        schedule: String,
    },
    /// Let a schedule go on
    Resume {
        /// Its id or name
        schedule: String,
    },
    /// Run a schedule now and show what came of it
    Run {
        /// Its id or name
        schedule: String,
        /// Do not wait for its end
        #[arg(long)]
        no_wait: bool,
    },
    /// List the runs of a schedule, newest first, or show one with its output
    Runs {
        /// Its id or name
        schedule: String,
        /// Show this run
        run: Option<ScheduleRunId>,
        /// How many to list
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// End a run before its end
    Cancel {
        /// Id or name of the schedule
        schedule: String,
        /// Id of the run
        run: ScheduleRunId,
    },
    /// Show when a schedule, or a timing that is not one yet, runs next
    Next {
        /// Id or name of a schedule
        #[arg(required_unless_present_any = ["cron", "every", "at"])]
        schedule: Option<String>,
        #[command(flatten)]
        timing: TimingArgs,
        /// How many times
        #[arg(long, default_value_t = 5)]
        count: u32,
    },
    /// Delete schedules with their history
    Rm {
        /// Their ids or names
        #[arg(required = true)]
        schedules: Vec<String>,
    },
}

impl Command {
    /// Carries it out.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        super::with_client(|client| async move { self.carry_out(&client, output).await })
    }

    async fn carry_out(self, client: &Client, output: Output) -> Result<ExitCode> {
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
                let made = client.create_schedule(&request).await?;
                output.value(&made, |made| made.id.to_string())?;
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
                return super::each(&schedules, output, delete).await;
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
    let is_good = matches!(run.status, RunStatus::Success | RunStatus::Queued | RunStatus::Running);
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The schedule with that id, or the only one with that name.
async fn resolve(client: &Client, text: &str) -> Result<Schedule> {
    let all = client.list_schedules().await?;
    if let Some(found) = all.iter().find(|schedule| schedule.id.as_str() == text) {
        return Ok(found.clone());
    }
    let mut named: Vec<_> = all.into_iter().filter(|schedule| schedule.name == text).collect();
    match (named.pop(), named.len()) {
        (Some(found), 0) => Ok(found),
        (Some(_), more) => {
            Err(Failure::new(format!("{} schedules are called `{text}`; use the id", more + 1)).into())
        }
        (None, _) => Err(Failure::new(format!("there is no schedule `{text}`")).into()),
    }
}
