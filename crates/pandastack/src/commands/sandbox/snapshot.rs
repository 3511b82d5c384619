//! `pandastack sandbox snapshot`.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::CreateSnapshot;

use super::resolve;
use crate::commands::pairs;
use crate::output::Output;
use crate::progress::Progress;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id
    id: String,
    /// Name for people
    #[arg(long)]
    name: Option<String>,
    /// Label
    #[arg(long, short, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Delete it after this many seconds
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    /// Of this sandbox's unnamed snapshots keep only this many, the newest
    #[arg(long, value_name = "COUNT")]
    keep_last: Option<u32>,
}

/// Carries it out.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let progress = Progress::start("Saving the sandbox");
    let request = CreateSnapshot {
        name: args.name,
        metadata: pairs(&args.metadata)?,
        ttl_seconds: args.ttl,
        keep_last: args.keep_last,
    };
    let snapshot = client.create_snapshot(&id, &request).await?;
    drop(progress);
    output.value(&snapshot, |snapshot| snapshot.id.to_string())?;
    Ok(ExitCode::SUCCESS)
}
