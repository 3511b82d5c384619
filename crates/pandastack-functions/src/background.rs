//! Background tasks: recovery after a restart, the queue, deleting old runs.

use std::sync::Arc;

use pandastack_store::clock::now;
use pandastack_types::api::DeployStatus;
use pandastack_types::limits::RUNS_KEPT_PER_FUNCTION;
use pandastack_types::{Result, chain};

use crate::functions::Functions;
use crate::pool::{self, owner};
use crate::queue;

/// Runs all background work, until shutdown.
pub async fn run(functions: Arc<Functions>) {
    if let Err(error) = recover(&functions).await {
        tracing::error!(error = %chain(&error), "cannot recover functions after the restart");
    }
    queue::run(&functions).await;
}

/// Cleans up what an earlier server process left: machines, deploys, calls.
async fn recover(functions: &Arc<Functions>) -> Result<()> {
    for function in functions.store.functions(None).await? {
        for machine in functions.core.machines.owned_by(&owner(&function.id)).await? {
            pool::delete(&functions.core, machine.id);
        }
    }
    for mut version in functions.store.versions_building().await? {
        version.state = DeployStatus::Failed;
        version.spec.error = Some("the server stopped during the deployment; deploy again".to_owned());
        functions.store.finish_version(&version, now()).await?;
    }
    queue::recover(functions).await
}

/// Forgets old runs.
pub async fn prune_runs(functions: &Functions) -> Result<()> {
    functions.run_store.prune_function_runs(RUNS_KEPT_PER_FUNCTION).await?;
    Ok(())
}
