//! `pandastack workspace`: defaults for new sandboxes.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_types::api::{PatchWorkspace, Workspace};
use pandastack_types::preview::Visibility;

use super::runtime::with_client;
use crate::output::Output;

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the workspace and its defaults
    Show,
    /// Change the defaults; needs an admin key
    Set(Settings),
}

/// Defaults to change.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub struct Settings {
    /// Default visibility of sandbox ports; existing sandboxes keep theirs
    #[arg(long, value_name = "unlisted|private|off")]
    default_visibility: Option<Visibility>,
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            let workspace = match self {
                Command::Show => client.workspace().await?,
                Command::Set(Settings { default_visibility }) => {
                    client.patch_workspace(&PatchWorkspace { default_visibility }).await?
                }
            };
            output.value(&workspace, describe)?;
            Ok(ExitCode::SUCCESS)
        })
    }
}

fn describe(workspace: &Workspace) -> String {
    let Workspace { id, settings } = workspace;
    format!("workspace            {id}\ndefault visibility   {}", settings.default_visibility.as_str())
}
