//! The end of a sandbox: its machine is lost, or it is deleted.

use std::time::Duration;

use pandastack_engine::MachineExit;
use pandastack_fault as fault;
use pandastack_types::{SandboxState, Transition, chain};

use super::driver::Driver;
use crate::console;
use crate::error::AgentError;

/// Longest time for a sandbox that is being deleted to write its volumes out.
const WRITE_OUT_MAX: Duration = Duration::from_secs(20);

impl Driver {
    /// The machine ended by itself.
    pub(super) async fn lose(&mut self, exit: MachineExit) {
        tracing::error!(sandbox = %self.record.spec.id, reason = exit.reason, "a machine exited unexpectedly");
        self.grants.hold();
        self.alone().await;
        self.settle_usage();
        let mut reason = exit.reason;
        if let Some(live) = self.live.take() {
            // A machine whose kernel panics ends as if it had been powered off.
            let console = live.machine.record().console.clone();
            live.end(&self.host).await;
            reason = console::kernel_panic(&console).unwrap_or(reason);
        }
        self.fail(reason).await;
    }

    /// Records that the machine is gone, with the reason.
    pub(super) async fn fail(&mut self, reason: String) {
        self.record.machine = None;
        self.record.slot = None;
        self.record.failure = Some(reason);
        if let Err(error) = self.step(Transition::Lost).await {
            tracing::error!(
                sandbox = %self.record.spec.id, error = %chain(&error),
                "cannot record the loss of a machine"
            );
        }
    }

    /// Ends the machine and removes everything of the sandbox.
    pub(super) async fn delete(&mut self) {
        self.grants.hold();
        self.alone().await;
        fault::point("delete.begun").await;
        self.write_volumes_out().await;
        if let Some(live) = self.live.take() {
            live.end(&self.host).await;
        }
        fault::point("delete.ended").await;
        self.host.remove_dir(self.host.layout.sandbox(&self.record.spec.id)).await;
        fault::point("delete.removed").await;
        self.host.sandboxes().remove(&self.record.spec.id);
        self.host.changed.notify_one();
    }

    /// Syncs the guest's volumes before its machine ends. A stopped guest did that when it stopped.
    async fn write_volumes_out(&mut self) {
        if self.record.state != SandboxState::Running || !self.writes_volumes() {
            return;
        }
        let written = async { Ok::<_, AgentError>(self.guest().await?.quiesce(true).await?) };
        match tokio::time::timeout(WRITE_OUT_MAX, written).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    sandbox = %self.record.spec.id, error = %chain(&error),
                    "cannot sync volumes; they contain only data that was synced before"
                );
            }
            Err(_) => {
                tracing::warn!(sandbox = %self.record.spec.id, "syncing volumes timed out");
            }
        }
    }
}
