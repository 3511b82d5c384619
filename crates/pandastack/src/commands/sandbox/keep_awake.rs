//! `pandastack sandbox keep-awake`.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::Lifecycle;

use super::resolve;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id
    id: String,
    /// For how long; 0 ends an earlier lease
    seconds: u64,
}

/// Carries it out; prints when the lease ends.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let lifecycle = client.keep_awake(&id, args.seconds).await?;
    output.value(&lifecycle, lease)?;
    Ok(ExitCode::SUCCESS)
}

/// Until when something stays awake.
pub fn lease(lifecycle: &Lifecycle) -> String {
    lifecycle.awake_until.map_or_else(|| "no lease".to_owned(), |until| until.to_string())
}
