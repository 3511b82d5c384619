//! `pandastack sandbox promote`: keeps one fork and deletes its siblings.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::api::Promote;

use super::resolve::resolve;
use crate::failure::Failure;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox ID, unique ID prefix or name
    id: String,
    /// Keep the other forks
    #[arg(long)]
    keep_siblings: bool,
}

/// Runs the command; prints the ids of the deleted siblings.
pub async fn run(client: &Client, args: Args, output: Output) -> Result<ExitCode> {
    let id = resolve(client, &args.id).await?;
    let request = Promote { cleanup_siblings: !args.keep_siblings, tree_id: None };
    let promoted = client.promote_sandbox(&id, &request).await?;
    output.value(&promoted, |promoted| {
        promoted.deleted.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    })?;
    match promoted.failures.iter().next() {
        None => Ok(ExitCode::SUCCESS),
        Some((sibling, why)) => Err(Failure::new(format!("cannot delete sibling {sibling}: {why}")).into()),
    }
}
