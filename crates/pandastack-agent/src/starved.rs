//! Resumes machines that stopped because the host's disk was full.

use std::sync::Arc;
use std::time::Duration;

use pandastack_engine::Machine;
use pandastack_types::chain;

use crate::host_resources::HostResources;

/// Interval between checks of the free space; no event reports a change.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Watches a machine that writes durable disks for as long as it lives.
pub(crate) fn watch(host: &HostResources, machine: Arc<dyn Machine>) {
    let (store, shutdown) = (host.store.clone(), host.shutdown.clone());
    host.tasks.spawn(async move {
        let mut exited = machine.exited();
        let going = feed(&store, machine.as_ref());
        tokio::select! {
            () = going => {}
            _ = exited.wait_for(Option::is_some) => {}
            () = shutdown.cancelled() => {}
        }
    });
}

async fn feed(store: &pandastack_image::Store, machine: &dyn Machine) {
    let mut starved = machine.starved();
    let pid = machine.record().pid;
    while starved.wait_for(|starved| *starved).await.is_ok() {
        tracing::error!(
            pid,
            "the host's disk is full: a machine is paused until there is space; free some disk space"
        );
        while store.require(0).is_err() {
            tokio::time::sleep(CHECK_EVERY).await;
        }
        match machine.resume().await {
            Ok(()) => tracing::info!(pid, "disk space is available again; the machine continues"),
            Err(error) => tracing::error!(
                pid, error = %chain(&error),
                "cannot resume a machine that waited for disk space"
            ),
        }
        if starved.wait_for(|starved| !*starved).await.is_err() {
            return;
        }
    }
}
