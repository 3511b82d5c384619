//! `pandastack workspace`: what a workspace gives to new sandboxes.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_types::api::{PatchWorkspace, Workspace};
use pandastack_types::preview::Visibility;

use crate::output::Output;

/// Its commands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the workspace, and what it gives to new sandboxes
    Show,
    /// Set what new sandboxes get unless their create says otherwise; needs an admin key
    Set(Settings),
}

/// What can be set.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub struct Settings {
    /// Who may open the ports of new sandboxes; those that exist keep what they have
    #[arg(long, value_name = "unlisted|private|off")]
    default_visibility: Option<Visibility>,
}

impl Command {
    /// Carries it out.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        super::with_client(|client| async move {
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
