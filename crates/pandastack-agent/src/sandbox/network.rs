//! Changing what a sandbox may reach, and what its copies need to know of it.

use pandastack_net::Resolved;
use pandastack_types::SandboxState;
use pandastack_types::agent_api::AgentSandbox;
use pandastack_types::network::NetworkPolicy;

use super::Driver;
use crate::error::Result;

impl Driver {
    /// Changes the policy: in the slot at once, if there is one, and in the record, from which every later slot of this
    /// sandbox gets it. A sleeper is not woken. When it fails, slot and record are as before.
    pub(super) async fn set_network(&mut self, policy: NetworkPolicy) -> Result<AgentSandbox> {
        if matches!(self.record.state, SandboxState::Failed | SandboxState::Stopping | SandboxState::Deleted)
        {
            return Err(self.refusal("the sandbox is gone"));
        }
        let slot = self.live.as_ref().and_then(|live| live.home.slot);
        if let Some(slot) = slot {
            self.host.slots.set_policy(slot, &policy).await?;
        }
        let before = std::mem::replace(&mut self.record.spec.network, policy);
        if let Err(error) = self.save() {
            self.record.spec.network = before;
            // Without this the slot would hold what the caller was told does not.
            if let Some(slot) = slot
                && let Err(error) = self.host.slots.set_policy(slot, &self.record.spec.network).await
            {
                tracing::error!(sandbox = %self.record.spec.id, %error, "a network policy could not be taken back");
            }
            return Err(error);
        }
        Ok(self.look())
    }

    /// What its programs have resolved and may go on with, for forks of its machine.
    pub(super) async fn resolved(&self) -> Vec<Resolved> {
        crate::home::resolved(&self.host, self.live.as_ref().and_then(|live| live.home.slot)).await
    }
}
