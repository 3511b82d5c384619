//! `pandastack fn`: manages functions.

mod bundle;
mod deploy;
#[cfg(feature = "server")]
mod dev;
mod init;
mod invoke;
mod logs;
mod watch;

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::api::{Alias, DeployStatus, Function, RollbackFunction};

use super::each::{each, show_each};
use super::runtime::{block_on, with_client};
use crate::failure::Failure;
use crate::output::{Output, age, fields, size};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a starter function
    Init(init::Args),
    /// Deploy a directory or a file as a new version
    Deploy(deploy::Args),
    /// Call a function and print its response
    #[command(visible_alias = "call")]
    Invoke(invoke::Args),
    /// Print the logs of a function
    Logs(logs::Args),
    /// Run a function locally, without isolation, and restart it when a file changes
    #[cfg(feature = "server")]
    Dev(dev::Args),
    /// List functions
    #[command(visible_alias = "ls")]
    List,
    /// Show functions
    Get {
        /// Function names or IDs
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// List calls of a function, newest first
    Runs {
        /// Function name or ID
        name: String,
        /// List only asynchronous calls that failed all their retries
        #[arg(long)]
        dead_letters: bool,
    },
    /// Retry asynchronous calls that failed all their retries
    Redrive {
        /// Function name or ID
        name: String,
        /// Run ID [default: all failed calls]
        run: Option<String>,
    },
    /// List versions of a function, newest first
    Versions {
        /// Function name or ID
        name: String,
    },
    /// Show latency and error rate
    Metrics {
        /// Function name or ID
        name: String,
        /// Period to show, in hours
        #[arg(long, value_name = "HOURS", default_value_t = 24)]
        period: u64,
    },
    /// Roll back to an earlier version
    Rollback {
        /// Function name or ID
        name: String,
        /// Version to roll back to [default: the previous version]
        version: Option<u32>,
    },
    /// Point an alias to a version, or split calls between two versions
    Alias {
        /// Function name or ID
        name: String,
        /// Alias name
        alias: String,
        /// Version that the alias points to
        version: u32,
        /// Second version that receives a share of the calls
        #[arg(long, value_name = "VERSION")]
        canary: Option<u32>,
        /// Share of calls that go to the canary version, in percent
        #[arg(long, default_value_t = 0, requires = "canary")]
        percent: u32,
    },
    /// Delete functions, including their versions and runs
    #[command(name = "delete", visible_alias = "rm")]
    Rm {
        /// Function names or IDs
        #[arg(required = true)]
        names: Vec<String>,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        match self {
            Command::Init(args) => return init::run(&args, output),
            #[cfg(feature = "server")]
            Command::Dev(args) => return block_on(dev::run(args)),
            _ => {}
        }
        with_client(|client| async move {
            match self {
                Command::Init(_) => {}
                Command::Deploy(args) => return deploy::run(&client, args, output).await,
                Command::Invoke(args) => return invoke::run(&client, args, output).await,
                Command::Logs(args) => return logs::run(&client, args, output).await,
                #[cfg(feature = "server")]
                Command::Dev(_) => {}
                Command::List => list(&client, output).await?,
                Command::Get { names } => {
                    let fetch = async |name: &str| Ok(client.get_function(name).await?);
                    return show_each(&names, output, fetch, details).await;
                }
                Command::Runs { name, dead_letters } => runs(&client, &name, dead_letters, output).await?,
                Command::Redrive { name, run } => redrive(&client, &name, run.as_deref(), output).await?,
                Command::Versions { name } => versions(&client, &name, output).await?,
                Command::Metrics { name, period } => metrics(&client, &name, period, output).await?,
                Command::Rollback { name, version } => {
                    let function = client.rollback_function(&name, &RollbackFunction { version }).await?;
                    output.value(&function, |function| {
                        format!("{} now runs version {}", function.name, function.version)
                    })?;
                }
                Command::Alias { name, alias, version, canary, percent } => {
                    let to = Alias { version, canary_version: canary, canary_percent: percent };
                    output.value(&client.set_function_alias(&name, &alias, &to).await?, details)?;
                }
                Command::Rm { names } => {
                    let delete = async |name: &str| {
                        client.delete_function(name).await?;
                        Ok(name.to_owned())
                    };
                    return each(&names, output, delete).await;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn status(function: &Function) -> &'static str {
    match (function.deploy_status, function.is_ready) {
        (None, _) => "no code",
        (Some(DeployStatus::Building), _) => "deploying",
        (Some(DeployStatus::Ready), _) => "ready",
        (Some(DeployStatus::Failed), true) => "ready, last deployment failed",
        (Some(DeployStatus::Failed), false) => "failed",
    }
}

async fn list(client: &Client, output: Output) -> Result<()> {
    let functions = client.list_functions().await?;
    let now = Timestamp::now();
    output.table(&functions, ["NAME", "STATUS", "VERSION", "RUNTIME", "SIZE", "AGE", "URL"], |function| {
        [
            function.name.clone(),
            status(function).to_owned(),
            function.version.to_string(),
            function.runtime.as_str().to_owned(),
            size(function.code_size),
            age(function.updated_at, now),
            function.url.clone().unwrap_or_default(),
        ]
    })
}

fn details(function: &Function) -> String {
    let aliases: Vec<_> = function
        .aliases
        .iter()
        .map(|(name, alias)| match alias.canary_version {
            Some(canary) => format!("{name} = {} ({}% to {canary})", alias.version, alias.canary_percent),
            None => format!("{name} = {}", alias.version),
        })
        .collect();
    fields(&[
        ("name", function.name.clone()),
        ("id", function.id.to_string()),
        ("status", status(function).to_owned()),
        ("error", function.deploy_error.clone().unwrap_or_default()),
        ("version", function.version.to_string()),
        ("runtime", format!("{} {}", function.runtime.as_str(), function.entrypoint)),
        ("template", function.template.clone()),
        ("url", function.url.clone().unwrap_or_default()),
        ("public", function.public.to_string()),
        ("aliases", aliases.join(", ")),
        ("secrets", function.secrets.join(", ")),
        ("timeout", format!("{} s", function.settings.timeout_seconds.unwrap_or_default())),
        ("memory", function.settings.memory_mb.map_or_else(String::new, |mb| format!("{mb} MiB"))),
        ("dead letter URL", function.settings.dead_letter_url.clone().unwrap_or_default()),
    ])
}

async fn redrive(client: &Client, name: &str, run: Option<&str>, output: Output) -> Result<()> {
    let Some(run) = run else {
        return output.value(&client.redrive_function(name).await?, |done| match done.left {
            0 => format!("requeued {} calls", done.redriven),
            left => format!("requeued {} calls; {left} remain: run this command again", done.redriven),
        });
    };
    let invalid = |_| {
        Failure::new(format!("invalid run ID `{run}`"))
            .hint(format!("run `pandastack fn runs {name}` to see all runs"))
    };
    let run = client.redrive_function_run(name, &run.parse().map_err(invalid)?).await?;
    output.value(&run, |run| format!("requeued {}", run.id))
}

async fn runs(client: &Client, name: &str, dead_letters: bool, output: Output) -> Result<()> {
    let runs = match dead_letters {
        true => client.function_dead_letters(name).await?,
        false => client.function_runs(name).await?,
    };
    let now = Timestamp::now();
    output.table(&runs, ["ID", "STATUS", "KIND", "DURATION", "START", "VERSION", "AGE", "ERROR"], |run| {
        let kind = serde_json::to_value(run.kind).ok().and_then(|kind| kind.as_str().map(str::to_owned));
        [
            run.id.to_string(),
            run.status.as_str().to_owned(),
            kind.unwrap_or_default(),
            format!("{:.1} ms", run.duration_ms),
            if run.cold { "cold" } else { "warm" }.to_owned(),
            run.version.to_string(),
            age(run.started_at, now),
            run.error.clone().unwrap_or_default().lines().next().unwrap_or_default().to_owned(),
        ]
    })
}

async fn versions(client: &Client, name: &str, output: Output) -> Result<()> {
    let versions = client.function_versions(name).await?;
    let now = Timestamp::now();
    output.table(&versions, ["VERSION", "STATUS", "SIZE", "BUILD TIME", "AGE", "ERROR"], |version| {
        [
            version.version.to_string(),
            version.status.as_str().to_owned(),
            size(version.code_size),
            version.build_ms.map_or_else(|| "-".to_owned(), |ms| format!("{:.1} s", ms as f64 / 1000.0)),
            age(version.created_at, now),
            version.error.clone().unwrap_or_default(),
        ]
    })
}

async fn metrics(client: &Client, name: &str, period: u64, output: Output) -> Result<()> {
    output.value(&client.function_metrics(name, period).await?, |metrics| {
        fields(&[
            ("calls", format!("{} in {} h", metrics.total, metrics.period)),
            ("errors", format!("{} ({:.1}%)", metrics.errors, metrics.error_rate * 100.0)),
            ("p50", format!("{:.1} ms", metrics.p50_ms)),
            ("p95", format!("{:.1} ms", metrics.p95_ms)),
            ("p99", format!("{:.1} ms", metrics.p99_ms)),
            ("cold starts", format!("{:.1}%", metrics.cold_start_rate * 100.0)),
            ("instances", metrics.instances.to_string()),
            ("waiting", metrics.waiting.to_string()),
        ])
    })
}
