//! Computes the layers, versions and snapshots that a workspace needs, and deletes the others.
//!
//! Uses only the record, so it is safe to repeat. Snapshots of builds in progress are not touched.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use pandastack_sandboxes::machine::Machine;
use pandastack_sandboxes::snapshot_owner;
use pandastack_store::clock::now;
use pandastack_store::templates::{BuildHead, BuildState, LayerRecord};
use pandastack_types::limits::{
    BUILD_LAYER_SECONDS_MAX, BUILD_LAYERS_MAX, TEMPLATE_BUILDS_KEPT, TEMPLATE_VERSIONS_KEPT,
};
use pandastack_types::{BuildId, ErrorCode, Owner, Result, SnapshotId, TemplateId, WorkspaceId, chain};

use crate::machines;
use crate::service::Templates;

/// Tidies up every workspace.
pub(crate) async fn all(templates: &Templates) {
    match templates.store.template_workspaces().await {
        Ok(workspaces) => {
            for id in workspaces {
                workspace(templates, &id).await;
            }
        }
        Err(error) => tracing::warn!(error = %chain(&error), "cannot list layers of template builds"),
    }
}

/// Tidies up one workspace.
pub(crate) async fn workspace(templates: &Templates, id: &WorkspaceId) {
    if let Err(error) = prune_workspace(templates, id).await {
        tracing::warn!(
            workspace = %id, error = %chain(&error),
            "cannot delete unused layers; retrying later"
        );
    }
}

async fn prune_workspace(templates: &Templates, workspace: &WorkspaceId) -> Result<()> {
    let store = &templates.store;
    let builds = store.build_heads(workspace).await?;
    if builds.iter().any(|build| build.state == BuildState::Running) {
        return Ok(());
    }
    let mut tagged = HashSet::new();
    for template in store.templates(workspace).await? {
        tagged.extend(store.tags(&template.id).await?.into_iter().map(|tag| tag.build));
    }
    let (kept, forgotten) = choose(builds, &tagged);
    for build in &forgotten {
        store.delete_build(&build.id).await?;
    }
    let (layers, old) = fresh(store.layers(workspace).await?, now().as_second());
    for layer in &old {
        store.delete_layer(workspace, &layer.key).await?;
    }
    let mut needed: HashSet<SnapshotId> = layers.into_iter().map(|layer| layer.snapshot).collect();
    // A failed rebuild names the files of its version, and does not keep them.
    let used = kept.into_iter().filter(|build| build.state != BuildState::Failed);
    needed.extend(used.flat_map(|build| [build.snapshot, build.files]).flatten());
    for snapshot in templates.machines.snapshots(workspace).await? {
        let is_ours = matches!(snapshot_owner::of(&snapshot), Some(Owner::Build(_)));
        if is_ours && !needed.contains(&snapshot.id) {
            templates.machines.remove_snapshot(&snapshot).await?;
        }
    }
    Ok(())
}

/// Deletes cached layers of a workspace whose quota is full, the least recently used first, until
/// the largest of them fits. Returns the number of deleted layers. Keeps layers of versions, and
/// layers that a running build may have used.
pub(crate) async fn prune_layers(templates: &Templates, workspace: &WorkspaceId) -> Result<usize> {
    let store = &templates.store;
    let running = store
        .builds_in_progress()
        .await?
        .into_iter()
        .filter(|build| build.workspace == *workspace && build.state == BuildState::Running);
    let began = running.map(|build| build.created_at).min().unwrap_or_else(now);
    let versions =
        store.build_heads(workspace).await?.into_iter().filter_map(|build| build.snapshot).collect();
    let snapshots = templates.machines.snapshots(workspace).await?;
    let sizes = snapshots.iter().map(|snapshot| (snapshot.id.clone(), snapshot.spec.size_bytes)).collect();
    let given_up = surplus(store.layers(workspace).await?, began, &versions, &sizes);
    for layer in &given_up {
        store.delete_layer(workspace, &layer.key).await?;
        if let Some(snapshot) = snapshots.iter().find(|snapshot| snapshot.id == layer.snapshot) {
            templates.machines.remove_snapshot(snapshot).await?;
        }
    }
    Ok(given_up.len())
}

/// Takes a snapshot of a machine. If the workspace's quota is full, cached layers make room.
pub(crate) async fn snapshot(templates: &Templates, machine: &Machine, name: &str) -> Result<SnapshotId> {
    match machines::snapshot(machine, name).await {
        Err(error) if error.code == ErrorCode::QuotaExceeded => {
            if prune_layers(templates, &machine.record.workspace).await? == 0 {
                return Err(error);
            }
            Ok(machines::snapshot(machine, name).await?.id)
        }
        taken => Ok(taken?.id),
    }
}

/// The layers to evict for another one, from a list with the most recently used first.
fn surplus(
    layers: Vec<LayerRecord>,
    began: Timestamp,
    versions: &HashSet<SnapshotId>,
    sizes: &HashMap<SnapshotId, u64>,
) -> Vec<LayerRecord> {
    let size = |layer: &LayerRecord| sizes.get(&layer.snapshot).copied().unwrap_or_default();
    let wanted = layers.iter().map(size).max().unwrap_or_default();
    let mut freed = 0;
    let unused = |layer: &LayerRecord| layer.used_at < began && !versions.contains(&layer.snapshot);
    let oldest = layers.into_iter().rev().filter(unused);
    oldest
        .take_while(|layer| {
            let enough = freed >= wanted;
            freed += size(layer);
            !enough
        })
        .collect()
}

/// Splits builds, newest first, into builds to keep and builds to delete.
fn choose(builds: Vec<BuildHead>, tagged: &HashSet<BuildId>) -> (Vec<BuildHead>, Vec<BuildHead>) {
    let mut versions: HashMap<TemplateId, usize> = HashMap::new();
    let mut others = 0;
    builds.into_iter().partition(|build| {
        if build.state.is_in_progress() || tagged.contains(&build.id) {
            return true;
        }
        if build.state == BuildState::Done {
            let seen = versions.entry(build.template.clone()).or_default();
            *seen += 1;
            return *seen <= TEMPLATE_VERSIONS_KEPT;
        }
        others += 1;
        others <= TEMPLATE_BUILDS_KEPT
    })
}

/// Splits layers, most recently used first, into layers to keep and layers to delete.
fn fresh(layers: Vec<LayerRecord>, now: i64) -> (Vec<LayerRecord>, Vec<LayerRecord>) {
    let age_max = i64::try_from(BUILD_LAYER_SECONDS_MAX).unwrap_or(i64::MAX);
    let mut count = 0;
    layers.into_iter().partition(|layer| {
        count += 1;
        count <= BUILD_LAYERS_MAX && now - layer.used_at.as_second() <= age_max
    })
}

#[cfg(test)]
mod tests {
    use pandastack_types::api::ImageConfig;

    use super::*;

    fn build(state: BuildState, template: &TemplateId) -> BuildHead {
        BuildHead { id: BuildId::random(), template: template.clone(), state, snapshot: None, files: None }
    }

    #[test]
    fn tagged_and_recent_versions_are_kept() {
        let template = TemplateId::random();
        let all: Vec<_> = (0..10).map(|_| build(BuildState::Done, &template)).collect();
        let tagged = HashSet::from([all[9].id.clone()]);
        let (kept, forgotten) = choose(all.clone(), &tagged);
        assert_eq!((kept.len(), forgotten.len()), (TEMPLATE_VERSIONS_KEPT + 1, 4));
        assert!(kept.iter().any(|one| one.id == all[9].id));
        let failed: Vec<_> =
            (0..TEMPLATE_BUILDS_KEPT + 1).map(|_| build(BuildState::Failed, &template)).collect();
        assert_eq!(choose(failed, &HashSet::new()).1.len(), 1);
    }

    #[test]
    fn least_recently_used_layers_are_evicted() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let layer = |used: i64| LayerRecord {
            workspace: WorkspaceId::default_workspace(),
            key: used.to_string(),
            snapshot: SnapshotId::random(),
            used_at: at(used),
            config: ImageConfig::default(),
        };
        let layers: Vec<_> = [90, 50, 40, 30, 20].map(layer).into();
        let sizes = layers.iter().map(|layer| (layer.snapshot.clone(), 10)).collect();
        let versions = HashSet::from([layers[4].snapshot.clone()]);
        let keys = |gone: Vec<LayerRecord>| gone.into_iter().map(|layer| layer.key).collect::<Vec<_>>();
        assert_eq!(keys(surplus(layers.clone(), at(60), &versions, &sizes)), ["30"], "20 is a version");
        assert_eq!(keys(surplus(layers.clone(), at(60), &HashSet::new(), &sizes)), ["20"]);
        assert_eq!(keys(surplus(layers.clone(), at(20), &HashSet::new(), &sizes)), [""; 0], "all are in use");
        let small = [(layers[0].snapshot.clone(), 15), (layers[3].snapshot.clone(), 10)];
        let mut sizes: HashMap<_, _> = small.into();
        sizes.insert(layers[2].snapshot.clone(), 10);
        assert_eq!(keys(surplus(layers, at(60), &versions, &sizes)), ["30", "40"], "as many as it takes");
    }

    #[test]
    fn unused_build_layers_are_pruned() {
        let layer = |used: i64| LayerRecord {
            workspace: WorkspaceId::default_workspace(),
            key: used.to_string(),
            snapshot: SnapshotId::random(),
            used_at: jiff::Timestamp::from_second(used).unwrap(),
            config: ImageConfig::default(),
        };
        let now = 2 * BUILD_LAYER_SECONDS_MAX as i64;
        let (kept, old) = fresh(vec![layer(now - 5), layer(5)], now);
        assert_eq!((kept.len(), old.len()), (1, 1));
        let (kept, _) = fresh((0..BUILD_LAYERS_MAX as i64 + 9).map(|at| layer(now - at)).collect(), now);
        assert_eq!(kept.len(), BUILD_LAYERS_MAX);
    }
}
