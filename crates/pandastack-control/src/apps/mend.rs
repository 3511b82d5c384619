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
pub(super) const SCALE: &str = "scale";

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
    if !may_begin(all.first().unwrap_or(live), asked) {
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
    tracing::info!(app = %of.id, trigger, good = good.len(), "the machines of a live app are brought to their number");
    let mut new = DeploymentRecord::returning_to(of, live, trigger, now());
    new.spec.set_machines(good);
    app.store.insert_deployment(&new).await?;
    app.apps.tell();
    Ok(())
}

/// One that failed is not tried for ever; the next one is a person's.
fn may_begin(newest: &DeploymentRecord, asked: Asked) -> bool {
    let by_itself = [RECOVERY, SCALE].contains(&newest.spec.trigger.as_str());
    let gave_up = by_itself && newest.status == DeploymentStatus::Failed;
    !newest.status.is_under_way() && (asked == Asked::ByHand || !gave_up)
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
    fn what_failed_is_tried_again_by_hand_only() {
        let of = AppRecord {
            id: "a".parse().unwrap(),
            workspace: pandastack_types::WorkspaceId::default_workspace(),
            name: "a".to_owned(),
            revision: 1,
            active: None,
            preview_of: None,
            created_at: now(),
            updated_at: now(),
            spec: AppSpec::default(),
        };
        let check = |trigger: &str, status, by_itself, by_hand| {
            let newest = DeploymentRecord { status, ..DeploymentRecord::queued(&of, trigger, now()) };
            assert_eq!(may_begin(&newest, Asked::ByItself), by_itself, "{trigger} {status:?}");
            assert_eq!(may_begin(&newest, Asked::ByHand), by_hand, "{trigger} {status:?}");
        };
        check(SCALE, DeploymentStatus::Failed, false, true);
        check(RECOVERY, DeploymentStatus::Failed, false, true);
        check("api", DeploymentStatus::Failed, true, true);
        check(SCALE, DeploymentStatus::Live, true, true);
        check("api", DeploymentStatus::Building, false, false);
    }
}
