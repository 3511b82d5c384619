//! `pandastack sandbox logs`: the console.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::{Client, ExecEvent};
use pandastack_types::SandboxId;
use tokio::signal::unix::{SignalKind, signal};

use super::resolve;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id
    id: String,
    /// Of this process, as `sandbox ps` numbers it, instead of the console
    #[arg(long, short, value_name = "ID")]
    process: Option<u64>,
    /// Go on with what is added, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
}

/// Carries it out.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    if let Some(process) = args.process {
        return process_logs(client, &id, process, args.follow, output).await;
    }
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

/// What a process wrote, as far as it is kept; with `follow`, up to its end.
async fn process_logs(
    client: &Client,
    id: &SandboxId,
    process: u64,
    follow: bool,
    output: Output,
) -> Result<ExitCode> {
    let known = client.process(id, process).await?;
    let mut left = (known.stdout_end - known.stdout_start) + (known.stderr_end - known.stderr_start);
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for Ctrl-C")?;
    let mut events = client.process_output(id, process, (known.stdout_start, known.stderr_start)).await?;
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
