//! Commands that change the state of sandboxes: `hibernate`, `wake`, `pause`, `resume`, `rm`.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::Keep;

use super::args::SandboxArgs;
use super::resolve::resolve;
use crate::commands::each::each;
use crate::commands::wait::shown;
use crate::output::Output;

/// A state change.
#[derive(Debug, Clone, Copy)]
pub enum Action {
    /// Hibernate.
    Hibernate(Keep),
    /// Wake from hibernation.
    Wake,
    /// Stop the vCPUs.
    Pause,
    /// Run the vCPUs again.
    Resume,
    /// Delete.
    Delete,
}

/// Applies an action to each sandbox and prints its id.
pub async fn run(client: &Client, action: Action, args: SandboxArgs, output: Output) -> Result<ExitCode> {
    each(&args.ids, output, async |text| Ok(apply(client, action, text).await?.to_string())).await
}

async fn apply(client: &Client, action: Action, text: &str) -> Result<SandboxId> {
    let id = resolve(client, text).await?;
    let (what, goal) = match action {
        Action::Hibernate(_) => ("Hibernating", "hibernates"),
        Action::Wake => ("Waking", "wakes"),
        Action::Pause => ("Pausing", "is paused"),
        Action::Resume => ("Resuming", "is resumed"),
        Action::Delete => ("Deleting", "is deleted"),
    };
    let change = async {
        match action {
            Action::Hibernate(keep) => client.hibernate_sandbox(&id, keep).await.map(drop)?,
            Action::Wake => client.wake_sandbox(&id).await.map(drop)?,
            Action::Pause => client.pause_sandbox(&id).await?,
            Action::Resume => client.resume_sandbox(&id).await?,
            Action::Delete => client.delete_sandbox(&id).await?,
        }
        Ok(())
    };
    let background = format!("the sandbox still {goal}; to see its state, run `pandastack sandbox get {id}`");
    shown(format!("{what} sandbox {id}"), &background, change).await?;
    Ok(id)
}
