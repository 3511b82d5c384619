//! Follows a deployment or a log.

use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::{Client, LineStream};
use pandastack_types::api::{Deployment, DeploymentStatus};
use tokio::signal::unix::{SignalKind, signal};

use crate::commands::wait::WaitArgs;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::Progress;

/// Prints lines until the log ends (true) or the user presses Ctrl-C (false).
pub async fn print_lines(mut lines: LineStream, output: Output) -> Result<bool> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    loop {
        tokio::select! {
            line = lines.next() => match line? {
                Some(line) => output.log_line(&line)?,
                None => return Ok(true),
            },
            _ = interrupt.recv() => return Ok(false),
        }
    }
}

/// Follows a deployment until it ends; prints its log to standard error and the app's URL to standard
/// output. Without waiting, prints the deployment's id.
pub async fn follow(
    client: &Client,
    app: &str,
    deployment: Deployment,
    wait: WaitArgs,
    output: Output,
) -> Result<ExitCode> {
    if !wait.waits() {
        output.value(&deployment, |deployment| deployment.id.to_string())?;
        return Ok(ExitCode::SUCCESS);
    }
    let id = deployment.id.clone();
    let background =
        format!("the deployment continues; to follow it, run `pandastack app logs {app} --deploy {id}`");
    let work = async {
        let progress = Progress::start(format!("Deploying {app}"));
        let mut lines = client.follow_deployment(app, &id).await?;
        while let Some(line) = lines.next().await? {
            progress.log(&line);
        }
        Ok(client.get_deployment(app, &id).await?)
    };
    let ended = wait.until(&background, work).await?;
    if ended.status != DeploymentStatus::Live {
        let why = ended.error.unwrap_or_else(|| ended.status.as_str().to_owned());
        return Err(Failure::new(format!(
            "deployment {} of app `{app}` did not go live: {why}",
            deployment.id
        ))
        .into());
    }
    let shown = client.get_app(app).await?;
    output.value(&shown, |app| app.url.clone().unwrap_or_default())?;
    Ok(ExitCode::SUCCESS)
}
