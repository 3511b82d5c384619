//! `pandastack app scale`.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{AppSettings, UpdateApp};

use super::{describe, follow};
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The app's name or id
    app: String,
    /// Machines that never sleep, at most --max
    #[arg(long, value_name = "COUNT", required_unless_present = "max")]
    min: Option<u32>,
    /// Machines that serve, 1 to 10; those beyond --min sleep until there is enough to do
    #[arg(long, value_name = "COUNT")]
    max: Option<u32>,
}

/// Carries it out, and follows the deployment that makes or gives up machines.
pub(super) async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let settings = AppSettings { min_instances: args.min, max_instances: args.max, ..AppSettings::default() };
    let wanted = UpdateApp { settings, ..UpdateApp::default() };
    let app = client.update_app(&args.app, &wanted).await?;
    let newest = client.list_deployments(&args.app).await?.into_iter().next();
    match newest.filter(|one| one.status.is_under_way()) {
        Some(begun) => follow(client, &args.app, begun, output).await,
        None => {
            output.value(&app, describe::app)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
