//! `pandastack sandbox rollback`: restores a sandbox to a snapshot.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::Rollback;

use super::resolve::resolve;
use crate::commands::snapshot;
use crate::commands::wait::shown;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// Snapshot to restore: ID, unique ID prefix or name [default: the newest of this sandbox]
    snapshot: Option<String>,
}

/// Runs the command.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let snapshot_id = match &args.snapshot {
        Some(text) => Some(snapshot::find(client, text).await?),
        None => None,
    };
    let request = Rollback { snapshot_id };
    let roll_back = async { Ok(client.rollback_sandbox(&id, &request).await?) };
    let background = format!("the rollback continues; to see its state, run `pandastack sandbox get {id}`");
    let sandbox = shown("Rolling back", &background, roll_back).await?;
    output.value(&sandbox, |sandbox| sandbox.id.to_string())?;
    Ok(ExitCode::SUCCESS)
}
