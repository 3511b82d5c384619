//! `pandastack app scale`: changes the number of instances.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{AppSettings, UpdateApp};

use super::describe;
use super::follow::follow;
use crate::commands::wait::WaitArgs;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// App name or ID
    app: String,
    /// Minimum number of instances, which never sleep; at most --max
    #[arg(long, alias = "min-instances", value_name = "COUNT", required_unless_present = "max")]
    min: Option<u32>,
    /// Maximum number of instances, 1 to 10; those beyond --min sleep until they are needed
    #[arg(long, alias = "max-instances", value_name = "COUNT")]
    max: Option<u32>,
    #[command(flatten)]
    wait: WaitArgs,
}

/// Runs the command and follows the deployment that adds or removes instances.
pub(super) async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let settings = AppSettings { min_instances: args.min, max_instances: args.max, ..AppSettings::default() };
    let update = UpdateApp { settings, ..UpdateApp::default() };
    let app = client.update_app(&args.app, &update).await?;
    let newest = client.list_deployments(&args.app).await?.into_iter().next();
    match newest.filter(|one| one.status.is_in_progress()) {
        Some(deployment) => follow(client, &args.app, deployment, args.wait, output).await,
        None => {
            output.value(&app, describe::app)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
