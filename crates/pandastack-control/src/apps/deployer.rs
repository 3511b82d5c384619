//! Whose turn it is: one deployment at a time per app, the newest wins.
//!
//! A live version that lost a machine (its host was restarted, say), or should have more or fewer, is mended by a deployment of its
//! own ([`mend`]).
//!
//! Takes no input: whatever is queued when it looks is handled, so a missed or repeated wake-up does no harm. When the
//! server starts, deployments that another process left under way are queued again; one that was begun
//! [`ATTEMPTS_MAX`] times fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pandastack_types::AppId;
use pandastack_types::api::DeploymentStatus;
use pandastack_types::limits::DEPLOYS_AT_ONCE_MAX;

use super::record::DeploymentRecord;
use super::{Stop, deploy, log, mend, removal, tidy};
use crate::app::{App, lost, now};
use crate::error::ApiResult;

/// How often a deployment is begun before it fails.
const ATTEMPTS_MAX: u32 = 3;
/// Longest pause: after a failure of the store nobody tells when to look again.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Deploys until shutdown.
pub(crate) async fn run(app: Arc<App>) {
    let mut resumed = false;
    let mut events = app.events.subscribe();
    loop {
        if !resumed {
            resumed = resume(&app).await.is_ok();
        }
        let looked = match resumed {
            true => sweep_and_begin(&app).await,
            false => Ok(()),
        };
        if let Err(error) = looked {
            tracing::warn!(%error, cause = error.causes(), "deployments are looked at again soon");
        }
        tokio::select! {
            () = app.shutdown.cancelled() => return,
            () = app.apps.work.notified() => {}
            () = lost(&mut events) => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

async fn sweep_and_begin(app: &Arc<App>) -> ApiResult<()> {
    removal::sweep(app).await?;
    mend::all(app).await?;
    begin_due(app).await
}

/// Takes up what another process left.
async fn resume(app: &Arc<App>) -> ApiResult<()> {
    for mut left in app.store.deployments_under_way().await? {
        let was = left.status;
        if was == DeploymentStatus::Queued {
            continue;
        }
        let again = left.spec.attempts < ATTEMPTS_MAX;
        left.updated_at = now();
        left.status = if again { DeploymentStatus::Queued } else { DeploymentStatus::Failed };
        let sentence = match again {
            true => "the server was restarted; this deployment begins again".to_owned(),
            false => {
                format!("the server was restarted {ATTEMPTS_MAX} times during this deployment; deploy again")
            }
        };
        if !again {
            left.finished_at = Some(now());
            left.spec.error = Some(sentence.clone());
        }
        app.store.put_deployment(&left, was).await?;
        log::append(app, &left.id, &sentence).await?;
    }
    for one in app.store.apps(None).await? {
        if let Err(error) = tidy::app(app, &one.id).await {
            tracing::warn!(app = %one.id, %error, "an app is tidied up after its next deployment");
        }
    }
    Ok(())
}

/// Begins what may begin.
async fn begin_due(app: &Arc<App>) -> ApiResult<()> {
    let mut by_app = BTreeMap::<AppId, Vec<DeploymentRecord>>::new();
    for one in app.store.deployments_under_way().await? {
        if one.status == DeploymentStatus::Queued {
            by_app.entry(one.app.clone()).or_default().push(one);
        }
    }
    for (id, mut queued) in by_app {
        let Some(newest) = queued.pop() else { continue };
        for old in queued {
            supersede(app, old).await?;
        }
        match app.apps.running(&id) {
            Some(running) if running == newest.id => {}
            Some(running) => {
                app.apps.stop(&running, Stop::Superseded);
            }
            None if app.apps.count_running() >= DEPLOYS_AT_ONCE_MAX => {}
            None => begin(app, newest),
        }
    }
    Ok(())
}

fn begin(app: &Arc<App>, deployment: DeploymentRecord) {
    let stop = app.apps.begin(&deployment.app, &deployment.id);
    let (app, id) = (Arc::clone(app), deployment.id.clone());
    let task = app.clone();
    task.tasks.spawn(async move {
        deploy::run(Arc::clone(&app), deployment, stop).await;
        app.apps.end(&id);
        app.apps.work.notify_one();
    });
}

/// A newer one is there before this one began.
async fn supersede(app: &Arc<App>, mut old: DeploymentRecord) -> ApiResult<()> {
    old.status = DeploymentStatus::Superseded;
    old.updated_at = now();
    old.finished_at = Some(now());
    old.spec.error = Some("a newer deployment took its place".to_owned());
    old.spec.build_machine = None;
    if app.store.put_deployment(&old, DeploymentStatus::Queued).await? {
        log::append(app, &old.id, "superseded: a newer deployment took its place").await?;
    }
    Ok(())
}
