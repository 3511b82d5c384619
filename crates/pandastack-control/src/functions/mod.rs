//! Functions: code that is called, each call in a machine that was copied with its handler ready.
//!
//! ```text
//!   deploy --> bundle --> build --> version = snapshot          (once)
//!   call   --> routes, url, queue --> invoke --> pool --> connection --> runtime in a machine made of that snapshot
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `bundle`, `zip_bundle`, `requirements` | what is uploaded, what is refused of it, what is installed for it |
//! | `build` | making a version |
//! | `settings` | what can be set, and its bounds |
//! | `known` | functions that are called often |
//! | `pool` | machines of a version, the line of calls |
//! | `connection` | frames to and from the runtime in a machine |
//! | `invoke`, `run_log`, `tail`, `logs` | a call, its record, what it prints |
//! | `queue`, `dead_letters` | calls of type `Event`: kept, retried, given up, queued again |
//! | `url` | calls over a function's own host name |
//! | `local` | a function as plain processes of its developer's machine |
//! | `routes`, `deploy_routes`, `call_routes`, `shown` | the API |
//!
//! What must hold: versions never change; a call that was acknowledged as queued is made as its retry policy says, also
//! across `kill -9`; one call's timeout, crash or output harms no other call; machines and snapshots of functions belong to
//! them (`function:<id>`) and go with them.
//!
//! Left to others: making and deleting machines and snapshots ([`crate::sandboxes::ops`]), the runtime API inside the machine (the
//! guest program's `function`), schedules.

mod build;
mod bundle;
pub(crate) mod call_routes;
mod connection;
mod dead_letters;
pub(crate) mod deploy_routes;
pub(crate) mod invoke;
mod known;
pub(crate) mod local;
pub(crate) mod logs;
mod pool;
mod queue;
mod requirements;
pub(crate) mod routes;
mod settings;
mod shown;
mod tail;
mod url;
mod zip_bundle;

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use pandastack_types::api::{DeployStatus, Run};
use pandastack_types::limits::{FUNCTION_VERSIONS_KEPT, RUNS_KEPT_PER_FUNCTION};
use pandastack_types::{Error, ErrorCode, FunctionId, Result, SnapshotId, WorkspaceId};
use pool::{Pool, Source, owner};
use tokio::sync::Notify;

use crate::app::App;
use crate::clock::now;
use crate::sandboxes::ops;
use crate::store::functions::{FunctionRecord, RunRecord, VersionRecord};
use crate::store::write_behind::WriteBehind;
use crate::store::{Select, StoreError};
use pandastack_rest::metrics::Family;

pub(crate) use routes::{once_only, repeatable};
pub(crate) use url::{by_host, is_named};

/// What functions share.
pub(crate) struct Functions {
    pools: Mutex<HashMap<(FunctionId, u32), Arc<Pool>>>,
    known: known::Known,
    pub(crate) runs: WriteBehind<RunRecord>,
    pub(crate) tails: tail::Tails,
    /// Told when a deploy ended.
    built: Notify,
    /// Told when a call was queued.
    queued: Notify,
    /// Time of calls by kind, outcome and start.
    calls: Family,
    /// Time until a machine was there.
    waits: Family,
}

impl Default for Functions {
    fn default() -> Self {
        Self {
            pools: Mutex::default(),
            known: known::Known::default(),
            runs: WriteBehind::default(),
            tails: tail::Tails::default(),
            built: Notify::new(),
            queued: Notify::new(),
            calls: Family::new("pandastack_function_call_seconds", "Time that handlers took, by call."),
            waits: Family::new(
                "pandastack_function_wait_seconds",
                "Time until a machine was there, by call.",
            ),
        }
    }
}

impl Functions {
    /// Counts a call, or an attempt of one, that ended.
    fn count(&self, run: &Run) {
        let start = if run.cold { "cold" } else { "warm" };
        let (kind, status) = (run.kind.as_str(), run.status.as_str());
        let labels = format!("kind=\"{kind}\",status=\"{status}\",start=\"{start}\"");
        self.calls.observe(labels, run.duration_ms / 1000.0);
        self.waits.observe(format!("start=\"{start}\""), run.wait_ms / 1000.0);
    }

    /// Writes what is counted to the page of metrics.
    pub(crate) fn render(&self, page: &mut String) {
        self.calls.render(page);
        self.waits.render(page);
        let counts = self
            .pools()
            .values()
            .map(|pool| pool.counts())
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        for (name, help, value) in [
            ("pandastack_function_machines", "Machines of functions.", counts.0),
            ("pandastack_function_waiting", "Calls that wait for a machine.", counts.1),
        ] {
            let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n");
        }
    }

    fn pools(&self) -> MutexGuard<'_, HashMap<(FunctionId, u32), Arc<Pool>>> {
        // Every critical section leaves the map whole.
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Machines and waiting calls of a function.
    fn counts(&self, function: &FunctionId) -> (usize, usize) {
        let pools = self.pools();
        let of_function = pools.iter().filter(|((id, _), _)| id == function);
        of_function.map(|(_, pool)| pool.counts()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

/// Everything that goes on behind calls, until shutdown.
pub(crate) async fn run(app: Arc<App>) {
    if let Err(error) = recover(&app).await {
        tracing::error!(%error, cause = error.causes(), "what an earlier server left of functions could not be seen to");
    }
    queue::run(&app).await;
}

/// Sees to what a server left when it ended: machines, deploys, calls.
async fn recover(app: &Arc<App>) -> Result<()> {
    for function in app.store.functions(None).await? {
        for machine in app.store.sandboxes(&Select::Owner(owner(&function.id))).await? {
            pool::delete(app, machine.id);
        }
    }
    for mut version in app.store.versions_building().await? {
        version.state = DeployStatus::Failed;
        version.spec.error = Some("the server stopped during the deployment; deploy again".to_owned());
        app.store.finish_version(&version, now()).await?;
    }
    queue::recover(app).await
}

/// Forgets old runs.
pub(crate) fn prune_runs(app: &App) -> BoxFuture<'_, Result<()>> {
    Box::pin(async {
        app.store.prune_function_runs(RUNS_KEPT_PER_FUNCTION).await?;
        Ok(())
    })
}

/// The machines of a version.
async fn pool_of(app: &App, function: &FunctionRecord, version: u32) -> Result<Arc<Pool>> {
    let key = (function.id.clone(), version);
    if let Some(pool) = app.functions.pools().get(&key) {
        return Ok(Arc::clone(pool));
    }
    let record = app.store.version(&function.id, version).await?;
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
    Ok(Arc::clone(app.functions.pools().entry(key).or_insert_with(|| Pool::new(source))))
}

/// The version that a call goes to: a number, an alias, or the present one.
pub(crate) fn version_for(function: &FunctionRecord, qualifier: Option<&str>) -> Result<u32> {
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

/// Which version of an alias gets a call, for a number below 100.
fn by_weight(alias: &pandastack_types::api::Alias, drawn: u32) -> u32 {
    alias.canary_version.filter(|_| drawn < alias.canary_percent).unwrap_or(alias.version)
}

fn random_percent() -> u32 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u32::from_le_bytes(bytes) % 100,
        // Without randomness nothing goes to the canary.
        Err(_) => 100,
    }
}

/// Removes versions that nothing names, beyond those that are kept.
async fn prune(app: &Arc<App>, id: &FunctionId) -> Result<()> {
    let function = app.store.function(None, id).await?;
    let versions = app.store.versions(id).await?;
    let named = |version: u32| {
        let aliases = function.spec.aliases.values();
        function.version == version
            || aliases
                .into_iter()
                .any(|alias| alias.version == version || alias.canary_version == Some(version))
    };
    let old = versions.iter().skip(FUNCTION_VERSIONS_KEPT);
    for version in old.filter(|version| version.state != DeployStatus::Building && !named(version.version)) {
        remove_version(app, version).await?;
    }
    app.store.prune_bundles(&function.workspace).await?;
    Ok(())
}

async fn remove_version(app: &Arc<App>, version: &VersionRecord) -> Result<()> {
    let pool = app.functions.pools().remove(&(version.function.clone(), version.version));
    if let Some(pool) = pool {
        pool.close(app);
    }
    app.store.delete_version(&version.function, version.version).await?;
    if let Some(snapshot) = &version.spec.snapshot {
        remove_snapshot(app, &version.workspace, snapshot).await?;
    }
    remove_layer(app, version).await
}

/// Deletes the snapshot with a version's dependencies if no other version stands on it.
async fn remove_layer(app: &App, version: &VersionRecord) -> Result<()> {
    let (Some(layer), Some(key)) = (&version.spec.layer_snapshot, &version.layer_key) else { return Ok(()) };
    let others = app.store.versions_with_layer(&version.workspace, key).await?;
    if others.iter().any(|other| other.spec.layer_snapshot.as_ref() == Some(layer)) {
        return Ok(());
    }
    remove_snapshot(app, &version.workspace, layer).await
}

async fn remove_snapshot(app: &App, workspace: &WorkspaceId, id: &SnapshotId) -> Result<()> {
    match app.store.snapshot(workspace, id).await {
        Ok(snapshot) => ops::snapshot::remove(app, &snapshot).await,
        Err(StoreError::NotFound { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Deletes a function with everything that belongs to it.
async fn delete(app: &Arc<App>, function: &FunctionRecord) -> Result<()> {
    let versions = app.store.versions(&function.id).await?;
    if versions.iter().any(|version| version.state == DeployStatus::Building) {
        return Err(Error::new(
            ErrorCode::Conflict,
            "a deployment of this function is in progress; delete it afterwards",
        ));
    }
    for version in &versions {
        remove_version(app, version).await?;
    }
    app.store.delete_function(&function.id).await?;
    for machine in app.store.sandboxes(&Select::Owner(owner(&function.id))).await? {
        pool::delete(app, machine.id);
    }
    app.store.prune_bundles(&function.workspace).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pandastack_types::api::Alias;

    #[test]
    fn a_canary_gets_its_share_and_no_more() {
        let alias = |canary_percent| Alias { version: 1, canary_version: Some(2), canary_percent };
        let to_canary = |percent| (0..100).filter(|drawn| by_weight(&alias(percent), *drawn) == 2).count();
        assert_eq!([to_canary(0), to_canary(10), to_canary(100)], [0, 10, 100]);
        assert_eq!(by_weight(&alias(10), 100), 1, "without randomness");
        let plain = Alias { version: 3, canary_version: None, canary_percent: 50 };
        assert_eq!(by_weight(&plain, 0), 3);
    }
}
