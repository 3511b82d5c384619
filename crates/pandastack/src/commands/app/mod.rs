//! `pandastack app`: from a source to an address that stays up.

mod databases;
mod deploy;
mod describe;
mod domains;
mod env;
mod exec;
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
use pandastack_client::{Client, LineStream};
use pandastack_types::DeploymentId;
use pandastack_types::api::{Deployment, DeploymentStatus};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;
use crate::output::{Output, age};

/// Its commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Write a pandastack.toml that says how this directory is deployed
    Init(init::Args),
    /// Deploy an app, and make it the first time
    Deploy(Box<deploy::Args>),
    /// List apps
    #[command(visible_alias = "ls")]
    List,
    /// Show one app
    Get {
        /// Its name or id
        app: String,
    },
    /// Show what the live version prints, or the log of a deployment
    Logs(logs::Args),
    /// Show what the machines of the live version use now; none wakes for it
    Metrics {
        /// The app's name or id
        app: String,
    },
    /// List deployments, newest first
    Deploys {
        /// The app's name or id
        app: String,
    },
    /// Return to an earlier version
    Rollback(versions::Rollback),
    /// Start the live version anew, with the settings and variables of now
    Restart {
        /// The app's name or id
        app: String,
    },
    /// Say how many machines serve an app; the live version follows at once
    Scale(scale::Args),
    /// Keep the live version awake for work in the background; prints until when
    KeepAwake {
        /// The app's name or id
        app: String,
        /// For how long; 0 ends an earlier lease
        seconds: u64,
    },
    /// Stop a deployment that is not live yet
    Cancel {
        /// The app's name or id
        app: String,
        /// The deployment; the one under way when absent
        deployment: Option<DeploymentId>,
    },
    /// List, set and remove variables
    #[command(subcommand)]
    Env(env::Command),
    /// Attach a database: a variable holds its connection string, and the app's machines reach it
    Attach(databases::Attach),
    /// Detach a database; it is out of reach at once
    Detach(databases::Detach),
    /// List, add and remove names
    #[command(subcommand)]
    Domains(domains::Command),
    /// List, show and remove previews of pull requests
    #[command(subcommand)]
    Previews(previews::Command),
    /// Run a command in the machine that serves, stream its output, pass its exit code on
    Exec(exec::Args),
    /// Print the address of an app
    Open {
        /// Its name or id
        app: String,
    },
    /// Delete an app with all its versions
    Rm {
        /// Its name or id
        app: String,
        /// Do not ask; needed with --json
        #[arg(long, short)]
        yes: bool,
    },
}

impl Command {
    /// Carries it out.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        super::with_client(|client| async move { self.carry_out(&client, output).await })
    }

    async fn carry_out(self, client: &Client, output: Output) -> Result<ExitCode> {
        match self {
            Command::Init(args) => init::run(args, output),
            Command::Deploy(args) => deploy::run(client, *args, output).await,
            Command::List => list(client, output).await,
            Command::Get { app } => {
                output.value(&client.get_app(&app).await?, describe::app)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Logs(args) => logs::run(client, args, output).await,
            Command::Metrics { app } => metrics::run(client, &app, output).await,
            Command::Deploys { app } => versions::list(client, &app, output).await,
            Command::Rollback(args) => versions::rollback(client, args, output).await,
            Command::Restart { app } => {
                let begun = client.restart_app(&app).await?;
                follow(client, &app, begun, output).await
            }
            Command::Scale(args) => scale::run(client, args, output).await,
            Command::KeepAwake { app, seconds } => {
                let lifecycle = client.keep_app_awake(&app, seconds).await?;
                output.value(&lifecycle, super::sandbox::keep_awake::lease)?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Cancel { app, deployment } => versions::cancel(client, &app, deployment, output).await,
            Command::Env(command) => command.run(client, output).await,
            Command::Attach(args) => databases::attach(client, args, output).await,
            Command::Detach(args) => databases::detach(client, args, output).await,
            Command::Domains(command) => command.run(client, output).await,
            Command::Previews(command) => command.run(client, output).await,
            Command::Exec(args) => exec::run(client, args, output).await,
            Command::Open { app } => {
                let app = client.get_app(&app).await?;
                output.value(&app, |app| app.url.clone().unwrap_or_default())?;
                Ok(ExitCode::SUCCESS)
            }
            Command::Rm { app, yes } => remove(client, &app, yes, output).await,
        }
    }
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

async fn remove(client: &Client, app: &str, yes: bool, output: Output) -> Result<ExitCode> {
    let found = client.get_app(app).await?;
    if !yes && output.is_json() {
        let failure =
            Failure::new(format!("app `{}` was not deleted: nobody is asked with --json", found.name));
        return Err(failure.hint("give --yes").into());
    }
    if !yes && !confirmed(&found.name)? {
        let failure = Failure::new(format!("app `{}` was not deleted", found.name));
        return Err(failure.hint("type its name to confirm, or give --yes").into());
    }
    client.delete_app(found.id.as_str()).await?;
    output.value(&[&found.name], |_| found.name.clone())?;
    Ok(ExitCode::SUCCESS)
}

/// Asks for the name of what goes for good.
fn confirmed(name: &str) -> Result<bool> {
    eprint!("This deletes app `{name}` and all its versions. Type its name to confirm: ");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("read the answer")?;
    Ok(line.trim() == name)
}

/// Prints lines until the log or the person ends it.
async fn print(mut lines: LineStream, to_stderr: bool, output: Output) -> Result<bool> {
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for Ctrl-C")?;
    loop {
        tokio::select! {
            line = lines.next() => match line? {
                Some(line) if to_stderr => eprintln!("{line}"),
                Some(line) => output.line(&line)?,
                None => return Ok(true),
            },
            _ = interrupt.recv() => return Ok(false),
        }
    }
}

/// Follows a deployment to its end: its log on standard error, the address of the app on standard output.
async fn follow(client: &Client, app: &str, begun: Deployment, output: Output) -> Result<ExitCode> {
    let lines = client.follow_deployment(app, &begun.id).await?;
    if !print(lines, true, output).await? {
        eprintln!("the deployment goes on; `pandastack app logs {app} --deploy {}` follows it", begun.id);
        return Ok(ExitCode::from(crate::failure::INTERRUPTED));
    }
    let ended = client.get_deployment(app, &begun.id).await?;
    if ended.status != DeploymentStatus::Live {
        let why = ended.error.unwrap_or_else(|| ended.status.as_str().to_owned());
        return Err(Failure::new(format!("the deployment is {}: {why}", ended.status.as_str())).into());
    }
    let shown = client.get_app(app).await?;
    output.value(&shown, |app| app.url.clone().unwrap_or_default())?;
    Ok(ExitCode::SUCCESS)
}
