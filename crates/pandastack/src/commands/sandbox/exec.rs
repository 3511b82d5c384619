//! `pandastack sandbox exec`, and what `app exec` shares with it: output streams, the exit code is passed on.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::{Client, ExecEvent};
use pandastack_types::SandboxId;
use pandastack_types::api::{ExecRequest, Signal, StartProcess};
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
    #[command(flatten)]
    how: How,
    /// The command; a single word is run by the shell
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// How a command is run.
#[derive(Debug, clap::Args)]
pub struct How {
    /// Working directory
    #[arg(long)]
    pub cwd: Option<String>,
    /// User to run as
    #[arg(long, short)]
    user: Option<String>,
    /// Environment variable of the command
    #[arg(long, short, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Kill the command after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Pass standard input on
    #[arg(long, short)]
    interactive: bool,
    /// Give it a terminal
    #[arg(long, short, conflicts_with = "detach")]
    tty: bool,
    /// Print the process's number and leave it running
    #[arg(long, short, conflicts_with = "interactive")]
    detach: bool,
}

/// Carries it out.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let ran = async {
        let id = resolve(client, &args.id).await?;
        run_in(client, &id, args.how, args.command, output).await
    };
    ran.await.map_err(|error| WhileRunning(error).into())
}

/// Runs a command in a sandbox that is known.
pub async fn run_in(
    client: &Client,
    id: &SandboxId,
    how: How,
    words: Vec<String>,
    output: Output,
) -> Result<ExitCode> {
    let (cmd, argv) = command_line(words);
    let (cwd, user, timeout_seconds) = (how.cwd, how.user, how.timeout);
    let env = pairs(&how.env)?;
    let request = ExecRequest { cmd, argv, cwd, env, user, timeout_seconds, ..ExecRequest::default() };
    if how.interactive || how.tty || how.detach {
        let pty = how.tty.then(super::raw_terminal::size);
        let start = StartProcess { exec: request, stdin_open: how.interactive, pty, tag: None };
        let process = client.start_process(id, &start).await?;
        if how.detach {
            output.value(&process, |process| process.id.to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        return super::attach::sit_at(client, id, process, (0, 0), output).await;
    }
    if output.is_json() {
        let result = client.exec(id, &request).await?;
        output.value(&result, |_| String::new())?;
        return Ok(ExitCode::from(passed_on(result.exit_code)));
    }
    stream_until_interrupted(client, id, &request, output).await.map(ExitCode::from)
}

/// Streams a command's output. Ctrl-C goes to the command; a second one, or SIGTERM, kills it.
pub async fn stream_until_interrupted(
    client: &Client,
    id: &SandboxId,
    request: &ExecRequest,
    output: Output,
) -> Result<u8> {
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    let mut events = tokio::select! {
        events = client.exec_stream(id, request) => events?,
        _ = interrupt.recv() => return Ok(INTERRUPTED),
    };
    let mut asked = false;
    loop {
        let is_last = tokio::select! {
            event = events.next() => match event? {
                ExecEvent::Stdout(bytes) => { output.raw(&bytes)?; continue }
                ExecEvent::Stderr(bytes) => { std::io::stderr().write_all(&bytes)?; continue }
                ExecEvent::Lost(bytes) => { eprintln!("[{bytes} bytes of output are gone]"); continue }
                ExecEvent::Exited(code) => return Ok(passed_on(code)),
            },
            _ = interrupt.recv() => std::mem::replace(&mut asked, true),
            _ = terminate.recv() => true,
        };
        let Some(process) = events.process() else { return Ok(INTERRUPTED) };
        let signal = if is_last { Signal::KILL } else { Signal::INT };
        // A command that has ended in the meantime tells so by its exit.
        client.signal_process(id, process, signal).await.ok();
        if is_last {
            return Ok(INTERRUPTED);
        }
    }
}
