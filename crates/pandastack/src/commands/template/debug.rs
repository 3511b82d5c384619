//! `pandastack template build --debug`: a shell in the machine of the failed step.

use std::io::IsTerminal;

use anyhow::Result;
use pandastack_client::Client;
use pandastack_types::SnapshotId;
use pandastack_types::api::{BuildFailure, CreateSandbox, ExecRequest, ImageConfig};

use crate::commands::create::create;
use crate::commands::sandbox::attach::shell_in;
use crate::failure::Failure;
use crate::output::Output;

/// Opens a shell if the user sits at a terminal, and adds where the machine is to the error.
pub(super) async fn offer(client: &Client, place: BuildFailure, error: Failure, output: Output) -> Failure {
    let Some(snapshot) = place.snapshot_id else { return error };
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let mut error = error;
    if is_terminal && !output.is_json() {
        let config = place.config.unwrap_or_default();
        if let Err(cause) = enter(client, &snapshot, config, output).await {
            error = error.hint(format!("cannot open a shell in the machine of the failed step: {cause:#}"));
        }
    }
    error.hint(format!(
        "the machine of the failed step is kept for an hour; to enter it, run `pandastack sandbox create \
         --from-snapshot {snapshot}`"
    ))
}

/// Opens a shell in a copy of the machine, which is deleted afterwards.
async fn enter(client: &Client, snapshot: &SnapshotId, config: ImageConfig, output: Output) -> Result<()> {
    let request = CreateSandbox { from_snapshot: Some(snapshot.clone()), ..CreateSandbox::default() };
    let sandbox = create(client, &request).await?;
    eprintln!("opening a shell in the machine of the failed step; `exit` ends it");
    let exec = ExecRequest {
        env: Some(config.env),
        user: config.user,
        cwd: config.workdir,
        ..ExecRequest::default()
    };
    let ended = shell_in(client, &sandbox.id, exec, output).await;
    client.delete_sandbox(&sandbox.id).await?;
    ended.map(drop)
}
