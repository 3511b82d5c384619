//! `pandastack sandbox shell`, `attach` and `exec -i`: connects the terminal to a process.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bytes::Bytes;
use pandastack_client::{Client, ClientError, ExecEvent, ExecStream};
use pandastack_types::SandboxId;
use pandastack_types::api::{ExecRequest, Process, Signal, StartProcess};
use tokio::signal::unix::{SignalKind, signal};

use super::raw_terminal::{self, RawTerminal};
use super::resolve::resolve;
use crate::commands::command_line::to_exit_code;
use crate::failure::{ExecError, INTERRUPTED};
use crate::output::Output;

/// Ctrl-]: detaches and leaves the process running.
const DETACH_KEY: u8 = 0x1d;

/// Arguments of `shell`.
#[derive(Debug, clap::Args)]
pub struct ShellArgs {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// User to run the shell as
    #[arg(long, short)]
    user: Option<String>,
    /// Working directory
    #[arg(long)]
    cwd: Option<String>,
}

/// Arguments of `attach`.
#[derive(Debug, clap::Args)]
pub struct AttachArgs {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// Process ID, as shown by `pandastack sandbox ps`
    process: u64,
    /// Skip output written before attaching
    #[arg(long)]
    new: bool,
}

/// Opens a shell.
pub async fn shell(client: &Client, args: ShellArgs, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let exec = ExecRequest { user: args.user, cwd: args.cwd, ..ExecRequest::default() };
    shell_in(client, &id, exec, output).await
}

/// Opens a shell with these settings.
pub async fn shell_in(
    client: &Client,
    id: &SandboxId,
    exec: ExecRequest,
    output: Output,
) -> Result<ExitCode> {
    let start = StartProcess { exec, pty: Some(raw_terminal::size()), ..StartProcess::default() };
    let process = client.start_process(id, &start).await?;
    attach_terminal(client, id, process, (0, 0), output).await
}

/// Attaches to a running process.
pub async fn attach(client: &Client, args: AttachArgs, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let process = client.process(&id, args.process).await?;
    let offsets = match args.new {
        true => (process.stdout_end, process.stderr_end),
        false => (process.stdout_start, process.stderr_start),
    };
    if process.pty.is_some() {
        // The process redraws itself for this terminal.
        client.resize_process(&id, process.id, raw_terminal::size()).await.ok();
    }
    attach_terminal(client, &id, process, offsets, output).await
}

/// Forwards input to a process and its output to the terminal, until it exits or the user detaches.
pub async fn attach_terminal(
    client: &Client,
    id: &SandboxId,
    process: Process,
    offsets: (u64, u64),
    output: Output,
) -> Result<ExitCode> {
    let stream = client.process_output(id, process.id, offsets).await?;
    let raw = if process.pty.is_some() { RawTerminal::enter()? } else { None };
    let session = TerminalSession { client, id, process: &process, is_raw: raw.is_some(), output };
    let outcome = session.run(stream).await;
    drop(raw);
    match outcome.map_err(ExecError)? {
        Some(code) => Ok(ExitCode::from(code)),
        None => {
            eprintln!(
                "detached from process {}; to reattach, run `pandastack sandbox attach {id} {}`",
                process.id, process.id
            );
            Ok(ExitCode::SUCCESS)
        }
    }
}

struct TerminalSession<'a> {
    client: &'a Client,
    id: &'a SandboxId,
    process: &'a Process,
    is_raw: bool,
    output: Output,
}

impl TerminalSession<'_> {
    /// Returns the exit code, or `None` if the user detached.
    async fn run(&self, mut stream: ExecStream) -> Result<Option<u8>> {
        let mut resized = signal(SignalKind::window_change()).context("cannot watch the terminal size")?;
        // In raw mode Ctrl-C is sent as a character, and the process's own terminal turns it into a signal.
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
        let mut interrupted = false;
        let input = self.forward_input();
        tokio::pin!(input);
        let mut input_open = true;
        loop {
            tokio::select! {
                event = stream.next() => if let Some(code) = self.show(event?)? { return Ok(Some(code)) },
                detached = &mut input, if input_open => match detached? {
                    true => return Ok(None),
                    false => input_open = false,
                },
                _ = interrupt.recv() => {
                    let signal = if interrupted { Signal::KILL } else { Signal::INT };
                    // If the process has exited, the stream reports it.
                    self.client.signal_process(self.id, self.process.id, signal).await.ok();
                    if std::mem::replace(&mut interrupted, true) {
                        return Ok(Some(INTERRUPTED));
                    }
                }
                _ = resized.recv(), if self.process.pty.is_some() => {
                    // A failed resize is retried on the next size change.
                    self.client.resize_process(self.id, self.process.id, raw_terminal::size()).await.ok();
                }
            }
        }
    }

    fn show(&self, event: ExecEvent) -> Result<Option<u8>> {
        match event {
            ExecEvent::Stdout(bytes) => self.output.raw(&bytes)?,
            ExecEvent::Stderr(bytes) => std::io::stderr().write_all(&bytes)?,
            ExecEvent::Lost(bytes) => eprintln!("[{bytes} bytes of output were dropped]"),
            ExecEvent::Exited(code) => return Ok(Some(to_exit_code(code))),
        }
        Ok(None)
    }

    /// Sends standard input to the process; true if the user detached, false at end of input.
    async fn forward_input(&self) -> Result<bool> {
        let (mut chunks, mut offset) = (raw_terminal::stdin_chunks(), self.process.stdin_offset);
        while let Some(bytes) = chunks.recv().await {
            if self.is_raw && bytes[..] == [DETACH_KEY] {
                return Ok(true);
            }
            match self.client.write_stdin(self.id, self.process.id, offset, bytes, false).await {
                Ok(taken) => offset = taken,
                // The process closed its input or exited; the stream reports the exit.
                Err(ClientError::Refused { status: 400 | 404, .. }) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        // Fails if the process has exited; the stream reports the exit.
        self.client.write_stdin(self.id, self.process.id, offset, Bytes::new(), true).await.ok();
        Ok(false)
    }
}
