//! `pandastack app`: manages apps.

mod databases;
mod deploy;
mod describe;
mod domains;
mod env;
mod exec;
mod follow;
mod init;
mod logs;
mod metrics;
mod previews;
mod scale;
mod source;
mod versions;

use std::process::ExitCode;

use anyhow::{Context, Result};
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::DeploymentId;

use super::browser;
use super::each::{each, show_each};
use super::runtime::with_client;
use super::sandbox::keep_awake;
use super::wait::{WaitArgs, shown};
use crate::failure::Failure;
use crate::output::{Output, age};
use follow::follow;

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a pandastack.toml for a directory
    Init(init::Args),
    /// Deploy an app, creating it on first use
    Deploy(Box<deploy::Args>),
    /// List apps
    #[command(visible_alias = "ls")]
    List,
    /// Show apps with their settings and databases
    Get {
        /// App names or IDs
        #[arg(required = true, value_name = "APP")]
        apps: Vec<String>,
    },
    /// Print the logs of an app or of a deployment
    Logs(logs::Args),
    /// Show current resource usage; does not wake the app
    Metrics {
        /// App name or ID
        app: String,
    },
    /// List deployments, newest first
    Deploys {
        /// App name or ID
        app: String,
    },
    /// Roll back to an earlier deployment
    Rollback(versions::Rollback),
    /// Restart an app with its current settings and variables
    Restart {
        /// App name or ID
        app: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Change the number of instances; takes effect immediately
    Scale(scale::Args),
    /// Keep an app awake for background work; prints when the lease ends
    KeepAwake {
        /// App name or ID
        app: String,
        /// Seconds to stay awake; 0 ends an earlier lease
        seconds: u64,
    },
    /// Cancel a deployment in progress
    Cancel {
        /// App name or ID
        app: String,
        /// Deployment ID [default: the deployment in progress]
        deployment: Option<DeploymentId>,
    },
    /// Manage environment variables
    #[command(subcommand)]
    Env(env::Command),
    /// Attach a database and set its connection string as a variable
    Attach(databases::Attach),
    /// Detach a database; access ends immediately
    Detach(databases::Detach),
    /// Manage custom domains
    #[command(subcommand)]
    Domains(domains::Command),
    /// Manage previews of pull requests
    #[command(subcommand)]
    Previews(previews::Command),
    /// Run a command in an instance, stream its output and return its exit code
    Exec(exec::Args),
    /// Print the URL of an app
    Url {
        /// App name or ID
        app: String,
    },
    /// Open an app in a browser
    Open {
        /// App name or ID
        app: String,
    },
    /// Delete apps and all their deployments
    #[command(name = "delete", visible_alias = "rm")]
    Rm {
        /// App names or IDs
        #[arg(required = true, value_name = "APP")]
        apps: Vec<String>,
        /// Do not ask for confirmation; required with --json
        #[arg(long, short)]
        yes: bool,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move { self.dispatch(&client, output).await })
    }

    async fn dispatch(self, client: &Client, output: Output) -> Result<ExitCode> {
        match self {
            Command::Init(args) => init::run(args, output),
            Command::Deploy(args) => deploy::run(client, *args, output).await,
            Command::List => list(client, output).await,
            Command::Get { apps } => {
                let fetch = async |app: &str| Ok(client.get_app(app).await?);
                show_each(&apps, output, fetch, describe::app).await
            }
            Command::Logs(args) => logs::run(client, args, output).await,
            Command::Metrics { app } => metrics::run(client, &app, output).await,
            Command::Deploys { app } => versions::list(client, &app, output).await,
            Command::Rollback(args) => versions::rollback(client, args, output).await,
            Command::Restart { app, wait } => {
                let deployment = client.restart_app(&app).await?;
                follow(client, &app, deployment, wait, output).await
            }
            Command::Scale(args) => scale::run(client, args, output).await,
            Command::KeepAwake { app, seconds } => {
                let lifecycle = client.keep_app_awake(&app, seconds).await?;
                output.value(&lifecycle, keep_awake::lease)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Cancel { app, deployment } => versions::cancel(client, &app, deployment, output).await,
            Command::Env(command) => command.run(client, output).await,
            Command::Attach(args) => databases::attach(client, args, output).await,
            Command::Detach(args) => databases::detach(client, args, output).await,
            Command::Domains(command) => command.run(client, output).await,
            Command::Previews(command) => command.run(client, output).await,
            Command::Exec(args) => exec::run(client, args, output).await,
            Command::Url { app } => {
                print_url(client, &app, output).await?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Open { app } => {
                if let Some(url) = print_url(client, &app, output).await? {
                    browser::open(&url, output);
                }
                Ok(ExitCode::SUCCESS)
            }
            Command::Rm { apps, yes } => {
                let delete = async |app: &str| remove(client, app, yes, output).await;
                each(&apps, output, delete).await
            }
        }
    }
}

async fn print_url(client: &Client, app: &str, output: Output) -> Result<Option<String>> {
    let app = client.get_app(app).await?;
    output.value(&app, |app| app.url.clone().unwrap_or_default())?;
    Ok(app.url)
}

async fn list(client: &Client, output: Output) -> Result<ExitCode> {
    let (apps, now) = (client.list_apps().await?, Timestamp::now());
    output.table(&apps, ["NAME", "STATUS", "FRAMEWORK", "URL", "UPDATED"], |app| {
        [
            app.name.clone(),
            describe::status(app.status).to_owned(),
            app.framework.clone().unwrap_or_else(|| "-".to_owned()),
            app.url.clone().unwrap_or_default(),
            age(app.updated_at, now),
        ]
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Deletes an app after the user has confirmed it, and returns its name.
async fn remove(client: &Client, app: &str, yes: bool, output: Output) -> Result<String> {
    let found = client.get_app(app).await?;
    if !yes && output.is_json() {
        let failure = Failure::new(format!("cannot delete app `{}` without confirmation", found.name));
        return Err(failure.hint("use --yes to delete it without confirmation").into());
    }
    if !yes && !confirmed(&found.name)? {
        let failure = Failure::new(format!("app `{}` was not deleted: the name does not match", found.name));
        return Err(failure.hint("type the app's name to confirm, or use --yes").into());
    }
    let delete = async { Ok(client.delete_app(found.id.as_str()).await?) };
    let background = "the deletion continues; `pandastack app list` shows when it is done";
    shown(format!("Deleting app {}", found.name), background, delete).await?;
    Ok(found.name)
}

/// Asks the user to type the app's name.
fn confirmed(name: &str) -> Result<bool> {
    eprint!("This deletes app `{name}` and all its deployments. Type the name to confirm: ");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("cannot read the confirmation")?;
    Ok(line.trim() == name)
}
