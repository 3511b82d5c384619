//! Access to the guest without the driver: leases and grants. Both wake a sleeping sandbox.

use pandastack_types::SandboxState;

use super::accept::{Request, Verdict, accept};
use super::driver::Driver;
use super::grants::EdgeGrant;
use super::handle::GuestLease;
use crate::error::{AgentError, Result};

impl Driver {
    pub(super) async fn lease(&mut self) -> Result<GuestLease> {
        let activity = self.activity.begin();
        self.ensure_awake().await?;
        Ok(GuestLease {
            guest: self.guest().await?,
            rollbacks: self.rollbacks,
            budget: self.output_budget.clone(),
            starting: None,
            _activity: activity,
        })
    }

    /// A lease that prevents freezing until [`GuestLease::started`]: if a sleep loses the reply to
    /// a start, the caller can neither assume that it succeeded nor repeat it.
    pub(super) async fn lease_to_start(&mut self) -> Result<GuestLease> {
        let mut lease = self.lease().await?;
        lease.starting = self.starts.clone().try_acquire_owned().ok();
        Ok(lease)
    }

    pub(super) async fn join(&mut self) -> Result<Option<GuestLease>> {
        match self.record.state {
            SandboxState::Running => self.lease().await.map(Some),
            SandboxState::Paused | SandboxState::Hibernated | SandboxState::Creating => Ok(None),
            SandboxState::Stopping | SandboxState::Deleted | SandboxState::Failed => {
                Err(self.refusal("the sandbox is gone"))
            }
        }
    }

    pub(super) async fn ensure_awake(&mut self) -> Result<()> {
        match self.accept(Request::Use) {
            Verdict::Wake => self.wake().await,
            Verdict::Refuse(reason) => Err(self.refusal(reason)),
            _ => Ok(()),
        }
    }

    /// Opens a grant. A sleeping sandbox wakes, if it is to; a hundred edges wake it once, because the driver
    /// does one thing at a time.
    pub(super) async fn open_grant(&mut self, wake: bool) -> Result<EdgeGrant> {
        // Held until the edge reports whether it is busy: a sandbox just woken must not fall asleep
        // at once.
        let _activity = wake.then(|| self.activity.begin());
        match accept(self.record.state, Request::Use) {
            Verdict::Wake if !wake => return Err(self.refusal("the sandbox sleeps")),
            Verdict::Wake => self.wake().await?,
            Verdict::Refuse(reason) => return Err(self.refusal(reason)),
            _ => {}
        }
        let address = self.live.as_ref().and_then(|live| live.resources.guest_ip.as_deref()?.parse().ok());
        let none = || AgentError::Conflict("the sandbox has no network".to_owned());
        self.grants.open(address.ok_or_else(none)?, self.activity.clone())
    }
}
