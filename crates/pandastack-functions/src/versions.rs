//! Versions of functions: choosing one for a call, its pool of machines, and removing old ones.

use std::sync::Arc;

use pandastack_store::StoreError;
use pandastack_store::functions::{FunctionRecord, VersionRecord};
use pandastack_types::api::DeployStatus;
use pandastack_types::limits::FUNCTION_VERSIONS_KEPT;
use pandastack_types::{Error, ErrorCode, FunctionId, Result, SnapshotId, WorkspaceId};

use crate::functions::Functions;
use crate::pool::{self, Pool, Source, owner};

/// The machines of a version.
pub(crate) async fn pool_of(
    functions: &Functions,
    function: &FunctionRecord,
    version: u32,
) -> Result<Arc<Pool>> {
    let key = (function.id.clone(), version);
    if let Some(pool) = functions.pools().get(&key) {
        return Ok(Arc::clone(pool));
    }
    let record = functions.store.version(&function.id, version).await?;
    let Some(snapshot) = record.spec.snapshot.filter(|_| record.state == DeployStatus::Ready) else {
        return Err(Error::conflict(format!("version {version} of this function is not ready")));
    };
    let source = Source {
        function: function.id.clone(),
        version,
        workspace: function.workspace.clone(),
        snapshot,
        concurrency: record.spec.concurrency,
    };
    Ok(Arc::clone(functions.pools().entry(key).or_insert_with(|| Pool::new(source))))
}

/// The version for a call: by number, by alias, or the current one.
pub fn version_for(function: &FunctionRecord, qualifier: Option<&str>) -> Result<u32> {
    let not_ready = || {
        Error::conflict(format!(
            "function `{}` has no ready version; deploy it, or check why its deployment failed",
            function.name
        ))
    };
    let version = match qualifier {
        None | Some("$LATEST" | "latest") => function.version,
        Some(text) => match (text.parse::<u32>(), function.spec.aliases.get(text)) {
            (Ok(version), _) => version,
            (Err(_), Some(alias)) => by_weight(alias, random_percent()),
            (Err(_), None) => return Err(Error::not_found("version or alias", text)),
        },
    };
    if version == 0 { Err(not_ready()) } else { Ok(version) }
}

/// Version of an alias that gets a call, for a random number below 100.
fn by_weight(alias: &pandastack_types::api::Alias, drawn: u32) -> u32 {
    alias.canary_version.filter(|_| drawn < alias.canary_percent).unwrap_or(alias.version)
}

pub(crate) fn random_percent() -> u32 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u32::from_le_bytes(bytes) % 100,
        // Without randomness no call goes to the canary.
        Err(_) => 100,
    }
}

/// Removes unreferenced versions, except the ones to keep.
pub(crate) async fn prune(functions: &Arc<Functions>, id: &FunctionId) -> Result<()> {
    let function = functions.store.function(None, id).await?;
    let versions = functions.store.versions(id).await?;
    let named = |version: u32| {
        let aliases = function.spec.aliases.values();
        function.version == version
            || aliases
                .into_iter()
                .any(|alias| alias.version == version || alias.canary_version == Some(version))
    };
    let old = versions.iter().skip(FUNCTION_VERSIONS_KEPT);
    for version in old.filter(|version| version.state != DeployStatus::Building && !named(version.version)) {
        remove_version(functions, version).await?;
    }
    functions.store.prune_bundles(&function.workspace).await?;
    Ok(())
}

async fn remove_version(functions: &Arc<Functions>, version: &VersionRecord) -> Result<()> {
    let pool = functions.pools().remove(&(version.function.clone(), version.version));
    if let Some(pool) = pool {
        pool.close(&functions.core);
    }
    functions.store.delete_version(&version.function, version.version).await?;
    if let Some(snapshot) = &version.spec.snapshot {
        remove_snapshot(functions, &version.workspace, snapshot).await?;
    }
    remove_layer(functions, version).await
}

/// Deletes the snapshot with a version's dependencies if no other version uses it.
async fn remove_layer(functions: &Functions, version: &VersionRecord) -> Result<()> {
    let (Some(layer), Some(key)) = (&version.spec.layer_snapshot, &version.layer_key) else { return Ok(()) };
    let others = functions.store.versions_with_layer(&version.workspace, key).await?;
    if others.iter().any(|other| other.spec.layer_snapshot.as_ref() == Some(layer)) {
        return Ok(());
    }
    remove_snapshot(functions, &version.workspace, layer).await
}

async fn remove_snapshot(functions: &Functions, workspace: &WorkspaceId, id: &SnapshotId) -> Result<()> {
    match functions.core.machines.snapshot(workspace, id).await {
        Ok(snapshot) => functions.core.machines.remove_snapshot(&snapshot).await,
        Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Functions {
    /// Deletes every function of a workspace. Fails while one is being deployed.
    pub async fn delete_all(self: &Arc<Self>, workspace: &WorkspaceId) -> Result<()> {
        for function in self.store.functions(Some(workspace)).await? {
            delete(self, &function).await?;
        }
        Ok(())
    }
}

/// Deletes a function with everything that belongs to it.
pub(crate) async fn delete(functions: &Arc<Functions>, function: &FunctionRecord) -> Result<()> {
    let versions = functions.store.versions(&function.id).await?;
    if versions.iter().any(|version| version.state == DeployStatus::Building) {
        return Err(Error::new(
            ErrorCode::Conflict,
            "a deployment of this function is in progress; delete it afterwards",
        ));
    }
    for version in &versions {
        remove_version(functions, version).await?;
    }
    functions.store.delete_function(&function.id).await?;
    for machine in functions.core.machines.owned_by(&owner(&function.id)).await? {
        pool::delete(&functions.core, machine.id);
    }
    functions.store.prune_bundles(&function.workspace).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_types::api::Alias;

    #[test]
    fn a_canary_receives_exactly_its_share() {
        let alias = |canary_percent| Alias { version: 1, canary_version: Some(2), canary_percent };
        let to_canary = |percent| (0..100).filter(|drawn| by_weight(&alias(percent), *drawn) == 2).count();
        assert_eq!([to_canary(0), to_canary(10), to_canary(100)], [0, 10, 100]);
        assert_eq!(by_weight(&alias(10), 100), 1, "without randomness");
        let plain = Alias { version: 3, canary_version: None, canary_percent: 50 };
        assert_eq!(by_weight(&plain, 0), 3);
    }
}
