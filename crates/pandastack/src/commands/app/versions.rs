//! `pandastack app deploys`, `rollback` and `cancel`: deployments of an app.

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::DeploymentId;
use pandastack_types::api::RollbackApp;

use super::follow::follow;
use crate::commands::wait::WaitArgs;
use crate::failure::Failure;
use crate::output::{Output, age};

/// Arguments of `rollback`.
#[derive(Debug, clap::Args)]
pub struct Rollback {
    /// App name or ID
    app: String,
    /// Deployment to roll back to [default: the one before the live one]
    #[arg(long, value_name = "ID")]
    to: Option<DeploymentId>,
    #[command(flatten)]
    wait: WaitArgs,
}

pub(super) async fn rollback(client: &Client, args: Rollback, output: Output) -> Result<ExitCode> {
    let deployment = client.rollback_app(&args.app, &RollbackApp { deployment_id: args.to }).await?;
    follow(client, &args.app, deployment, args.wait, output).await
}

pub(super) async fn list(client: &Client, app: &str, output: Output) -> Result<ExitCode> {
    let (deployments, now) = (client.list_deployments(app).await?, Timestamp::now());
    output.table(&deployments, ["ID", "STATUS", "TRIGGER", "COMMIT", "KEPT", "AGE"], |one| {
        [
            one.id.to_string(),
            one.status.as_str().to_owned(),
            one.trigger.clone(),
            one.git_commit.as_deref().map_or("-".to_owned(), |commit| commit.chars().take(10).collect()),
            if one.kept { "yes" } else { "-" }.to_owned(),
            age(one.created_at, now),
        ]
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn cancel(
    client: &Client,
    app: &str,
    deployment: Option<DeploymentId>,
    output: Output,
) -> Result<ExitCode> {
    let id = match deployment {
        Some(id) => id,
        None => {
            let all = client.list_deployments(app).await?;
            let none = || Failure::new(format!("app `{app}` has no deployment in progress"));
            all.into_iter().find(|one| one.status.is_in_progress()).ok_or_else(none)?.id
        }
    };
    let cancelled = client.cancel_deployment(app, &id).await?;
    output.value(&cancelled, |cancelled| cancelled.id.to_string())?;
    Ok(ExitCode::SUCCESS)
}
