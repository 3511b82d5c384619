//! Whose turn it is: one deployment at a time per app, the newest wins.
//!
//! A live version that lost a machine (its host was restarted, say), or should have more or fewer, is mended by a deployment of its
//! own ([`mend`]).
//!
//! Takes no input: whatever is queued when it looks is handled, so a missed or repeated wake-up does no harm. Deployments under
//! way that nobody works on, left by another process or by a failure of this one, are queued again; one that was begun
//! [`ATTEMPTS_MAX`] times fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pandastack_types::api::DeploymentStatus;
use pandastack_types::limits::DEPLOYS_AT_ONCE_MAX;
use pandastack_types::{AppId, DeploymentId};

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
    let mut is_tidied = false;
    let mut events = app.events.subscribe();
    loop {
        let looked = look(&app, &mut is_tidied).await;
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

async fn look(app: &Arc<App>, is_tidied: &mut bool) -> ApiResult<()> {
    take_up(app).await?;
    if !*is_tidied {
        tidy_all(app).await?;
        *is_tidied = true;
    }
    tidy_left(app).await;
    removal::sweep(app).await?;
    mend::all(app).await?;
    begin_due(app).await
}

/// Takes up what is under way and nobody works on.
async fn take_up(app: &Arc<App>) -> ApiResult<()> {
    for left in app.store.deployments_under_way().await? {
        let was = left.status;
        if was == DeploymentStatus::Queued || app.apps.is_running(&left.id) {
            continue;
        }
        // What this process leaves because it ends is for the next one.
        if app.shutdown.is_cancelled() {
            return Ok(());
        }
        let (taken, sentence) = taken_up(left);
        // One that ended since it was read stays as it ended.
        if app.store.put_deployment(&taken, was).await? {
            log::append(app, &taken.id, &sentence).await?;
        }
    }
    Ok(())
}

/// A deployment whose work broke off, as it goes on, and what its log says of that.
fn taken_up(mut left: DeploymentRecord) -> (DeploymentRecord, String) {
    left.updated_at = now();
    if left.spec.attempts < ATTEMPTS_MAX {
        left.status = DeploymentStatus::Queued;
        return (left, "the server was restarted; this deployment begins again".to_owned());
    }
    let sentence =
        format!("the server was restarted {ATTEMPTS_MAX} times during this deployment; deploy again");
    left.status = DeploymentStatus::Failed;
    left.finished_at = Some(now());
    left.spec.error = Some(sentence.clone());
    (left, sentence)
}

/// Deletes what another process left.
async fn tidy_all(app: &Arc<App>) -> ApiResult<()> {
    for one in app.store.apps(None).await? {
        if let Err(error) = tidy::app(app, &one.id).await {
            tracing::warn!(app = %one.id, %error, "an app is tidied up after its next deployment");
        }
    }
    Ok(())
}

/// Deletes what a deployment left because its app was given a source at its end, and that did not become a deployment which would.
/// Here alone deployments begin, so none does meanwhile.
async fn tidy_left(app: &Arc<App>) {
    for id in app.apps.take_untidy() {
        if let Err(error) = tidy::app(app, &id).await {
            tracing::warn!(app = %id, %error, "an app is tidied up at the next look");
            app.apps.note_untidy(id);
        }
    }
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
    let turn = Turn { app: Arc::clone(app), id: deployment.id.clone() };
    app.tasks.spawn(async move {
        deploy::run(Arc::clone(&turn.app), deployment, stop).await;
        drop(turn);
    });
}

/// Held by whoever works on a deployment. Dropped also by a panic, after which the next look takes it up.
struct Turn {
    app: Arc<App>,
    id: DeploymentId,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.app.apps.end(&self.id);
        self.app.apps.work.notify_one();
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::record::{AppRecord, AppSpec};

    #[test]
    fn what_nobody_works_on_begins_again_a_few_times() {
        let of = AppRecord::new(
            pandastack_types::WorkspaceId::default_workspace(),
            "a".to_owned(),
            AppSpec::default(),
            now(),
        );
        let left = |attempts| {
            let mut left = DeploymentRecord::queued(&of, "api", now());
            (left.status, left.spec.attempts) = (DeploymentStatus::Building, attempts);
            taken_up(left)
        };
        let (again, _) = left(ATTEMPTS_MAX - 1);
        assert_eq!((again.status, again.finished_at), (DeploymentStatus::Queued, None));
        let (over, sentence) = left(ATTEMPTS_MAX);
        assert_eq!((over.status, over.spec.error), (DeploymentStatus::Failed, Some(sentence)));
    }
}
