//! Pushes of a Vite app, from `git push` to live.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pandastack_client::Client;
use pandastack_types::SandboxId;
use pandastack_types::api::{AppSettings, ExecRequest};

use super::deployment::{WAIT_MAX, create_app, deploy, machine_of, wait_until_live};
use super::plan::{Plan, Setup};
use crate::git_host::GitHost;
use crate::git_push::{Webhook, WorkTree};
use crate::report::Report;
use crate::vite::{INSTALL, Source};

/// Time from push to live.
pub const LIVE: &str = "vite, push to live, packages installed before";
/// Time of the same build without the platform.
pub const BY_HAND: &str = "vite, the build by hand in its machine";
const NOTIFIED: &str = "vite, of that until the push was told";

/// Pushes of a Vite app whose packages are installed, beside the same build by hand.
pub async fn measure(setup: &Setup<'_>, plan: Plan, report: &mut Report) -> Result<()> {
    let name = format!("vite-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
    let source = Source::prepare().await.context("fetch the packages of the Vite app")?;
    let host = GitHost::start().await.context("start the repository's host")?;
    let tree = WorkTree::begin(source.dir(), &host.url()).await?;
    let webhook = create_with_webhook(setup, &name, host.url()).await?;
    let began = Instant::now();
    deploy(setup, &name, source.archive()?).await?;
    report.sample("vite, upload to live, the first time", "s", began.elapsed().as_secs_f64());
    // The branch starts at the deployed commit; no delivery is sent for that push.
    let mut before = tree.commit(&Source::files()).await?;
    tree.push().await?;
    for round in 1..=plan.pushes {
        source.change(round)?;
        let after = tree.commit(&Source::files()).await?;
        let began = Instant::now();
        tree.push().await?;
        let deployment = webhook.deliver_push(&before, &after).await?;
        report.sample(NOTIFIED, "s", began.elapsed().as_secs_f64());
        let done = wait_until_live(setup, &name, &deployment).await?;
        report.sample(LIVE, "s", began.elapsed().as_secs_f64());
        let log = done.build_logs.unwrap_or_default();
        ensure!(log.contains("dependencies restored, not reinstalled"), "{log}");
        ensure!(done.git_commit.as_ref() == Some(&after), "not what was pushed is live: {log}");
        before = after;
        let machine = machine_of(setup, &name).await?;
        report.sample(BY_HAND, "s", build_by_hand(setup.client, &machine).await?);
    }
    Ok(setup.client.delete_app(&name).await?)
}

/// Creates an app with a webhook for pushes to its repository.
async fn create_with_webhook(setup: &Setup<'_>, name: &str, git_url: String) -> Result<Webhook> {
    let secret = uuid::Uuid::new_v4().to_string();
    let settings = AppSettings {
        install_command: Some(INSTALL.to_owned()),
        git_url: Some(git_url),
        webhook_secret: Some(secret.clone()),
        ..AppSettings::default()
    };
    let url = create_app(setup, name, settings).await?.webhook_url.context("the app has no webhook")?;
    Ok(Webhook { url, secret })
}

async fn build_by_hand(client: &Client, machine: &SandboxId) -> Result<f64> {
    let request = ExecRequest {
        cmd: Some("cd /srv/app && rm -rf dist && NODE_ENV=production CI=1 npm run build".to_owned()),
        timeout_seconds: Some(WAIT_MAX.as_secs()),
        ..ExecRequest::default()
    };
    let began = Instant::now();
    let built = client.exec(machine, &request).await?;
    ensure!(built.exit_code == 0, "the build failed: {}", built.stderr);
    Ok(began.elapsed().as_secs_f64())
}
