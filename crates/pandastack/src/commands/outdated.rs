//! `pandastack outdated`: frozen states with outdated components.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_types::api::{OutdatedAction, OutdatedComponent, OutdatedState};

use super::runtime::with_client;
use crate::output::Output;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show those of all workspaces, and the platform's templates; needs an operator key
    #[arg(long)]
    all: bool,
}

/// Runs the command.
pub fn run(args: Args, output: Output) -> Result<ExitCode> {
    with_client(|client| async move {
        let list = client.outdated(args.all).await?;
        let columns = ["ID", "KIND", "OWNER", "OUTDATED", "ADVISORIES", "ACTION", "NEXT STEP"];
        output.table(&list.items, columns, |state| {
            [
                state.id.clone(),
                state.kind.as_str().to_owned(),
                state.owner.clone().or_else(|| state.name.clone()).unwrap_or_else(|| "-".to_owned()),
                state.components.iter().map(versions).collect::<Vec<_>>().join(", "),
                advisories(state),
                action(state),
                state.next_step.clone(),
            ]
        })?;
        if !list.complete {
            output
                .note("the list is not complete, because a host did not respond; run `pandastack host list`");
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn versions(outdated: &OutdatedComponent) -> String {
    let found = outdated.found.as_deref().unwrap_or("unknown");
    format!("{} {found}", outdated.component.label())
}

fn advisories(state: &OutdatedState) -> String {
    let mut ids: Vec<&str> = state
        .components
        .iter()
        .flat_map(|outdated| outdated.advisories.iter().map(|advisory| advisory.id.as_str()))
        .collect();
    ids.dedup();
    if ids.is_empty() { "-".to_owned() } else { ids.join(", ") }
}

fn action(state: &OutdatedState) -> String {
    match (state.action, state.action_from) {
        (OutdatedAction::Keep, _) | (_, None) => "-".to_owned(),
        (action, Some(from)) => format!("{} from {}", action.as_str(), from.strftime("%Y-%m-%d")),
    }
}
