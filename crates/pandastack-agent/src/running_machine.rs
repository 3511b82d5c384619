//! A machine with its resources and the connection to its guest.

use std::sync::Arc;
use std::time::Instant;

use pandastack_engine::Machine;
use pandastack_guest_proto::client::GuestClient;
use pandastack_types::chain;

use crate::host_resources::HostResources;
use crate::machine_resources::MachineResources;

/// A machine that passed the identity gate.
pub(crate) struct RunningMachine {
    pub machine: Arc<dyn Machine>,
    /// The connection to the guest; `None` before the first one to an adopted, paused machine.
    pub guest: Option<GuestClient>,
    pub resources: MachineResources,
    pub awake_since: Instant,
}

impl RunningMachine {
    /// Takes charge of a machine that is paused, or whose guest answers.
    pub(crate) fn new(
        host: &HostResources,
        machine: Arc<dyn Machine>,
        guest: Option<GuestClient>,
        resources: MachineResources,
    ) -> Self {
        for log in machine.logs() {
            host.log_limit.add(log);
        }
        crate::starved::watch(host, machine.clone());
        Self { machine, guest, resources, awake_since: Instant::now() }
    }

    /// Ends the machine and releases its resources. The directory stays.
    pub(crate) async fn end(mut self, host: &HostResources) {
        kill(self.machine.as_ref()).await;
        self.resources.release(host).await;
    }
}

/// Ends a machine's process.
pub(crate) async fn kill(machine: &dyn Machine) {
    if let Err(error) = machine.kill().await {
        tracing::error!(
            pid = machine.record().pid, error = %chain(&error),
            "a machine's process did not exit"
        );
    }
}

/// Releases the resources of a machine that never ran, and removes its directory.
pub(crate) async fn abandon(host: &HostResources, mut resources: MachineResources) {
    resources.release(host).await;
    resources.remove(host).await;
}
