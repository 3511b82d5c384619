//! Follows a deployment or a log.

use std::process::ExitCode;

use anyhow::{Context, Result};
use pandastack_client::{Client, LineStream};
use pandastack_types::api::{Deployment, DeploymentStatus};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Failure, INTERRUPTED};
use crate::output::Output;

/// Prints lines until the log ends (true) or the user presses Ctrl-C (false).
pub async fn print_lines(mut lines: LineStream, to_stderr: bool, output: Output) -> Result<bool> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for Ctrl-C")?;
    loop {
        tokio::select! {
            line = lines.next() => match line? {
                Some(line) if to_stderr => eprintln!("{line}"),
                Some(line) => output.line(&line)?,
                None => return Ok(true),
            },
            _ = interrupt.recv() => return Ok(false),
        }
    }
}

/// Follows a deployment until it ends; prints its log to standard error and the app's URL to standard output.
pub async fn follow(client: &Client, app: &str, deployment: Deployment, output: Output) -> Result<ExitCode> {
    let lines = client.follow_deployment(app, &deployment.id).await?;
    if !print_lines(lines, true, output).await? {
        eprintln!(
            "the deployment continues; to follow it, run `pandastack app logs {app} --deploy {}`",
            deployment.id
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    let ended = client.get_deployment(app, &deployment.id).await?;
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
