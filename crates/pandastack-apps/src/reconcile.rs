//! Keeps the live version at its number of machines: replaces lost ones, adds missing ones, removes surplus ones.
//!
//! - A change is a deployment of the live version that reuses its healthy machines. It is queued, logged and switched
//!   atomically like any other, so a crash in the middle leaves nothing behind.
//! - Machines of earlier versions get their idle timeout again, in case a crash prevented it: one that never slept
//!   while it served would stay awake as long as it is kept.
//! - [`DRAIN_SECONDS_MAX`] after their replacement they go to sleep even if they are in use, unless a lease keeps them
//!   awake. This runs in the background, because writing memory to disk takes a while.
//! - A failed deployment, for example without capacity, is retried after [`RETRY_SECONDS_MIN`], then after twice as
//!   long each time up to [`RETRY_SECONDS_MAX`]. It stays one deployment, so failures push no version out of the history.

use std::sync::Arc;

use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use pandastack_store::apps::record::{AppRecord, DeploymentRecord};
use pandastack_store::clock::now;
use pandastack_store::{SandboxRecord, StoreError};
use pandastack_types::api::DeploymentStatus;
use pandastack_types::{AppId, Result, SandboxId, SandboxState, chain};

use crate::deploy::DRAIN_IDLE_SECONDS;
use crate::machine;
use crate::state::Apps;
use crate::{log, prune};

/// Trigger of a deployment that replaces lost machines.
const RECOVERY: &str = "recovery";
/// Trigger of a deployment that changes the number of machines.
const SCALE: &str = "scale";

/// Longest time for which connections to a replaced version may keep it awake.
const DRAIN_SECONDS_MAX: i64 = 3600;
/// Pause after the first failure.
const RETRY_SECONDS_MIN: i64 = 30;
/// Longest pause.
const RETRY_SECONDS_MAX: i64 = 3600;

/// The initiator of a reconciliation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Initiator {
    /// A user changed the number of machines.
    User,
    /// The periodic check.
    Reconciler,
}

/// Reconciles every app.
pub(crate) async fn all(apps: &Arc<Apps>) -> Result<()> {
    for app in apps.store.apps(None).await? {
        self::app(apps, &app, Initiator::Reconciler).await?;
    }
    Ok(())
}

/// Queues a deployment that restores the number of machines. Skipped while another one is in progress, because its
/// end reconciles again.
pub(crate) async fn app(apps: &Arc<Apps>, app: &AppRecord, initiator: Initiator) -> Result<()> {
    let Some(active) = app.active.as_ref().filter(|_| !app.spec.deleting) else { return Ok(()) };
    let all = apps.store.deployments(&app.id).await?;
    let Some(live) = all.iter().find(|one| one.id == *active) else { return Ok(()) };
    let newest = all.first().unwrap_or(live);
    if newest.status.is_in_progress() {
        return Ok(());
    }
    retire_left(apps, app, &all).await;
    let mut good = Vec::new();
    for machine in live.spec.machines() {
        if !is_lost(apps, machine).await? {
            good.push(machine.clone());
        }
    }
    let Some(trigger) = needed(live.spec.machines().count(), good.len(), app.spec.max_instances as usize)
    else {
        return Ok(());
    };
    let failed =
        Some(newest).filter(|newest| initiator == Initiator::Reconciler && has_failed(newest, trigger));
    if failed.is_some_and(|failed| now() < next_try(failed)) {
        return Ok(());
    }
    tracing::info!(app = %app.id, trigger, good = good.len(), "scaling the machines of a live app");
    let mut new = DeploymentRecord::returning_to(app, live, trigger, now());
    new.spec.set_machines(good);
    if let Some(failed) = failed {
        return try_again(apps, failed, new).await;
    }
    // A deployment requested in the meantime is newer than this one, and its end triggers another
    // check.
    let came_between = |all: &[DeploymentRecord]| all.first().is_none_or(|first| first.id != newest.id);
    if apps.store.insert_deployment_unless(&new, &came_between).await? {
        apps.activity.notify();
    }
    Ok(())
}

/// Sets an idle timeout on machines kept for a rollback, unless they have one, and puts to sleep
/// the machines that stay awake; all concurrently, without delaying the caller.
async fn retire_left(apps: &Arc<Apps>, app: &AppRecord, all: &[DeploymentRecord]) {
    let mut due = Vec::new();
    for id in prune::needed(app, all).machines {
        let Some(since) = left_since(app, all, &id) else { continue };
        let Ok(machine) = apps.machines.find(None, &id).await else { continue };
        let is_awake = machine.state == SandboxState::Running;
        if is_awake && (is_drain_over(since, now()) || is_left(&machine)) {
            due.push(id);
        }
    }
    if due.is_empty() || !apps.activity.begin_retiring(&app.id) {
        return;
    }
    let turn = RetireGuard { apps: Arc::clone(apps), id: app.id.clone() };
    apps.background.tasks.spawn(async move {
        let retired = due.iter().map(|id| retire(&turn.apps, &turn.id, id));
        for error in join_all(retired).await.into_iter().filter_map(Result::err) {
            tracing::info!(
                app = %turn.id, error = %chain(&error),
                "cannot set the idle timeout of an old machine; retrying later"
            );
        }
    });
}

/// Marks that an app's machines are being retired. Also released by a panic.
struct RetireGuard {
    apps: Arc<Apps>,
    id: AppId,
}

impl Drop for RetireGuard {
    fn drop(&mut self) {
        self.apps.activity.end_retiring(&self.id);
    }
}

/// Sets the idle timeout of one machine, and puts it to sleep if it is overdue and has no lease.
/// Checks before each step that the machine is still unused: a rollback may have returned to it.
async fn retire(apps: &Arc<Apps>, app: &AppId, id: &SandboxId) -> Result<()> {
    let Some((record, _)) = left_now(apps, app, id).await? else { return Ok(()) };
    let machine = machine::open(apps.machines.as_ref(), &record, id).await?;
    if is_left(&machine.record) {
        machine.set_idle(DRAIN_IDLE_SECONDS).await?;
    }
    let lease = machine.awake_until().await?;
    match left_now(apps, app, id).await? {
        Some((_, since)) if is_sleep_due(since, lease, now()) => machine.sleep().await,
        _ => Ok(()),
    }
}

/// The app, and the time since which a machine of it no longer serves, as stored now.
async fn left_now(apps: &Apps, app: &AppId, id: &SandboxId) -> Result<Option<(AppRecord, Timestamp)>> {
    let record = apps.store.app(None, app.as_str()).await?;
    let since = left_since(&record, &apps.store.deployments(app).await?, id);
    Ok(since.map(|since| (record, since)))
}

/// Time at which a machine's version was replaced. `None` if the version serves, belongs to a deployment in
/// progress, or never served.
fn left_since(app: &AppRecord, all: &[DeploymentRecord], id: &SandboxId) -> Option<Timestamp> {
    let mut holders = all.iter().filter(|one| one.spec.machines().any(|machine| machine == id));
    let is_wanted =
        |one: &DeploymentRecord| one.status.is_in_progress() || app.active.as_ref() == Some(&one.id);
    if app.spec.deleting || holders.clone().any(is_wanted) {
        return None;
    }
    // The switch to the next version is the last that is written of it. One that was overtaken before it served says why it did not.
    let served = holders.find(|one| {
        matches!(one.status, DeploymentStatus::Superseded | DeploymentStatus::RolledBack)
            && one.spec.error.is_none()
    });
    served.map(|one| one.updated_at)
}

/// Returns whether a replaced machine still has the idle timeout of a serving one.
fn is_left(machine: &SandboxRecord) -> bool {
    machine.spec.idle_timeout_seconds > DRAIN_IDLE_SECONDS
}

/// Returns whether the connections to a replaced version have had their time to end.
fn is_drain_over(since: Timestamp, at: Timestamp) -> bool {
    at.duration_since(since) > SignedDuration::from_secs(DRAIN_SECONDS_MAX)
}

/// The same, where work that a lease protects continues for as long as that lasts.
fn is_sleep_due(since: Timestamp, lease: Option<Timestamp>, at: Timestamp) -> bool {
    is_drain_over(since, at) && lease.is_none_or(|until| until <= at)
}

/// Returns whether the newest deployment attempted the same and failed.
fn has_failed(newest: &DeploymentRecord, trigger: &str) -> bool {
    newest.status == DeploymentStatus::Failed && newest.spec.trigger == trigger
}

/// Time at which a failed deployment is retried.
fn next_try(failed: &DeploymentRecord) -> Timestamp {
    let pause = RETRY_SECONDS_MIN << failed.spec.retries.min(16);
    let pause = SignedDuration::from_secs(pause.min(RETRY_SECONDS_MAX));
    failed.updated_at.checked_add(pause).unwrap_or(Timestamp::MAX)
}

/// Queues a failed deployment again. A deployment that a user has requested since is newer, and
/// replaces it.
async fn try_again(apps: &Arc<Apps>, failed: &DeploymentRecord, new: DeploymentRecord) -> Result<()> {
    let again = retry_of(failed, new);
    if apps.store.put_deployment(&again, DeploymentStatus::Failed).await? {
        log::append(apps, &again.id, &format!("retry number {}", again.spec.retries)).await?;
    }
    Ok(())
}

/// The retry of a failed deployment, with the settings of a new one.
fn retry_of(failed: &DeploymentRecord, new: DeploymentRecord) -> DeploymentRecord {
    let mut again = DeploymentRecord { id: failed.id.clone(), created_at: failed.created_at, ..new };
    again.spec.retries = failed.spec.retries + 1;
    again
}

/// Trigger of the deployment that a version needs: `count` machines exist, `good` of them work,
/// `wanted` are configured.
fn needed(count: usize, good: usize, wanted: usize) -> Option<&'static str> {
    match (count, good) {
        (0, _) => None,
        (count, good) if good < count => Some(RECOVERY),
        (count, _) => (count != wanted).then_some(SCALE),
    }
}

async fn is_lost(apps: &Apps, machine: &SandboxId) -> Result<bool> {
    match apps.machines.find(None, machine).await {
        Ok(machine) => Ok(machine.state == SandboxState::Failed),
        Err(StoreError::NotFound { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_store::apps::record::AppSpec;

    #[test]
    fn lost_machines_are_replaced_and_missing_ones_created() {
        for (count, good, wanted, expect) in [
            (1, 1, 1, None),
            (3, 3, 3, None),
            (1, 0, 1, Some(RECOVERY)),
            (3, 2, 3, Some(RECOVERY)),
            (3, 2, 2, Some(RECOVERY)),
            (1, 1, 3, Some(SCALE)),
            (3, 3, 1, Some(SCALE)),
            (0, 0, 1, None),
        ] {
            assert_eq!(needed(count, good, wanted), expect, "{count} {good} {wanted}");
        }
    }

    fn app() -> AppRecord {
        AppRecord::new(
            pandastack_types::WorkspaceId::default_workspace(),
            "a".to_owned(),
            AppSpec::default(),
            now(),
        )
    }

    /// A deployment with these machines that was last written about so many seconds after the first one.
    fn version(
        app: &AppRecord,
        status: DeploymentStatus,
        machines: &[&str],
        seconds: i64,
    ) -> DeploymentRecord {
        let mut one = DeploymentRecord::queued(app, "api", app.created_at);
        (one.status, one.updated_at) = (status, after(app, seconds));
        one.spec.set_machines(machines.iter().map(|machine| machine.parse().unwrap()));
        one
    }

    fn after(app: &AppRecord, seconds: i64) -> Timestamp {
        app.created_at.checked_add(SignedDuration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn connections_to_a_replaced_version_end_after_an_hour() {
        use DeploymentStatus as S;
        let mut app = app();
        let mut all = vec![
            version(&app, S::Live, &["c"], 7000),
            version(&app, S::Failed, &["a"], 6000),
            version(&app, S::Superseded, &["b", "b2"], 7000),
            version(&app, S::Superseded, &["b", "lost"], 2000),
            version(&app, S::RolledBack, &["a"], 1000),
        ];
        app.active = Some(all[0].id.clone());
        let since = |all: &[DeploymentRecord], id: &str| left_since(&app, all, &id.parse().unwrap());
        assert_eq!(since(&all, "a"), Some(after(&app, 1000)), "later versions begin no new hour");
        assert_eq!(since(&all, "b"), Some(after(&app, 7000)), "it served on after it was mended");
        assert_eq!(since(&all, "c"), None, "it serves");
        assert_eq!(since(&all, "none"), None, "it never did");
        all.insert(0, version(&app, S::Queued, &["a"], 8000));
        assert_eq!(since(&all, "a"), None, "a rollback returns to it");
        (all[0].status, all[0].spec.error) = (S::Superseded, Some("a newer one took its place".to_owned()));
        assert_eq!(since(&all, "a"), Some(after(&app, 1000)), "the deployment failed again");
        let at = |seconds| is_drain_over(after(&app, 1000), after(&app, 1000 + seconds));
        assert_eq!((at(DRAIN_SECONDS_MAX - 60), at(DRAIN_SECONDS_MAX + 60)), (false, true));
    }

    #[test]
    fn a_lease_keeps_a_replaced_version_awake() {
        let app = app();
        let (since, lease) = (after(&app, 0), after(&app, 3 * DRAIN_SECONDS_MAX));
        let is_due = |lease, seconds| is_sleep_due(since, lease, after(&app, seconds));
        assert!(is_due(None, DRAIN_SECONDS_MAX + 60));
        assert!(!is_due(Some(lease), DRAIN_SECONDS_MAX + 60), "its work goes on");
        assert!(is_due(Some(lease), 3 * DRAIN_SECONDS_MAX), "its lease is over");
        assert!(
            !is_due(Some(after(&app, 60)), DRAIN_SECONDS_MAX - 60),
            "clients have their hour all the same"
        );
    }

    #[test]
    fn failed_reconciliations_are_retried_with_backoff() {
        let app = app();
        let check = |newest: &str, status, trigger: &str, expect| {
            let newest = DeploymentRecord { status, ..DeploymentRecord::queued(&app, newest, now()) };
            assert_eq!(has_failed(&newest, trigger), expect, "{trigger} after {newest:?}");
        };
        check(SCALE, DeploymentStatus::Failed, SCALE, true);
        check(RECOVERY, DeploymentStatus::Failed, RECOVERY, true);
        check(SCALE, DeploymentStatus::Failed, RECOVERY, false);
        check("api", DeploymentStatus::Failed, RECOVERY, false);
        check(RECOVERY, DeploymentStatus::Live, RECOVERY, false);

        let queued = |at| DeploymentRecord::queued(&app, RECOVERY, at);
        let mut failed = DeploymentRecord { status: DeploymentStatus::Failed, ..queued(now()) };
        let mut pauses = Vec::new();
        for _ in 0..40 {
            pauses.push(next_try(&failed).duration_since(failed.updated_at).as_secs());
            let next = retry_of(&failed, queued(next_try(&failed)));
            assert_eq!((&next.id, next.created_at), (&failed.id, failed.created_at), "it stays one");
            assert_eq!((next.status, next.spec.error.as_ref()), (DeploymentStatus::Queued, None));
            failed = DeploymentRecord { status: DeploymentStatus::Failed, ..next };
        }
        assert_eq!(pauses[..9], [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(pauses.last(), Some(&RETRY_SECONDS_MAX));
    }
}
