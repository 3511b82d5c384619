//! Reports deployments to Git hosts: `pending` at the start, and the result at the end.
//!
//! Takes no input: it finds deployments with an unreported state in the store, so a restart of the server
//! forgets none. A status may then arrive twice, which changes nothing.
//!
//! Invariants:
//! - No deployment waits for a report or fails because of one.
//! - A host that does not respond is tried [`TRIES_MAX`] times, a host that refuses once.
//! - Requests reach only addresses that webhooks of schedules can reach, too.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use pandastack_store::StoreError;
use pandastack_store::apps::UnreportedDeployment;
use pandastack_store::apps::record::{AppRecord, DeploymentRecord};
use pandastack_types::{AppId, DeploymentId, Result, chain};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::commit_status::{self, Report, State};
use crate::log;
use crate::state::Apps;

/// Attempts to report one state of a deployment.
const TRIES_MAX: u32 = 5;
/// Delay before the second attempt; doubles with each.
const RETRY_WAIT: Duration = Duration::from_secs(2);
/// Deployments read at once; the rest follow when these are reported.
const REPORTS_PER_LOOK: u32 = 256;
/// Maximum number of reports in flight.
const REPORTS_AT_ONCE: usize = 8;
/// Minimum interval between two checks: every line of a log is a notification.
const CHECK_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause: after a failure of the store, no event says when to check again.
const CHECK_EVERY: Duration = Duration::from_secs(30);

/// Number of attempts for a report, and the time of the next.
struct ReportAttempts {
    times: u32,
    again_at: Instant,
}

/// The result of one deployment's report.
enum Outcome {
    /// The status was reported, or there is nothing to report.
    Settled,
    /// To be retried.
    Failed(String),
    /// Never to be tried again.
    Refused(String),
}

/// Reports until shutdown.
pub async fn run(apps: Arc<Apps>) {
    let mut news = apps.activity.follow();
    let mut tried = HashMap::new();
    loop {
        if let Err(error) = report_due(&apps, &mut tried).await {
            tracing::warn!(error = %chain(&error), "cannot report commit statuses; retrying soon");
        }
        tokio::select! {
            () = apps.background.shutdown.cancelled() => return,
            () = pause(&mut news, &tried) => {}
        }
    }
}

/// Waits until there may be something to report.
async fn pause(news: &mut watch::Receiver<u64>, tried: &HashMap<DeploymentId, ReportAttempts>) {
    tokio::time::sleep(CHECK_PAUSE).await;
    let next = tried.values().map(|tried| tried.again_at).min();
    let latest = Instant::now() + CHECK_EVERY;
    // The sender lives as long as the server.
    let _ = tokio::time::timeout_at(next.map_or(latest, |next| next.min(latest)), news.changed()).await;
}

async fn report_due(apps: &Arc<Apps>, tried: &mut HashMap<DeploymentId, ReportAttempts>) -> Result<()> {
    let now = Instant::now();
    let all = apps.store.unreported_deployments(REPORTS_PER_LOOK).await?;
    tried.retain(|id, _| all.iter().any(|one| one.deployment.id == *id));
    let due = all.into_iter().filter(|one| {
        let waits = tried.get(&one.deployment.id).is_some_and(|tried| tried.again_at > now);
        // While its log has a writer, a second one would overwrite lines. Its end is news.
        let is_written = !is_pending(&one.deployment) && apps.activity.is_running(&one.deployment.id);
        !(waits || is_written || one.is_start_reported && is_pending(&one.deployment))
    });
    let due: Vec<_> = due.collect();
    let mut told = futures::stream::iter(due)
        .map(|one| async move {
            let outcome = report(apps, &one.deployment).await;
            (one, outcome)
        })
        .buffer_unordered(REPORTS_AT_ONCE);
    while let Some((one, outcome)) = told.next().await {
        settle(apps, tried, one, outcome?).await?;
    }
    Ok(())
}

fn is_pending(deployment: &DeploymentRecord) -> bool {
    commit_status::state_of(deployment) == State::Pending
}

/// Records the result of a report.
async fn settle(
    apps: &Arc<Apps>,
    tried: &mut HashMap<DeploymentId, ReportAttempts>,
    one: UnreportedDeployment,
    outcome: Outcome,
) -> Result<()> {
    let (id, pending) = (&one.deployment.id, is_pending(&one.deployment));
    let times = tried.get(id).map_or(0, |tried| tried.times) + 1;
    match outcome {
        // Its commit may not be known yet; it is looked at again with its next change.
        Outcome::Settled
            if pending
                && one.deployment.spec.git_commit.is_none()
                && commit_status::is_reported(&one.deployment) =>
        {
            return Ok(());
        }
        Outcome::Settled => {}
        Outcome::Failed(_) if times < TRIES_MAX => {
            let again_at = Instant::now() + RETRY_WAIT * 2u32.pow(times);
            tried.insert(id.clone(), ReportAttempts { times, again_at });
            return Ok(());
        }
        Outcome::Failed(why) | Outcome::Refused(why) => {
            tracing::warn!(deployment = %id, why, "cannot report a commit status");
            // While it is in progress, its log has another writer.
            if !pending {
                let sentence = format!("the commit status could not be reported to the Git host: {why}");
                log::append(apps, id, &sentence).await?;
            }
        }
    }
    tried.remove(id);
    Ok(apps.store.mark_reported(id, !pending).await?)
}

async fn report(apps: &Apps, deployment: &DeploymentRecord) -> Result<Outcome> {
    for report in reports(apps, deployment).await? {
        match apps.webhooks.deliver_with("git_api_url", &report.url, report.headers, &report.body).await {
            Ok(()) => {}
            Err(error) if error.is_refusal() => return Ok(Outcome::Refused(error.to_string())),
            Err(error) => return Ok(Outcome::Failed(error.to_string())),
        }
    }
    Ok(Outcome::Settled)
}

async fn reports(apps: &Apps, deployment: &DeploymentRecord) -> Result<Vec<Report>> {
    if !commit_status::is_reported(deployment) {
        return Ok(Vec::new());
    }
    let Some(own) = find(apps, &deployment.app).await? else { return Ok(Vec::new()) };
    // The token is the app's, and stays here also for a preview of a fork.
    let app: AppRecord = match &own.preview_of {
        None => own.clone(),
        Some(app) => match find(apps, app).await? {
            Some(app) => app,
            None => return Ok(Vec::new()),
        },
    };
    let context = match own.preview_of {
        None => format!("pandastack/{}", app.name),
        Some(_) => format!("pandastack/{} (preview)", app.name),
    };
    Ok(commit_status::reports(&app.spec, deployment, &context))
}

async fn find(apps: &Apps, id: &AppId) -> Result<Option<AppRecord>> {
    match apps.store.app(None, id.as_str()).await {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
