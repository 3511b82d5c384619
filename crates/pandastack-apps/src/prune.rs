//! Computes which machines and snapshots an app needs; the others are deleted.
//!
//! The computation uses only the record, so it is safe to repeat. No other code deletes machines and
//! snapshots of deployments. It runs when no deployment of the app is between creating one and recording it:
//! at the end of each deployment, and at start. While an app receives a source, its machines are kept.

use std::collections::HashSet;
use std::sync::Arc;

use pandastack_sandboxes::snapshot_owner;
use pandastack_store::apps::record::{AppRecord, DeploymentRecord};
use pandastack_store::{SandboxRecord, StoreError};
use pandastack_types::api::DeploymentStatus;
use pandastack_types::limits::{PREVIEW_VERSIONS_KEPT, VERSIONS_KEPT};
use pandastack_types::{AppId, DeploymentId, Result, SandboxId, SnapshotId, chain};

use crate::machine::owner_of;
use crate::state::Apps;

/// Machines and snapshots that an app needs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NeededResources {
    pub(crate) machines: HashSet<SandboxId>,
    snapshots: HashSet<SnapshotId>,
    /// Versions that a rollback would find.
    pub(crate) versions: HashSet<DeploymentId>,
}

/// Resources that an app needs, by its deployments, newest first.
pub(crate) fn needed(app: &AppRecord, deployments: &[DeploymentRecord]) -> NeededResources {
    let mut needed = NeededResources::default();
    if app.spec.deleting {
        return needed;
    }
    needed.snapshots.extend(app.spec.cache.clone());
    let kept_max = if app.preview_of.is_some() { PREVIEW_VERSIONS_KEPT } else { VERSIONS_KEPT };
    let live = deployments.iter().find(|one| one.status == DeploymentStatus::Live);
    let mut counted: Vec<&DeploymentRecord> = live.into_iter().collect();
    let kept_max = kept_max + counted.len();
    for one in deployments {
        match one.status {
            status if status.is_in_progress() => {
                needed.machines.extend(one.spec.build_machine.iter().chain(one.spec.machines()).cloned());
                needed.snapshots.extend(one.spec.artifact.clone());
                continue;
            }
            DeploymentStatus::Live | DeploymentStatus::Superseded | DeploymentStatus::RolledBack => {}
            _ => continue,
        }
        // A rollback shares machines with the version it returned to, and a reconciled version
        // keeps the good machines: such versions count once, and machines of only the older one are
        // not needed.
        let is_same = counted.iter().any(|newer| newer.shares_machines(one));
        if one.spec.machine.is_none() || (!is_same && counted.len() >= kept_max) {
            continue;
        }
        if !is_same {
            counted.push(one);
        }
        needed.snapshots.extend(one.spec.artifact.clone());
        needed.versions.insert(one.id.clone());
    }
    needed.machines.extend(counted.iter().flat_map(|one| one.spec.machines()).cloned());
    needed
}

/// Deletes what an app does not need; and the app itself when it is being deleted.
pub(crate) async fn app(apps: &Arc<Apps>, id: &AppId) -> Result<()> {
    // List machines first: a machine that receives a source is marked until its deployment is
    // written, so either the mark or the deployment shows it.
    let machines = apps.machines.owned_by(&owner_of(id)).await?;
    let is_uploading = apps.activity.defer_pruning(id);
    let app = match apps.store.app(None, id.as_str()).await {
        // A source came to it while it was deleted.
        Err(StoreError::NotFound { .. }) if !is_uploading => {
            return delete_others(apps, machines, &HashSet::new()).await;
        }
        Err(StoreError::NotFound { .. }) => return Ok(()),
        found => found?,
    };
    let needed = needed(&app, &apps.store.deployments(id).await?);
    // Uploads to an app that is being deleted are not awaited.
    if !is_uploading || app.spec.deleting {
        delete_others(apps, machines, &needed.machines).await?;
    }
    let owner = owner_of(id);
    for snapshot in apps.machines.snapshots(&app.workspace).await? {
        if snapshot_owner::of(&snapshot).as_ref() == Some(&owner) && !needed.snapshots.contains(&snapshot.id)
        {
            apps.machines.remove_snapshot(&snapshot).await?;
        }
    }
    if app.spec.deleting {
        apps.store.delete_app(id).await?;
        apps.names.notify_all();
    }
    Ok(())
}

async fn delete_others(
    apps: &Arc<Apps>,
    machines: Vec<SandboxRecord>,
    needed: &HashSet<SandboxId>,
) -> Result<()> {
    for machine in machines {
        if !needed.contains(&machine.id) {
            apps.machines.delete(machine, Some("its app no longer needs it")).await?;
        }
    }
    Ok(())
}

/// Deletes a machine in the background; one that cannot be deleted now is deleted later.
pub(crate) fn machine_in_background(apps: &Arc<Apps>, id: SandboxId) {
    let owner = Arc::clone(apps);
    apps.background.tasks.spawn(async move {
        if let Err(error) = machine(&owner, &id).await {
            tracing::warn!(
                machine = %id, error = %chain(&error),
                "cannot delete an unused machine; retrying later"
            );
        }
    });
}

/// Deletes one machine that no deployment has any more. Unlike [`app`], also while one of the same app is in progress.
pub(crate) async fn machine(apps: &Arc<Apps>, id: &SandboxId) -> Result<()> {
    match apps.machines.find(None, id).await {
        Ok(machine) => apps.machines.delete(machine, Some("its deployment was not started")).await,
        Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_store::apps::record::AppSpec;
    use pandastack_store::clock::now;

    fn app() -> AppRecord {
        AppRecord::new(
            pandastack_types::WorkspaceId::default_workspace(),
            "a".to_owned(),
            AppSpec::default(),
            now(),
        )
    }

    fn version(status: DeploymentStatus, machine: &str) -> DeploymentRecord {
        let mut one = DeploymentRecord::queued(&app(), "api", now());
        one.status = status;
        one.spec.machine = Some(machine.parse().unwrap());
        one.spec.artifact = Some(format!("{machine}-built").parse().unwrap());
        one
    }

    fn machines(deployments: &[DeploymentRecord]) -> Vec<String> {
        let needed = needed(&app(), deployments);
        let mut names: Vec<_> = needed.machines.iter().map(ToString::to_string).collect();
        names.sort();
        assert_eq!(needed.snapshots.len(), names.len(), "an artifact each");
        names
    }

    #[test]
    fn the_live_version_and_the_most_recent_ones_are_kept() {
        use DeploymentStatus as S;
        let mut versions = vec![version(S::Live, "f")];
        versions.extend(["e", "d", "c", "b"].map(|machine| version(S::Superseded, machine)));
        assert_eq!(machines(&versions), ["c", "d", "e", "f"]);
        versions.insert(1, version(S::Failed, "x"));
        assert_eq!(machines(&versions), ["c", "d", "e", "f"], "what never served is not kept");
        versions.insert(0, version(S::Deploying, "g"));
        assert_eq!(machines(&versions), ["c", "d", "e", "f", "g"], "what is under way is");
        versions[2] = version(S::RolledBack, "e");
        assert_eq!(machines(&versions), ["c", "d", "e", "f", "g"], "two of one machine count once");
        let preview = AppRecord { preview_of: Some("b".parse().unwrap()), ..app() };
        assert_eq!(
            needed(&preview, &versions).machines.len(),
            3,
            "of a preview: under way, live, and one more"
        );
        let deleting = AppRecord { spec: AppSpec { deleting: true, ..AppSpec::default() }, ..app() };
        assert_eq!(needed(&deleting, &versions), NeededResources::default());
        versions[2].spec.set_machines(["e", "e2"].map(|machine| machine.parse().unwrap()));
        assert_eq!(needed(&app(), &versions).machines.len(), 6, "all machines of a version are needed");
        versions[3].spec.set_machines(["e2", "e3"].map(|machine| machine.parse().unwrap()));
        assert_eq!(needed(&app(), &versions).machines.len(), 6, "but not what it was mended without");
    }
}
