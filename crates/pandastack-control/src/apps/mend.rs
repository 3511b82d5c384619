//! The live version has as many machines as was said: lost ones are replaced, missing ones made, surplus ones given up.
//!
//! Each is a deployment that returns to what is live and takes over the machines that are still good: so it has its turn, its log and
//! its atomic switch as any other, and a crash in the middle of it leaves nothing.

use std::sync::Arc;

use pandastack_types::api::DeploymentStatus;
use pandastack_types::{SandboxId, SandboxState};

use super::record::{AppRecord, DeploymentRecord};
use crate::app::{App, now};
use crate::error::ApiResult;
use crate::store::StoreError;

/// What begins a deployment that replaces lost machines.
const RECOVERY: &str = "recovery";
/// What begins a deployment that changes how many machines there are.
const SCALE: &str = "scale";

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
    if asked == Asked::ByItself && gave_up(newest, trigger) {
        return Ok(());
    }
    tracing::info!(app = %of.id, trigger, good = good.len(), "the machines of a live app are brought to their number");
    let mut new = DeploymentRecord::returning_to(of, live, trigger, now());
    new.spec.set_machines(good);
    // What somebody asked for meanwhile is newer than this, and ends in another look.
    let came_between = |all: &[DeploymentRecord]| all.first().is_none_or(|first| first.id != newest.id);
    if app.store.insert_deployment_unless(&new, &came_between).await? {
        app.apps.tell();
    }
    Ok(())
}

/// What failed is not tried for ever: the next one is a person's. Other work is.
fn gave_up(newest: &DeploymentRecord, trigger: &str) -> bool {
    newest.status == DeploymentStatus::Failed && newest.spec.trigger == trigger
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

    #[test]
    fn what_failed_is_not_tried_for_ever() {
        let of = AppRecord::new(
            pandastack_types::WorkspaceId::default_workspace(),
            "a".to_owned(),
            AppSpec::default(),
            now(),
        );
        let check = |newest: &str, status, trigger: &str, expect| {
            let newest = DeploymentRecord { status, ..DeploymentRecord::queued(&of, newest, now()) };
            assert_eq!(gave_up(&newest, trigger), expect, "{trigger} after {newest:?}");
        };
        check(SCALE, DeploymentStatus::Failed, SCALE, true);
        check(RECOVERY, DeploymentStatus::Failed, RECOVERY, true);
        check(SCALE, DeploymentStatus::Failed, RECOVERY, false);
        check("api", DeploymentStatus::Failed, RECOVERY, false);
        check(RECOVERY, DeploymentStatus::Live, RECOVERY, false);
    }
}
