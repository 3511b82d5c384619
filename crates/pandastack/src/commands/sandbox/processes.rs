//! `pandastack sandbox ps` and `kill`.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{Process, ProcessState, Signal};

use super::resolve::resolve;
use crate::output::Output;

/// Maximum characters of a command in the table.
const COMMAND_SHOWN_MAX: usize = 60;

/// Arguments of `kill`.
#[derive(Debug, clap::Args)]
pub struct KillArgs {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// Process ID, as shown by `pandastack sandbox ps`
    process: u64,
    /// Signal name or number; KILL also kills everything the process started
    #[arg(long, short, default_value = "TERM")]
    signal: Signal,
}

/// Lists processes.
pub async fn list(client: &Client, id: &str, output: Output) -> Result<ExitCode> {
    let id = resolve(client, id).await?;
    let processes = client.processes(&id).await?;
    let columns = ["ID", "PID", "STATE", "TIME", "OUTPUT", "COMMAND"];
    output.table(&processes, columns, |process| {
        [
            process.id.to_string(),
            process.pid.to_string(),
            state(process),
            format!("{:.1}s", process.duration_ms as f64 / 1e3),
            crate::output::size(process.stdout_end + process.stderr_end),
            process.command.replace(['\n', '\r'], " ").chars().take(COMMAND_SHOWN_MAX).collect(),
        ]
    })?;
    Ok(ExitCode::SUCCESS)
}

fn state(process: &Process) -> String {
    match (process.state, process.exit_code) {
        (ProcessState::Running, _) => "running".to_owned(),
        (ProcessState::Exited, _) if process.timed_out => "timed out".to_owned(),
        (ProcessState::Exited, code) => format!("exited {}", code.unwrap_or(-1)),
    }
}

/// Sends a signal.
pub async fn kill(client: &Client, args: KillArgs) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    client.signal_process(&id, args.process, args.signal).await?;
    Ok(ExitCode::SUCCESS)
}
