//! `pandastack sandbox exec`, also used by `app exec`: streams the output and returns the exit code.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::{Client, ExecEvent};
use pandastack_types::SandboxId;
use pandastack_types::api::{ExecRequest, Signal, StartProcess};
use tokio::signal::unix::{SignalKind, signal};

use super::attach::attach_terminal;
use super::raw_terminal;
use super::resolve::resolve;
use crate::commands::command_line::{command_line, to_exit_code};
use crate::commands::pairs::pairs;
use crate::failure::{ExecError, INTERRUPTED};
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    #[command(flatten)]
    options: ExecOptions,
    /// Command to run, with its arguments; a single word is run by the shell
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Options of a command.
#[derive(Debug, clap::Args)]
pub struct ExecOptions {
    /// Working directory
    #[arg(long)]
    pub cwd: Option<String>,
    /// User to run as
    #[arg(long, short)]
    user: Option<String>,
    /// Environment variable for the command; can be repeated
    #[arg(long, short, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Kill the command after this many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Forward standard input
    #[arg(long, short)]
    interactive: bool,
    /// Allocate a terminal
    #[arg(long, short, conflicts_with = "detach")]
    tty: bool,
    /// Print the process ID and leave the command running
    #[arg(long, short, conflicts_with = "interactive")]
    detach: bool,
}

/// Runs the command.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let ran = async {
        let id = resolve(client, &args.id).await?;
        run_in(client, &id, args.options, args.command, output).await
    };
    ran.await.map_err(|error| ExecError(error).into())
}

/// Runs a command in a sandbox.
pub async fn run_in(
    client: &Client,
    id: &SandboxId,
    options: ExecOptions,
    words: Vec<String>,
    output: Output,
) -> Result<ExitCode> {
    let (cmd, argv) = command_line(words);
    let (cwd, user, timeout_seconds) = (options.cwd, options.user, options.timeout);
    let env = pairs(&options.env)?;
    let request = ExecRequest { cmd, argv, cwd, env, user, timeout_seconds, ..ExecRequest::default() };
    if options.interactive || options.tty || options.detach {
        let pty = options.tty.then(raw_terminal::size);
        let start = StartProcess { exec: request, stdin_open: options.interactive, pty, tag: None };
        let process = client.start_process(id, &start).await?;
        if options.detach {
            output.value(&process, |process| process.id.to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        return attach_terminal(client, id, process, (0, 0), output).await;
    }
    if output.is_json() {
        let result = client.exec(id, &request).await?;
        output.value(&result, |_| String::new())?;
        return Ok(ExitCode::from(to_exit_code(result.exit_code)));
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
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
    let mut events = tokio::select! {
        events = client.exec_stream(id, request) => events?,
        _ = interrupt.recv() => return Ok(INTERRUPTED),
    };
    let mut interrupted = false;
    loop {
        let is_last = tokio::select! {
            event = events.next() => match event? {
                ExecEvent::Stdout(bytes) => { output.raw(&bytes)?; continue }
                ExecEvent::Stderr(bytes) => { std::io::stderr().write_all(&bytes)?; continue }
                ExecEvent::Lost(bytes) => { eprintln!("[{bytes} bytes of output were dropped]"); continue }
                ExecEvent::Exited(code) => return Ok(to_exit_code(code)),
            },
            _ = interrupt.recv() => std::mem::replace(&mut interrupted, true),
            _ = terminate.recv() => true,
        };
        let Some(process) = events.process() else { return Ok(INTERRUPTED) };
        let signal = if is_last { Signal::KILL } else { Signal::INT };
        // If the command has exited, the stream reports it.
        client.signal_process(id, process, signal).await.ok();
        if is_last {
            return Ok(INTERRUPTED);
        }
    }
}
