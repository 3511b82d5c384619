//! Changes a sandbox's network policy, and passes it on to copies.

use pandastack_net::{Resolved, SlotIndex};
use pandastack_types::agent_api::AgentSandbox;
use pandastack_types::network::NetworkPolicy;
use pandastack_types::{SandboxState, chain};

use super::driver::Driver;
use crate::error::Result;

impl Driver {
    /// Changes the policy: in the slot at once, if there is one, and in the record, from which
    /// every later slot of this sandbox gets it. A sleeping sandbox is not woken. On failure, slot
    /// and record keep the previous policy.
    pub(super) async fn set_network(&mut self, policy: NetworkPolicy) -> Result<AgentSandbox> {
        if matches!(self.record.state, SandboxState::Failed | SandboxState::Stopping | SandboxState::Deleted)
        {
            return Err(self.refusal("the sandbox is gone"));
        }
        let slot = self.live.as_ref().and_then(|live| live.resources.slot);
        let before = std::mem::replace(&mut self.record.spec.network, policy);
        let changed = match slot {
            Some(slot) => self.host.slots.set_policy(slot, &self.record.spec.network).await,
            None => Ok(()),
        };
        let saved = match changed {
            Ok(()) => self.save().await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = saved {
            self.record.spec.network = before;
            self.take_back(slot).await;
            return Err(error);
        }
        Ok(self.describe())
    }

    /// Restores the record's policy after a failed change: the caller learns that the change
    /// failed, even if the kernel applied it and acknowledged it too late.
    async fn take_back(&self, slot: Option<SlotIndex>) {
        if let Some(slot) = slot
            && let Err(error) = self.host.slots.set_policy(slot, &self.record.spec.network).await
        {
            tracing::error!(
                sandbox = %self.record.spec.id, error = %chain(&error),
                "cannot revert a network policy"
            );
        }
    }

    /// Names that its programs have resolved and may keep using, for forks of its machine.
    pub(super) async fn resolved(&self) -> Vec<Resolved> {
        crate::machine_resources::resolved(
            &self.host,
            self.live.as_ref().and_then(|live| live.resources.slot),
        )
        .await
    }
}
