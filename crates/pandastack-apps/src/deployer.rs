//! Schedules deployments: one at a time per app, the newest wins.
//!
//! A live version that lost a machine (its host was restarted, say), or should have more or fewer, is reconciled by a deployment of its
//! own ([`reconcile`]).
//!
//! Builds have their own limit: a rollback, a restart and a recovery do not wait for builds.
//!
//! Takes no input: each pass handles everything queued, so a missed or repeated wake-up does no
//! harm. Deployments in progress that no task works on, left by another process or by a failure of
//! this one, are queued again; one that was started [`ATTEMPTS_MAX`] times fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pandastack_sandboxes::lost;
use pandastack_store::apps::record::DeploymentRecord;
use pandastack_store::clock::now;
use pandastack_types::api::DeploymentStatus;
use pandastack_types::limits::DEPLOYS_AT_ONCE_MAX;
use pandastack_types::{AppId, DeploymentId, Result, chain};

use crate::activity::Stop;
use crate::state::Apps;
use crate::{deploy, log, prune, reconcile, removal};

/// Number of times a deployment is started before it fails.
const ATTEMPTS_MAX: u32 = 3;
/// Deployments that build nothing in progress at once: after the loss of a host all of its apps recover.
const RETURNS_AT_ONCE_MAX: usize = 16;
/// Longest pause: after a failure of the store, no event says when to check again.
const CHECK_EVERY: Duration = Duration::from_secs(30);

/// Deploys until shutdown.
pub async fn run(apps: Arc<Apps>) {
    let mut is_pruned = false;
    let mut events = apps.machines.events();
    loop {
        let looked = start_due(&apps, &mut is_pruned).await;
        if let Err(error) = looked {
            tracing::warn!(error = %chain(&error), "cannot check deployments; retrying soon");
        }
        tokio::select! {
            () = apps.background.shutdown.cancelled() => return,
            () = apps.activity.work.notified() => {}
            () = lost(&mut events) => {}
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
}

async fn start_due(apps: &Arc<Apps>, is_pruned: &mut bool) -> Result<()> {
    take_up(apps).await?;
    if !*is_pruned {
        prune_all(apps).await?;
        *is_pruned = true;
    }
    prune_deferred(apps).await;
    removal::sweep(apps).await?;
    reconcile::all(apps).await?;
    begin_due(apps).await
}

/// Queues deployments in progress that no task works on.
async fn take_up(apps: &Arc<Apps>) -> Result<()> {
    for left in apps.store.deployments_in_progress().await? {
        let was = left.status;
        if was == DeploymentStatus::Queued || apps.activity.is_running(&left.id) {
            continue;
        }
        // The next process takes up the deployments that this one leaves because it ends.
        if apps.background.shutdown.is_cancelled() {
            return Ok(());
        }
        let (taken, sentence) = taken_up(left);
        // One that ended since it was read stays as it ended.
        if apps.store.put_deployment(&taken, was).await? {
            log::append(apps, &taken.id, &sentence).await?;
        }
    }
    Ok(())
}

/// An interrupted deployment in its next state, with the log line about it.
fn taken_up(mut left: DeploymentRecord) -> (DeploymentRecord, String) {
    left.updated_at = now();
    if left.spec.attempts < ATTEMPTS_MAX {
        left.status = DeploymentStatus::Queued;
        return (left, "the server restarted; this deployment starts again".to_owned());
    }
    let sentence = format!("the server restarted {ATTEMPTS_MAX} times during this deployment; deploy again");
    left.status = DeploymentStatus::Failed;
    left.finished_at = Some(now());
    left.spec.error = Some(sentence.clone());
    (left, sentence)
}

/// Deletes what another process left.
async fn prune_all(apps: &Arc<Apps>) -> Result<()> {
    for one in apps.store.apps(None).await? {
        if let Err(error) = prune::app(apps, &one.id).await {
            tracing::warn!(
                app = %one.id, error = %chain(&error),
                "cannot delete unused machines of an app; retrying after its next deployment"
            );
        }
    }
    Ok(())
}

/// Deletes unused machines whose deletion was deferred because the app was receiving a source at
/// the time. Only this task starts deployments, so none starts during the deletion.
async fn prune_deferred(apps: &Arc<Apps>) {
    for id in apps.activity.take_unpruned() {
        if let Err(error) = prune::app(apps, &id).await {
            tracing::warn!(
                app = %id, error = %chain(&error),
                "cannot delete unused machines of an app; retrying later"
            );
            apps.activity.note_unpruned(id);
        }
    }
}

/// Starts all deployments that can start.
async fn begin_due(apps: &Arc<Apps>) -> Result<()> {
    let mut by_app = BTreeMap::<AppId, Vec<DeploymentRecord>>::new();
    for one in apps.store.deployments_in_progress().await? {
        if one.status == DeploymentStatus::Queued {
            by_app.entry(one.app.clone()).or_default().push(one);
        }
    }
    let mut due = Vec::new();
    for (id, mut queued) in by_app {
        let Some(newest) = queued.pop() else { continue };
        for old in queued {
            supersede(apps, old).await?;
        }
        match apps.activity.running(&id) {
            Some(running) if running == newest.id => {}
            Some(running) => {
                apps.activity.stop(&running, Stop::Superseded);
            }
            None => due.push(newest),
        }
    }
    let (begun, waiting) =
        split_by_capacity(due, apps.activity.count_running(true), apps.activity.count_running(false));
    for deployment in begun {
        begin(apps, deployment);
    }
    log_waiting(apps, &waiting).await;
    Ok(())
}

/// Splits queued deployments, oldest first, into those that can start and those that wait, given
/// limits for builds and for others.
fn split_by_capacity(
    mut due: Vec<DeploymentRecord>,
    mut builds: usize,
    mut returns: usize,
) -> (Vec<DeploymentRecord>, Vec<DeploymentRecord>) {
    due.sort_by_key(|one| one.created_at);
    due.into_iter().partition(|one| {
        let (taken, max) = match one.builds() {
            true => (&mut builds, DEPLOYS_AT_ONCE_MAX),
            false => (&mut returns, RETURNS_AT_ONCE_MAX),
        };
        let has_turn = *taken < max;
        *taken += usize::from(has_turn);
        has_turn
    })
}

/// Logs once for each waiting deployment that it waits. A failure to write the log fails no deployment.
async fn log_waiting(apps: &Arc<Apps>, waiting: &[DeploymentRecord]) {
    for id in apps.activity.note_waiting(waiting) {
        let sentence = "queued: the limit of concurrent deployments is reached";
        if let Err(error) = log::append(apps, &id, sentence).await {
            tracing::info!(
                deployment = %id, error = %chain(&error),
                "cannot write to the log of a waiting deployment"
            );
        }
    }
}

fn begin(apps: &Arc<Apps>, deployment: DeploymentRecord) {
    let stop = apps.activity.begin(&deployment);
    let turn = DeployGuard { apps: Arc::clone(apps), id: deployment.id.clone() };
    apps.background.tasks.spawn(async move {
        deploy::run(Arc::clone(&turn.apps), deployment, stop).await;
        drop(turn);
    });
}

/// Held by the task that works on a deployment. Dropped also by a panic, after which the next look
/// takes it up.
struct DeployGuard {
    apps: Arc<Apps>,
    id: DeploymentId,
}

impl Drop for DeployGuard {
    fn drop(&mut self) {
        self.apps.activity.end(&self.id);
        self.apps.activity.work.notify_one();
    }
}

/// Ends a deployment that a newer one replaced before it began.
async fn supersede(apps: &Arc<Apps>, mut old: DeploymentRecord) -> Result<()> {
    old.status = DeploymentStatus::Superseded;
    old.updated_at = now();
    old.finished_at = Some(now());
    old.spec.error = Some("a newer deployment replaced it".to_owned());
    old.spec.build_machine = None;
    if apps.store.put_deployment(&old, DeploymentStatus::Queued).await? {
        log::append(apps, &old.id, "superseded: a newer deployment replaced it").await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_store::apps::record::{AppRecord, AppSpec};

    fn app() -> AppRecord {
        AppRecord::new(
            pandastack_types::WorkspaceId::default_workspace(),
            "a".to_owned(),
            AppSpec::default(),
            now(),
        )
    }

    #[test]
    fn rollbacks_skip_the_build_queue_and_the_oldest_starts_first() {
        let app = app();
        let queued = |seconds: i64| {
            let at = app.created_at.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap();
            DeploymentRecord::queued(&app, "api", at)
        };
        let built = queued(0);
        let returning = |seconds: i64| DeploymentRecord {
            created_at: queued(seconds).created_at,
            ..DeploymentRecord::returning_to(&app, &built, "rollback", now())
        };
        let ids = |some: &[DeploymentRecord]| some.iter().map(|one| one.id.clone()).collect::<Vec<_>>();
        let all = [queued(3), queued(1), returning(4), queued(2)];
        let [third, first, rollback, second] = all.each_ref().map(|one| one.id.clone());
        let check = |builds, returns, begun: &[&DeploymentId], waiting: &[&DeploymentId]| {
            let (has_turn, waits) = split_by_capacity(all.to_vec(), builds, returns);
            assert_eq!(ids(&has_turn).iter().collect::<Vec<_>>(), begun);
            assert_eq!(ids(&waits).iter().collect::<Vec<_>>(), waiting);
        };
        check(0, 0, &[&first, &second, &third, &rollback], &[]);
        check(DEPLOYS_AT_ONCE_MAX - 1, 0, &[&first, &rollback], &[&second, &third]);
        check(DEPLOYS_AT_ONCE_MAX, 0, &[&rollback], &[&first, &second, &third]);
        check(DEPLOYS_AT_ONCE_MAX, RETURNS_AT_ONCE_MAX, &[], &[&first, &second, &third, &rollback]);
    }

    #[test]
    fn abandoned_deployments_are_requeued_a_limited_number_of_times() {
        let app = app();
        let left = |attempts| {
            let mut left = DeploymentRecord::queued(&app, "api", now());
            (left.status, left.spec.attempts) = (DeploymentStatus::Building, attempts);
            taken_up(left)
        };
        let (again, _) = left(ATTEMPTS_MAX - 1);
        assert_eq!((again.status, again.finished_at), (DeploymentStatus::Queued, None));
        let (over, sentence) = left(ATTEMPTS_MAX);
        assert_eq!((over.status, over.spec.error), (DeploymentStatus::Failed, Some(sentence)));
    }
}
