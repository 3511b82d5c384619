//! Waits for a program in a machine to listen: the one place that polls, because no event announces
//! a listening program.

use std::time::Duration;

use pandastack_agent_client::AgentClient;
use pandastack_store::SandboxRecord;
use pandastack_types::Result;
use pandastack_types::agent_api::endpoints::ListPorts;
use pandastack_types::api::Port;
use tokio::time::Instant;

use super::options_for;

/// Between two looks. A look takes an emulated guest about 10 ms.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// Longest duration of one check, which may have to wake the machine.
const READ_WAIT: Duration = Duration::from_secs(60);

/// Watches the listening ports of a machine, up to a deadline.
pub struct Watch<'a> {
    machine: &'a SandboxRecord,
    client: &'a AgentClient,
    deadline: Instant,
    looked_at: Option<Instant>,
}

impl<'a> Watch<'a> {
    /// A watch that has not checked yet.
    pub fn new(machine: &'a SandboxRecord, client: &'a AgentClient, deadline: Instant) -> Self {
        Self { machine, client, deadline, looked_at: None }
    }

    /// The open ports: at once the first time, then a moment after the last check. `None` after the
    /// deadline.
    pub async fn next(&mut self) -> Result<Option<Vec<Port>>> {
        if let Some(last) = self.looked_at {
            tokio::time::sleep_until(last + CHECK_EVERY).await;
        }
        if Instant::now() >= self.deadline {
            return Ok(None);
        }
        let call = ListPorts::new(self.machine.id.clone());
        let list = self.client.call(call, options_for(self.machine, READ_WAIT), ()).await?;
        self.looked_at = Some(Instant::now());
        Ok(Some(list.ports))
    }
}
