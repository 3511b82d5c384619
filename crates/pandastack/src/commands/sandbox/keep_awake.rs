//! `pandastack sandbox keep-awake`: keeps a sandbox from hibernating.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::Lifecycle;

use super::resolve::resolve;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// Seconds to stay awake; 0 ends an earlier lease
    seconds: u64,
}

/// Runs the command; prints when the lease ends.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let lifecycle = client.keep_awake(&id, args.seconds).await?;
    output.value(&lifecycle, lease)?;
    Ok(ExitCode::SUCCESS)
}

/// When the lease ends.
pub fn lease(lifecycle: &Lifecycle) -> String {
    lifecycle.awake_until.map_or_else(|| "no lease".to_owned(), |until| until.to_string())
}
