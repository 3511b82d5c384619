//! `pandastack app previews`: previews of pull requests.

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::api::AppPreview;

use super::describe;
use crate::commands::each::each;
use crate::output::{Output, age, fields};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List previews
    #[command(visible_alias = "ls")]
    List {
        /// App name or ID
        app: String,
    },
    /// Show the preview of a pull request
    Get {
        /// App name or ID
        app: String,
        /// Pull request number
        number: u32,
    },
    /// Delete previews; the next commit to a pull request creates its preview again
    #[command(name = "delete", visible_alias = "rm")]
    Rm {
        /// App name or ID
        app: String,
        /// Pull request numbers
        #[arg(required = true, value_name = "NUMBER")]
        numbers: Vec<u32>,
    },
}

impl Command {
    /// Runs the command.
    pub(super) async fn run(self, client: &Client, output: Output) -> Result<ExitCode> {
        match self {
            Command::List { app } => {
                let (previews, now) = (client.app_previews(&app).await?, Timestamp::now());
                output.table(
                    &previews,
                    ["PULL REQUEST", "STATUS", "BRANCH", "COMMIT", "URL", "UPDATED"],
                    |one| {
                        [
                            one.number.to_string(),
                            describe::status(one.status).to_owned(),
                            branch(one),
                            one.git_commit.chars().take(10).collect(),
                            one.url.clone().unwrap_or_default(),
                            age(one.updated_at, now),
                        ]
                    },
                )?;
            }
            Command::Get { app, number } => {
                output.value(&client.app_preview(&app, number).await?, details)?;
            }
            Command::Rm { app, numbers } => {
                let names: Vec<String> = numbers.iter().map(u32::to_string).collect();
                let remove = async |name: &str| {
                    client.remove_app_preview(&app, name.parse()?).await?;
                    Ok(name.to_owned())
                };
                return each(&names, output, remove).await;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn branch(preview: &AppPreview) -> String {
    let fork = if preview.fork { " (fork)" } else { "" };
    format!("{}{fork}", preview.branch)
}

fn details(preview: &AppPreview) -> String {
    let deployment = preview.deployment.as_ref();
    let id = |id: &dyn ToString| id.to_string();
    fields(&[
        ("name", preview.name.clone()),
        ("id", preview.id.to_string()),
        ("title", preview.title.clone()),
        ("branch", branch(preview)),
        ("commit", preview.git_commit.clone()),
        ("pull request", preview.pull_url.clone().unwrap_or_default()),
        ("status", describe::status(preview.status).to_owned()),
        ("url", preview.url.clone().unwrap_or_default()),
        ("sandbox", preview.sandbox_id.as_ref().map(|sandbox| id(sandbox)).unwrap_or_default()),
        ("deployment", deployment.map(|one| id(&one.id)).unwrap_or_default()),
        ("error", deployment.and_then(|one| one.error.clone()).unwrap_or_default()),
    ])
}
