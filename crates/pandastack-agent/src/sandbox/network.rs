//! Changing what a sandbox may reach.

use pandastack_types::SandboxState;
use pandastack_types::agent_api::AgentSandbox;
use pandastack_types::network::NetworkPolicy;

use super::Driver;
use crate::error::Result;

impl Driver {
    /// Changes the policy: in the slot at once, if there is one, and in the record, from which every later slot of this
    /// sandbox gets it. A sleeper is not woken.
    pub(super) async fn set_network(&mut self, policy: NetworkPolicy) -> Result<AgentSandbox> {
        if matches!(self.record.state, SandboxState::Failed | SandboxState::Stopping | SandboxState::Deleted)
        {
            return Err(self.refusal("the sandbox is gone"));
        }
        if let Some(slot) = self.live.as_ref().and_then(|live| live.home.slot) {
            self.host.slots.set_policy(slot, &policy).await?;
        }
        self.record.spec.network = policy;
        self.save()?;
        Ok(self.look())
    }
}
