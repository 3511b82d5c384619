//! `pandastack audit`: the audit log.

mod verify;

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;

use super::runtime::with_client;
use super::sandbox::resolve::resolve;
use crate::output::{Output, age};

/// Arguments.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: ListArgs,
}

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Verify that no entry was changed or removed; needs an operator key, or an exported file
    Verify(verify::Args),
}

/// Filter of the entries.
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Show only calls on this sandbox: ID, unique ID prefix or name; for a deleted sandbox, the full ID
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// Number of entries to show, newest first
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 50)]
    limit: u32,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    match args.command {
        Some(Command::Verify(args)) => verify::run(args, output),
        None => list(args.list, output),
    }
}

fn list(args: ListArgs, output: Output) -> Result<ExitCode> {
    with_client(|client| async move {
        let sandbox = match &args.sandbox {
            Some(text) => Some(resolve(&client, text).await?),
            None => None,
        };
        let entries = client.audit(sandbox.as_ref(), args.limit).await?;
        let now = Timestamp::now();
        output.table(&entries, ["AGE", "KEY", "STATUS", "DURATION", "CALL"], |entry| {
            [
                age(entry.at, now),
                format!("{} ({})", entry.token_prefix, entry.token_label),
                entry.status.to_string(),
                format!("{} ms", entry.took_ms),
                format!("{} {}", entry.method, entry.path),
            ]
        })?;
        Ok(ExitCode::SUCCESS)
    })
}
