//! `pandastack sandbox exec`: output streams, the exit code is passed on.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::{Client, ExecEvent};
use pandastack_types::SandboxId;
use pandastack_types::api::ExecRequest;
use tokio::signal::unix::{SignalKind, signal};

use super::resolve;
use crate::commands::run::passed_on;
use crate::commands::{command_line, pairs};
use crate::failure::{INTERRUPTED, WhileRunning};
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The sandbox's id
    id: String,
    /// Working directory
    #[arg(long)]
    cwd: Option<String>,
    /// User to run as
    #[arg(long, short)]
    user: Option<String>,
    /// Environment variable of the command
    #[arg(long, short, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Kill the command after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// The command; a single word is run by the shell
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Carries it out.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    run_checked(client, args, output).await.map_err(|error| WhileRunning(error).into())
}

async fn run_checked(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let (cmd, argv) = command_line(args.command);
    let (cwd, user, timeout_seconds) = (args.cwd, args.user, args.timeout);
    let request = ExecRequest {
        cmd,
        argv,
        cwd,
        env: pairs(&args.env)?,
        user,
        timeout_seconds,
        ..ExecRequest::default()
    };
    if output.is_json() {
        let result = client.exec(&id, &request).await?;
        output.value(&result, |_| String::new())?;
        return Ok(ExitCode::from(passed_on(result.exit_code)));
    }
    stream_until_interrupted(client, &id, &request, output).await.map(ExitCode::from)
}

/// Streams a command's output; Ctrl-C ends the stream, and with it the command.
pub async fn stream_until_interrupted(
    client: &Client,
    id: &SandboxId,
    request: &ExecRequest,
    output: Output,
) -> Result<u8> {
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    tokio::select! {
        code = stream(client, id, request, output) => code,
        _ = interrupt.recv() => Ok(INTERRUPTED),
        _ = terminate.recv() => Ok(INTERRUPTED),
    }
}

async fn stream(client: &Client, id: &SandboxId, request: &ExecRequest, output: Output) -> Result<u8> {
    let mut events = client.exec_stream(id, request).await?;
    loop {
        match events.next().await? {
            ExecEvent::Stdout(text) => output.raw(text.as_bytes())?,
            ExecEvent::Stderr(text) => std::io::stderr().write_all(text.as_bytes())?,
            ExecEvent::Exited(code) => return Ok(passed_on(code)),
        }
    }
}
