//! `pandastack sandbox snapshot`: takes a snapshot.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::CreateSnapshot;

use super::resolve::resolve;
use crate::commands::pairs::pairs;
use crate::commands::wait::shown;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// Name to use instead of the ID; must be unique in the workspace
    #[arg(long)]
    name: Option<String>,
    /// If another snapshot has the name, move the name to the new snapshot
    #[arg(long, requires = "name")]
    replace_name: bool,
    /// Metadata label; can be repeated
    #[arg(long, short, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Delete the snapshot after this many seconds
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    /// Keep only this many of the sandbox's unnamed snapshots, newest first
    #[arg(long, value_name = "COUNT")]
    keep_last: Option<u32>,
}

/// Runs the command.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let request = CreateSnapshot {
        name: args.name,
        replace_name: args.replace_name,
        metadata: pairs(&args.metadata)?,
        ttl_seconds: args.ttl,
        keep_last: args.keep_last,
    };
    let take = async { Ok(client.create_snapshot(&id, &request).await?) };
    let background = "the snapshot is still taken; `pandastack snapshot list` shows it";
    let snapshot = shown("Taking a snapshot", background, take).await?;
    output.value(&snapshot, |snapshot| snapshot.id.to_string())?;
    Ok(ExitCode::SUCCESS)
}
