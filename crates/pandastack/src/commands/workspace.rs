//! `pandastack workspace`: workspaces, and defaults for new sandboxes.

use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::{Context, Result};
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::WorkspaceId;
use pandastack_types::api::{
    CreateWorkspace, PatchWorkspace, SuspendWorkspace, Workspace, WorkspaceInfo, WorkspaceState,
};
use pandastack_types::preview::Visibility;

use super::each::{each, show_each};
use super::quota::{self, Limits};
use super::runtime::with_client;
use super::wait::shown;
use crate::failure::Failure;
use crate::output::{Output, age};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the workspace of the key in use and its defaults
    Show,
    /// Change the defaults of the workspace; needs an owner key
    Set(Settings),
    /// Create a workspace; needs an operator key
    Create {
        /// Workspace name: lowercase letters, digits and `-`
        name: WorkspaceId,
        #[command(flatten)]
        limits: Limits,
        /// Default visibility of sandbox ports
        #[arg(long, value_name = "unlisted|private|off")]
        default_visibility: Option<Visibility>,
    },
    /// List workspaces; needs an operator key
    #[command(visible_alias = "ls")]
    List,
    /// Show workspaces; needs an operator key
    Get {
        /// Workspace names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Suspend a workspace: put its machines to sleep and reject its keys; needs an operator key
    Suspend {
        /// Workspace name
        name: String,
        /// Reason, shown to the users of the workspace
        #[arg(long)]
        reason: Option<String>,
    },
    /// Resume a suspended workspace; needs an operator key
    Resume {
        /// Workspace name
        name: String,
    },
    /// Delete workspaces and everything in them, including backups; needs an operator key
    #[command(visible_alias = "rm")]
    Delete {
        /// Workspace names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Do not ask for confirmation; required with --json
        #[arg(long, short)]
        yes: bool,
    },
    /// Show or change the quotas of a workspace; use `none` to remove a limit; needs an operator key
    Quota {
        /// Workspace name
        name: String,
        #[command(flatten)]
        limits: Limits,
    },
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
            match self {
                Command::Show => output.value(&client.workspace().await?, describe_own)?,
                Command::Set(Settings { default_visibility }) => {
                    let patch = PatchWorkspace { default_visibility };
                    output.value(&client.patch_workspace(&patch).await?, describe_own)?;
                }
                Command::Create { name, limits, default_visibility } => {
                    let quota = Some(limits.apply(Default::default()));
                    let request = CreateWorkspace { id: name.clone(), quota, default_visibility };
                    output.value(&client.create_workspace(&request).await?, describe)?;
                    output.note(&format!(
                        "create a key: pandastack token create --workspace {name} --role owner"
                    ));
                }
                Command::List => list(&client, output).await?,
                Command::Get { names } => {
                    let fetch = async |name: &str| Ok(client.get_workspace(name).await?);
                    return show_each(&names, output, fetch, describe).await;
                }
                Command::Suspend { name, reason } => {
                    let request = SuspendWorkspace { reason };
                    let suspend = async { Ok(client.suspend_workspace(&name, &request).await?) };
                    let background =
                        format!("the suspension continues; `pandastack workspace get {name}` shows it");
                    let suspended = shown("Suspending the workspace", &background, suspend).await?;
                    output.value(&suspended, describe)?;
                }
                Command::Resume { name } => output.value(&client.resume_workspace(&name).await?, describe)?,
                Command::Delete { names, yes } => {
                    let delete = async |name: &str| delete(&client, output, name, yes).await;
                    return each(&names, output, delete).await;
                }
                Command::Quota { name, limits } => {
                    let mut report = client.workspace_quota(&name).await?;
                    if !limits.is_empty() {
                        report = client.set_workspace_quota(&name, &limits.apply(report.quota)).await?;
                    }
                    output.value(&report, quota::describe)?;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

async fn list(client: &Client, output: Output) -> Result<()> {
    let workspaces = client.list_workspaces().await?;
    let now = Timestamp::now();
    output.table(&workspaces, ["NAME", "STATE", "SANDBOXES", "CPU", "MEMORY MB", "AGE"], |workspace| {
        [
            workspace.id.to_string(),
            workspace.state.as_str().to_owned(),
            workspace.used.sandboxes.to_string(),
            workspace.used.cpu.to_string(),
            workspace.used.memory_mb.to_string(),
            age(workspace.created_at, now),
        ]
    })?;
    Ok(())
}

/// Deletes a workspace after the user has confirmed it, and returns its name.
async fn delete(client: &Client, output: Output, name: &str, yes: bool) -> Result<String> {
    client.get_workspace(name).await?;
    if !yes && (output.is_json() || !std::io::stdin().is_terminal()) {
        let failure = Failure::new(format!("cannot delete workspace `{name}` without confirmation"));
        return Err(failure.hint("use --yes to delete it without confirmation").into());
    }
    if !yes {
        eprint!("This deletes workspace `{name}`, everything in it and its backups. ");
        eprint!("Type the name to confirm: ");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).context("cannot read the confirmation")?;
        if line.trim() != name {
            let failure = Failure::new(format!("workspace `{name}` was not deleted"));
            return Err(failure.hint("type the workspace's name to confirm, or use --yes").into());
        }
    }
    let delete = async { Ok(client.delete_workspace(name).await?) };
    let background = "the deletion continues; `pandastack workspace list` shows when it is done";
    shown(format!("Deleting workspace {name}"), background, delete).await?;
    Ok(name.to_owned())
}

fn describe_own(workspace: &Workspace) -> String {
    let Workspace { id, settings } = workspace;
    format!("workspace            {id}\ndefault visibility   {}", settings.default_visibility.as_str())
}

fn describe(workspace: &WorkspaceInfo) -> String {
    let mut lines = vec![
        format!("workspace            {}", workspace.id),
        format!("state                {}", workspace.state.as_str()),
    ];
    if workspace.state == WorkspaceState::Suspended {
        let since = workspace.suspended_at.map(|at| at.to_string()).unwrap_or_default();
        lines.push(format!("suspended            {since}"));
        if let Some(reason) = &workspace.suspend_reason {
            lines.push(format!("reason               {reason}"));
        }
    }
    lines.push(format!("created              {}", workspace.created_at));
    lines.push(format!("default visibility   {}", workspace.settings.default_visibility.as_str()));
    lines.push(format!("sandboxes            {}", workspace.used.sandboxes));
    lines.join("\n")
}
