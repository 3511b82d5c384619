//! Apps on the measured platform: create, deploy, wait.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pandastack_types::api::{App, AppSettings, CreateApp, Deployment, DeploymentStatus};
use pandastack_types::{DeploymentId, SandboxId};

use super::plan::Setup;

/// Longest wait for a deployment or for sleep.
pub const WAIT_MAX: Duration = Duration::from_secs(900);
/// Interval between two checks of either.
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Creates an app.
pub async fn create_app(setup: &Setup<'_>, name: &str, settings: AppSettings) -> Result<App> {
    let request = CreateApp { name: name.to_owned(), settings, ..CreateApp::default() };
    setup.client.create_app(&request).await.context("make the app")
}

/// Deploys an archive, until it is live.
pub async fn deploy(setup: &Setup<'_>, name: &str, archive: Vec<u8>) -> Result<Deployment> {
    let begun = setup.client.deploy_archive(name, archive, false).await?;
    wait_until_live(setup, name, &begun.id).await
}

/// Waits until a deployment is live.
pub async fn wait_until_live(setup: &Setup<'_>, name: &str, id: &DeploymentId) -> Result<Deployment> {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        let now = setup.client.get_deployment(name, id).await?;
        match now.status {
            DeploymentStatus::Live => return Ok(now),
            status if status.is_in_progress() => ensure!(Instant::now() < deadline, "{name} is not deployed"),
            status => bail!("a deployment is {}: {:?}", status.as_str(), now.build_logs),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The machine of an app.
pub async fn machine_of(setup: &Setup<'_>, name: &str) -> Result<SandboxId> {
    setup.client.get_app(name).await?.sandbox_id.context("the app has no machine")
}
