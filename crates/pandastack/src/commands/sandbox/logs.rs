//! `pandastack sandbox logs`: the console.

use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::Client;
use tokio::signal::unix::{SignalKind, signal};

use super::resolve;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id
    id: String,
    /// Go on with what is added, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
}

/// Carries it out.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    if !args.follow {
        let text = client.logs(&id).await?;
        output.raw(text.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for Ctrl-C")?;
    let mut lines = client.follow_logs(&id).await?;
    loop {
        tokio::select! {
            line = lines.next() => match line? {
                Some(line) => output.line(&line)?,
                None => return Ok(ExitCode::SUCCESS),
            },
            _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}
