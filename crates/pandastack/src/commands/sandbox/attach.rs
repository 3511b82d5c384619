//! `pandastack sandbox shell`, `attach` and `exec -i`: a process and whoever is at the keyboard.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bytes::Bytes;
use pandastack_client::{Client, ClientError, ExecEvent, ExecStream};
use pandastack_types::SandboxId;
use pandastack_types::api::{ExecRequest, Process, Signal, StartProcess};
use tokio::signal::unix::{SignalKind, signal};

use super::raw_terminal::{self, RawTerminal};
use super::resolve;
use crate::commands::run::passed_on;
use crate::failure::{INTERRUPTED, WhileRunning};
use crate::output::Output;

/// Ctrl-]: leaves a terminal without ending what runs on it.
const DETACH_KEY: u8 = 0x1d;

/// Arguments of `shell`.
#[derive(Debug, clap::Args)]
pub struct ShellArgs {
    /// The sandbox's id
    id: String,
    /// User to be
    #[arg(long, short)]
    user: Option<String>,
    /// Working directory
    #[arg(long)]
    cwd: Option<String>,
}

/// Arguments of `attach`.
#[derive(Debug, clap::Args)]
pub struct AttachArgs {
    /// The sandbox's id
    id: String,
    /// The process, as `sandbox ps` numbers it
    process: u64,
    /// Leave out what it wrote before
    #[arg(long)]
    new: bool,
}

/// Opens a shell.
pub async fn shell(client: &Client, args: ShellArgs, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let exec = ExecRequest { user: args.user, cwd: args.cwd, ..ExecRequest::default() };
    let start = StartProcess { exec, pty: Some(raw_terminal::size()), ..StartProcess::default() };
    let process = client.start_process(&id, &start).await?;
    sit_at(client, &id, process, (0, 0), output).await
}

/// Follows a process that there is.
pub async fn attach(client: &Client, args: AttachArgs, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let process = client.process(&id, args.process).await?;
    let offsets = match args.new {
        true => (process.stdout_end, process.stderr_end),
        false => (process.stdout_start, process.stderr_start),
    };
    if process.pty.is_some() {
        // What runs on it draws itself anew for this terminal.
        client.resize_process(&id, process.id, raw_terminal::size()).await.ok();
    }
    sit_at(client, &id, process, offsets, output).await
}

/// Passes the keyboard to a process and its output to the screen, until it ends or the person leaves.
pub async fn sit_at(
    client: &Client,
    id: &SandboxId,
    process: Process,
    offsets: (u64, u64),
    output: Output,
) -> Result<ExitCode> {
    let stream = client.process_output(id, process.id, offsets).await?;
    let raw = if process.pty.is_some() { RawTerminal::enter()? } else { None };
    let seat = Seat { client, id, process: &process, is_raw: raw.is_some(), output };
    let outcome = seat.serve(stream).await;
    drop(raw);
    match outcome.map_err(WhileRunning)? {
        Some(code) => Ok(ExitCode::from(code)),
        None => {
            eprintln!(
                "left process {} running; `pandastack sandbox attach {id} {}` comes back",
                process.id, process.id
            );
            Ok(ExitCode::SUCCESS)
        }
    }
}

struct Seat<'a> {
    client: &'a Client,
    id: &'a SandboxId,
    process: &'a Process,
    is_raw: bool,
    output: Output,
}

impl Seat<'_> {
    /// The exit code, or `None` if the person left.
    async fn serve(&self, mut stream: ExecStream) -> Result<Option<u8>> {
        let mut resized = signal(SignalKind::window_change()).context("watch the window's size")?;
        // In raw mode Ctrl-C is a character like any other, and the process's own terminal makes a signal of it.
        let mut interrupt = signal(SignalKind::interrupt()).context("watch for Ctrl-C")?;
        let mut asked = false;
        let typing = self.type_in();
        tokio::pin!(typing);
        let mut may_type = true;
        loop {
            tokio::select! {
                event = stream.next() => if let Some(code) = self.show(event?)? { return Ok(Some(code)) },
                left = &mut typing, if may_type => match left? {
                    true => return Ok(None),
                    false => may_type = false,
                },
                _ = interrupt.recv() => {
                    let signal = if asked { Signal::KILL } else { Signal::INT };
                    // A process that has ended in the meantime tells so by its exit.
                    self.client.signal_process(self.id, self.process.id, signal).await.ok();
                    if std::mem::replace(&mut asked, true) {
                        return Ok(Some(INTERRUPTED));
                    }
                }
                _ = resized.recv(), if self.process.pty.is_some() => {
                    // The next change tries again.
                    self.client.resize_process(self.id, self.process.id, raw_terminal::size()).await.ok();
                }
            }
        }
    }

    fn show(&self, event: ExecEvent) -> Result<Option<u8>> {
        match event {
            ExecEvent::Stdout(bytes) => self.output.raw(&bytes)?,
            ExecEvent::Stderr(bytes) => std::io::stderr().write_all(&bytes)?,
            ExecEvent::Lost(bytes) => eprintln!("[{bytes} bytes of output are gone]"),
            ExecEvent::Exited(code) => return Ok(Some(passed_on(code))),
        }
        Ok(None)
    }

    /// Sends what is typed; true when the person leaves, false at the end of the input.
    async fn type_in(&self) -> Result<bool> {
        let (mut typed, mut offset) = (raw_terminal::typed(), self.process.stdin_offset);
        while let Some(bytes) = typed.recv().await {
            if self.is_raw && bytes[..] == [DETACH_KEY] {
                return Ok(true);
            }
            match self.client.write_stdin(self.id, self.process.id, offset, bytes, false).await {
                Ok(taken) => offset = taken,
                // It reads no more, or has ended: its stream tells what became of it.
                Err(ClientError::Refused { status: 400 | 404, .. }) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        // A process that has ended already took no more; its exit is told by its stream.
        self.client.write_stdin(self.id, self.process.id, offset, Bytes::new(), true).await.ok();
        Ok(false)
    }
}
