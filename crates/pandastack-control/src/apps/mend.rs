//! The live version has as many machines as was said: lost ones are replaced, missing ones made, surplus ones given up.
//!
//! Each is a deployment that returns to what is live and takes over the machines that are still good: so it has its turn, its log and
//! its atomic switch as any other, and a crash in the middle of it leaves nothing.
//!
//! Machines of versions that served before are told again when to sleep, if a crash came before they were: one that never slept while it
//! served would stay awake for as long as it is kept. After [`DRAIN_SECONDS_MAX`] they sleep whatever still goes on in them.
//!
//! One that failed, for want of room say, is tried again as itself: after [`RETRY_SECONDS_MIN`], then after twice as long each time up
//! to [`RETRY_SECONDS_MAX`]. It stays one deployment, so that failures push no version out of the history.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use pandastack_types::api::DeploymentStatus;
use pandastack_types::{SandboxId, SandboxState};

use super::deploy::DRAIN_IDLE_SECONDS;
use super::machine::Machine;
use super::record::{AppRecord, DeploymentRecord};
use super::{log, tidy};
use crate::app::{App, now};
use crate::error::ApiResult;
use crate::store::{SandboxRecord, StoreError};

/// What begins a deployment that replaces lost machines.
const RECOVERY: &str = "recovery";
/// What begins a deployment that changes how many machines there are.
const SCALE: &str = "scale";

/// How long connections to a version that was replaced may keep it awake.
const DRAIN_SECONDS_MAX: i64 = 3600;
/// Pause after the first failure.
const RETRY_SECONDS_MIN: i64 = 30;
/// Longest pause.
const RETRY_SECONDS_MAX: i64 = 3600;

/// Why an app is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// Somebody said how many machines there should be.
    ByHand,
    /// Something may have been lost.
    ByItself,
}

/// Mends every app that needs it.
pub(super) async fn all(app: &Arc<App>) -> ApiResult<()> {
    for of in app.store.apps(None).await? {
        self::app(app, &of, Asked::ByItself).await?;
    }
    Ok(())
}

/// Queues what brings the live version to its machines, unless something is under way anyway: that ends in another look.
pub(super) async fn app(app: &Arc<App>, of: &AppRecord, asked: Asked) -> ApiResult<()> {
    let Some(active) = of.active.as_ref().filter(|_| !of.spec.deleting) else { return Ok(()) };
    let all = app.store.deployments(&of.id).await?;
    let Some(live) = all.iter().find(|one| one.id == *active) else { return Ok(()) };
    let newest = all.first().unwrap_or(live);
    if newest.status.is_under_way() {
        return Ok(());
    }
    retire_left(app, of, live, &all).await;
    let mut good = Vec::new();
    for machine in live.spec.machines() {
        if !is_lost(app, machine).await? {
            good.push(machine.clone());
        }
    }
    let Some(trigger) = needed(live.spec.machines().count(), good.len(), of.spec.max_instances as usize)
    else {
        return Ok(());
    };
    let failed = Some(newest).filter(|newest| asked == Asked::ByItself && has_failed(newest, trigger));
    if failed.is_some_and(|failed| now() < next_try(failed)) {
        return Ok(());
    }
    tracing::info!(app = %of.id, trigger, good = good.len(), "the machines of a live app are brought to their number");
    let mut new = DeploymentRecord::returning_to(of, live, trigger, now());
    new.spec.set_machines(good);
    if let Some(failed) = failed {
        return try_again(app, failed, new).await;
    }
    // What somebody asked for meanwhile is newer than this, and ends in another look.
    let came_between = |all: &[DeploymentRecord]| all.first().is_none_or(|first| first.id != newest.id);
    if app.store.insert_deployment_unless(&new, &came_between).await? {
        app.apps.tell();
    }
    Ok(())
}

/// Tells machines that are kept for a rollback to fall asleep, where nobody did, and puts to sleep those that do not in time.
async fn retire_left(app: &Arc<App>, of: &AppRecord, live: &DeploymentRecord, all: &[DeploymentRecord]) {
    let is_over = is_drain_over(live, now());
    for id in tidy::needed(of, all).machines {
        let Ok(machine) = app.store.sandbox(None, &id).await else { continue };
        let is_live = live.spec.machines().any(|serves| *serves == id);
        let is_awake = machine.state == SandboxState::Running;
        if is_live || !is_awake || !(is_over || is_left(&machine)) {
            continue;
        }
        let retired = async {
            let opened = Machine::open(app, of, &id).await?;
            opened.set_idle(DRAIN_IDLE_SECONDS).await?;
            if is_over { opened.sleep().await } else { Ok(()) }
        };
        if let Err(error) = retired.await {
            tracing::info!(app = %of.id, %error, "an old machine is told later when to sleep");
        }
    }
}

/// Whether a machine that serves no more runs on as if it did.
fn is_left(machine: &SandboxRecord) -> bool {
    machine.spec.idle_timeout_seconds > DRAIN_IDLE_SECONDS
}

/// Whether those who talk to earlier versions had the time to end that.
fn is_drain_over(live: &DeploymentRecord, at: Timestamp) -> bool {
    let limit = SignedDuration::from_secs(DRAIN_SECONDS_MAX);
    live.finished_at.is_some_and(|since| at.duration_since(since) > limit)
}

/// Whether the newest deployment tried the same in vain.
fn has_failed(newest: &DeploymentRecord, trigger: &str) -> bool {
    newest.status == DeploymentStatus::Failed && newest.spec.trigger == trigger
}

/// When what failed is tried again.
fn next_try(failed: &DeploymentRecord) -> Timestamp {
    let pause = RETRY_SECONDS_MIN << failed.spec.retries.min(16);
    let pause = SignedDuration::from_secs(pause.min(RETRY_SECONDS_MAX));
    failed.updated_at.checked_add(pause).unwrap_or(Timestamp::MAX)
}

/// Queues what failed once more. What somebody asked for meanwhile is newer, and takes its place.
async fn try_again(app: &Arc<App>, failed: &DeploymentRecord, new: DeploymentRecord) -> ApiResult<()> {
    let again = again(failed, new);
    if app.store.put_deployment(&again, DeploymentStatus::Failed).await? {
        log::append(app, &again.id, &format!("tried again, for the {}. time", again.spec.retries)).await?;
    }
    Ok(())
}

/// The deployment that failed, with what a new one would do.
fn again(failed: &DeploymentRecord, new: DeploymentRecord) -> DeploymentRecord {
    let mut again = DeploymentRecord { id: failed.id.clone(), created_at: failed.created_at, ..new };
    again.spec.retries = failed.spec.retries + 1;
    again
}

/// What has to be done for a version with so many machines, of which so many are good.
fn needed(count: usize, good: usize, wanted: usize) -> Option<&'static str> {
    match (count, good) {
        (0, _) => None,
        (count, good) if good < count => Some(RECOVERY),
        (count, _) => (count != wanted).then_some(SCALE),
    }
}

async fn is_lost(app: &App, machine: &SandboxId) -> ApiResult<bool> {
    match app.store.sandbox(None, machine).await {
        Ok(machine) => Ok(machine.state == SandboxState::Failed),
        Err(StoreError::NotFound { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::record::AppSpec;

    #[test]
    fn what_is_lost_is_replaced_and_what_is_missing_is_made() {
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

    fn of() -> AppRecord {
        AppRecord::new(
            pandastack_types::WorkspaceId::default_workspace(),
            "a".to_owned(),
            AppSpec::default(),
            now(),
        )
    }

    #[test]
    fn a_version_that_was_replaced_is_talked_to_for_an_hour_at_most() {
        let mut live = DeploymentRecord::queued(&of(), "api", now());
        let after = |seconds| now().checked_add(SignedDuration::from_secs(seconds)).unwrap();
        assert!(!is_drain_over(&live, after(9000)), "it is not known since when");
        live.finished_at = Some(now());
        assert!(!is_drain_over(&live, after(DRAIN_SECONDS_MAX - 60)));
        assert!(is_drain_over(&live, after(DRAIN_SECONDS_MAX + 60)));
    }

    #[test]
    fn what_failed_is_tried_again_after_growing_pauses() {
        let of = of();
        let check = |newest: &str, status, trigger: &str, expect| {
            let newest = DeploymentRecord { status, ..DeploymentRecord::queued(&of, newest, now()) };
            assert_eq!(has_failed(&newest, trigger), expect, "{trigger} after {newest:?}");
        };
        check(SCALE, DeploymentStatus::Failed, SCALE, true);
        check(RECOVERY, DeploymentStatus::Failed, RECOVERY, true);
        check(SCALE, DeploymentStatus::Failed, RECOVERY, false);
        check("api", DeploymentStatus::Failed, RECOVERY, false);
        check(RECOVERY, DeploymentStatus::Live, RECOVERY, false);

        let queued = |at| DeploymentRecord::queued(&of, RECOVERY, at);
        let mut failed = DeploymentRecord { status: DeploymentStatus::Failed, ..queued(now()) };
        let mut pauses = Vec::new();
        for _ in 0..40 {
            pauses.push(next_try(&failed).duration_since(failed.updated_at).as_secs());
            let next = again(&failed, queued(next_try(&failed)));
            assert_eq!((&next.id, next.created_at), (&failed.id, failed.created_at), "it stays one");
            assert_eq!((next.status, next.spec.error.as_ref()), (DeploymentStatus::Queued, None));
            failed = DeploymentRecord { status: DeploymentStatus::Failed, ..next };
        }
        assert_eq!(pauses[..9], [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(pauses.last(), Some(&RETRY_SECONDS_MAX));
    }
}
