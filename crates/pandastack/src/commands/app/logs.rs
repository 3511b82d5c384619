//! `pandastack app logs`: runtime logs and deployment logs.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::{DeploymentId, SandboxId};

use super::follow::print_lines;
use crate::failure::Failure;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// App name or ID
    app: String,
    /// Follow new lines until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Print only lines that contain this text
    #[arg(long)]
    search: Option<String>,
    /// Instance to read from, as shown by `pandastack app get` [default: the first]
    #[arg(long, value_name = "ID", conflicts_with = "deploy")]
    instance: Option<SandboxId>,
    /// Print the log of a deployment instead, by default the newest
    #[arg(long, value_name = "ID", num_args = 0..=1)]
    deploy: Option<Option<DeploymentId>>,
}

/// Runs the command.
pub(super) async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let lines = match args.deploy {
        None => {
            let search = args.search.as_deref();
            client.app_logs(&args.app, args.follow, search, args.instance.as_ref()).await?
        }
        Some(id) => {
            let id = match id {
                Some(id) => id,
                None => {
                    let none = || Failure::new(format!("app `{}` has no deployments", args.app));
                    client.list_deployments(&args.app).await?.into_iter().next().ok_or_else(none)?.id
                }
            };
            client.follow_deployment(&args.app, &id).await?
        }
    };
    print_lines(lines, output).await?;
    Ok(ExitCode::SUCCESS)
}
