//! `pandastack app logs`.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::{DeploymentId, SandboxId};

use super::print;
use crate::failure::Failure;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The app's name or id
    app: String,
    /// Go on with what is printed from now on
    #[arg(long, short)]
    follow: bool,
    /// Only lines that contain this
    #[arg(long)]
    search: Option<String>,
    /// The machine, of several that serve; the first when absent. `app get` shows them
    #[arg(long, value_name = "ID", conflicts_with = "deploy")]
    instance: Option<SandboxId>,
    /// The log of a deployment instead; the newest when no id is given
    #[arg(long, value_name = "ID", num_args = 0..=1)]
    deploy: Option<Option<DeploymentId>>,
}

/// Carries it out.
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
                    let none = || Failure::new(format!("app `{}` was never deployed", args.app));
                    client.list_deployments(&args.app).await?.into_iter().next().ok_or_else(none)?.id
                }
            };
            client.follow_deployment(&args.app, &id).await?
        }
    };
    print(lines, false, output).await?;
    Ok(ExitCode::SUCCESS)
}
