//! `pandastack app env`: environment variables of an app.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::Client;
use pandastack_types::api::{EnvScope, EnvStage, ImportAppEnv, SetAppEnv};

use crate::commands::each::each;
use crate::commands::pairs::pairs;
use crate::output::Output;

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List environment variables; secrets are masked
    #[command(visible_alias = "ls")]
    List {
        /// App name or ID
        app: String,
    },
    /// Set environment variables
    Set {
        /// App name or ID
        app: String,
        /// Variables to set
        #[arg(required = true, value_name = "KEY=VALUE")]
        pairs: Vec<String>,
        /// Store as secrets, never shown again; a variable stays secret until it is removed
        #[arg(long)]
        secret: bool,
        /// Deployments that see the variables: all, production or preview [default: unchanged, or all if new]
        #[arg(long, value_parser = scope)]
        scope: Option<EnvScope>,
        /// Stage in which the variables are set: all, build or run [default: unchanged, or all if new]
        #[arg(long, value_parser = stage)]
        stage: Option<EnvStage>,
    },
    /// Remove environment variables
    #[command(name = "delete", visible_alias = "rm")]
    Rm {
        /// App name or ID
        app: String,
        /// Variable names
        #[arg(required = true)]
        keys: Vec<String>,
    },
    /// Set environment variables from a .env file
    Import {
        /// App name or ID
        app: String,
        /// The .env file
        file: PathBuf,
        /// Store as secrets, never shown again; a variable stays secret until it is removed
        #[arg(long)]
        secret: bool,
        /// Deployments that see the variables: all, production or preview [default: unchanged, or all if new]
        #[arg(long, value_parser = scope)]
        scope: Option<EnvScope>,
        /// Stage in which the variables are set: all, build or run [default: unchanged, or all if new]
        #[arg(long, value_parser = stage)]
        stage: Option<EnvStage>,
    },
}

pub(super) fn scope(word: &str) -> Result<EnvScope, String> {
    let all = [EnvScope::All, EnvScope::Production, EnvScope::Preview];
    let found = all.into_iter().find(|one| one.as_str() == word);
    found.ok_or_else(|| "expected `all`, `production` or `preview`".to_owned())
}

fn stage(word: &str) -> Result<EnvStage, String> {
    let found = EnvStage::EACH.into_iter().find(|one| one.as_str() == word);
    found.ok_or_else(|| "expected `all`, `build` or `run`".to_owned())
}

impl Command {
    /// Runs the command.
    pub(super) async fn run(self, client: &Client, output: Output) -> Result<ExitCode> {
        match self {
            Command::List { app } => {
                let env = client.app_env(&app).await?;
                output.table(&env, ["KEY", "VALUE", "SCOPE", "STAGE"], |one| {
                    let (scope, stage) = (one.scope.as_str().to_owned(), one.stage.as_str().to_owned());
                    [one.key.clone(), one.value.clone(), scope, stage]
                })?;
            }
            Command::Set { app, pairs: words, secret, scope, stage } => {
                let values = pairs(&words)?.unwrap_or_default();
                let keys: Vec<String> = values.keys().cloned().collect();
                let set = async |key: &str| {
                    let set = SetAppEnv {
                        value: values.get(key).cloned().unwrap_or_default(),
                        secret: secret.then_some(true),
                        scope,
                        stage,
                    };
                    let done = client.set_app_env(&app, key, &set).await?;
                    eprintln!("{}", done.note.unwrap_or_default());
                    Ok(key.to_owned())
                };
                return each(&keys, output, set).await;
            }
            Command::Rm { app, keys } => {
                let unset = async |key: &str| {
                    client.unset_app_env(&app, key).await?;
                    Ok(key.to_owned())
                };
                return each(&keys, output, unset).await;
            }
            Command::Import { app, file, secret, scope, stage } => {
                let dotenv = std::fs::read_to_string(&file)
                    .with_context(|| format!("cannot read {}", file.display()))?;
                let request = ImportAppEnv { dotenv, secret: secret.then_some(true), scope, stage };
                let done = client.import_app_env(&app, &request).await?;
                output.value(&done, |done| format!("{} set, {} total", done.imported, done.total))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}
