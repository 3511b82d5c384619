//! `pandastack sandbox logs`: the console log, or the output of a process.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::{Client, ExecEvent};
use pandastack_types::SandboxId;
use tokio::signal::unix::{SignalKind, signal};

use super::resolve::resolve;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// Print the output of this process instead of the console log
    #[arg(long, short, value_name = "ID")]
    process: Option<u64>,
    /// Follow new output until Ctrl-C
    #[arg(long, short)]
    follow: bool,
}

/// Runs the command.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    if let Some(process) = args.process {
        return process_logs(client, &id, process, args.follow, output).await;
    }
    if !args.follow {
        let text = client.logs(&id).await?;
        output.log(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    let mut lines = client.follow_logs(&id).await?;
    loop {
        tokio::select! {
            line = lines.next() => match line? {
                Some(line) => output.log_line(&line)?,
                None => return Ok(ExitCode::SUCCESS),
            },
            _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Prints the retained output of a process; with `follow`, until it exits.
async fn process_logs(
    client: &Client,
    id: &SandboxId,
    process: u64,
    follow: bool,
    output: Output,
) -> Result<ExitCode> {
    let info = client.process(id, process).await?;
    let mut left = (info.stdout_end - info.stdout_start) + (info.stderr_end - info.stderr_start);
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    let mut events = client.process_output(id, process, (info.stdout_start, info.stderr_start)).await?;
    while follow || left > 0 {
        let event = tokio::select! {
            event = events.next() => event?,
            _ = interrupt.recv() => break,
        };
        let taken = match event {
            ExecEvent::Stdout(bytes) => {
                output.raw(&bytes)?;
                bytes.len() as u64
            }
            ExecEvent::Stderr(bytes) => {
                std::io::stderr().write_all(&bytes)?;
                bytes.len() as u64
            }
            ExecEvent::Lost(bytes) => bytes,
            ExecEvent::Exited(_) => break,
        };
        left = left.saturating_sub(taken);
    }
    Ok(ExitCode::SUCCESS)
}
