//! Commands that move sandboxes from one state to another: `hibernate`, `wake`, `pause`, `resume`, `rm`.

use std::process::ExitCode;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::Keep;

use super::{Many, resolve};
use crate::commands::each;
use crate::output::Output;

/// What is done to each.
#[derive(Debug, Clone, Copy)]
pub enum Move {
    /// To sleep.
    Hibernate(Keep),
    /// From sleep.
    Wake,
    /// Stop.
    Pause,
    /// Go on.
    Resume,
    /// Away.
    Delete,
}

/// Carries it out; prints the id of each that moved.
pub async fn run(client: &Client, action: Move, many: Many, output: Output) -> Result<ExitCode> {
    each(&many.ids, output, async |text| Ok(apply(client, action, text).await?.to_string())).await
}

async fn apply(client: &Client, action: Move, text: &str) -> Result<SandboxId> {
    let id = resolve(client, text).await?;
    match action {
        Move::Hibernate(keep) => client.hibernate_sandbox(&id, keep).await.map(drop)?,
        Move::Wake => client.wake_sandbox(&id).await.map(drop)?,
        Move::Pause => client.pause_sandbox(&id).await?,
        Move::Resume => client.resume_sandbox(&id).await?,
        Move::Delete => client.delete_sandbox(&id).await?,
    }
    Ok(id)
}
