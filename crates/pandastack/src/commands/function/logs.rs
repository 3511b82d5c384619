//! `pandastack fn logs`: what a function printed, and prints.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;

use crate::output::Output;

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The function's name or id
    name: String,
    /// Calls to show
    #[arg(long, short = 'n', default_value_t = 20)]
    limit: u32,
    /// Show what is printed from now on
    #[arg(long, short)]
    follow: bool,
}

/// Prints logs.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    if !args.follow {
        output.raw(client.function_logs(&args.name, args.limit).await?.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = client.follow_function(&args.name).await?;
    while let Some((_, text)) = lines.next().await? {
        output.raw(text.as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}
