//! `pandastack fn logs`: logs of a function.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;

use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Function name or ID
    name: String,
    /// Number of calls to show, newest first
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 20)]
    limit: u32,
    /// Follow new output until Ctrl-C
    #[arg(long, short)]
    follow: bool,
}

/// Prints logs.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    if !args.follow {
        output.log(&client.function_logs(&args.name, args.limit).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut lines = client.follow_function(&args.name).await?;
    while let Some((_, text)) = lines.next().await? {
        output.log(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}
