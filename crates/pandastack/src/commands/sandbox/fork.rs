//! `pandastack sandbox fork`: forks a running sandbox.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::{ForkSandbox, ForkTree};

use super::resolve::resolve;
use crate::commands::pairs::pairs;
use crate::commands::wait::shown;
use crate::failure::Failure;
use crate::output::Output;

/// Note that the fork continues when the wait for it ends early.
const BACKGROUND: &str = "the fork continues; `pandastack sandbox list` shows new sandboxes";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// Number of forks; all have the same state
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 1)]
    count: u32,
    /// Metadata label for every fork; can be repeated
    #[arg(long, short, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
}

/// Runs the command.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let metadata = pairs(&args.metadata)?;
    if args.count == 1 {
        let request = ForkSandbox { count: None, metadata };
        let fork = async { Ok(client.fork_sandbox(&id, &request).await?) };
        let child = shown("Forking", BACKGROUND, fork).await?;
        output.value(&child, |child| child.id.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let request = ForkTree { count: args.count, metadata };
    let fork = async { Ok(client.fork_tree(&id, &request).await?) };
    let tree = shown(format!("Creating {} forks", args.count), BACKGROUND, fork).await?;
    output.value(&tree, |tree| {
        tree.children.iter().map(|child| child.id.to_string()).collect::<Vec<_>>().join("\n")
    })?;
    match tree.errors.first() {
        None => Ok(ExitCode::SUCCESS),
        Some(error) => {
            let missing = tree.errors.len();
            Err(Failure::new(format!("cannot create {missing} of {} forks: {}", args.count, error.err))
                .into())
        }
    }
}
