//! The grants through which edges send requests past the driver, straight to the guest.
//!
//! Must hold: while a grant is open the guest runs, at the address the grant was given. So the
//! driver, which alone stops guests, closes all grants first: edges begin nothing new and finish
//! what they began ([`pandastack_types::grant`]).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pandastack_types::grant::{GRANTS_MAX, HOLD_SECONDS};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::activity::Activity;
use crate::error::{AgentError, Result};

/// The driver's side of all grants.
#[derive(Default)]
pub(crate) struct Grants(Vec<Grant>);

struct Grant {
    hold: CancellationToken,
    gone: CancellationToken,
}

/// An edge's side of a grant. The grant counts as closed when this is dropped.
pub(crate) struct EdgeGrant {
    /// The guest's address while the grant is open.
    pub address: IpAddr,
    /// Cancelled when no new requests may start.
    pub hold: CancellationToken,
    /// For use while requests are in flight.
    pub activity: Arc<Activity>,
    /// Held, not read.
    _gone: DropGuard,
}

impl Grants {
    pub(super) fn open(&mut self, address: IpAddr, activity: Arc<Activity>) -> Result<EdgeGrant> {
        self.0.retain(|grant| !grant.gone.is_cancelled());
        if self.0.len() >= GRANTS_MAX {
            return Err(AgentError::NoCapacity(format!(
                "{GRANTS_MAX} edges are already connected to this sandbox"
            )));
        }
        let (hold, gone) = (CancellationToken::new(), CancellationToken::new());
        self.0.push(Grant { hold: hold.clone(), gone: gone.clone() });
        Ok(EdgeGrant { address, hold, activity, _gone: gone.drop_guard() })
    }

    /// Sends HOLD to every edge, without waiting.
    pub(super) fn hold(&self) {
        for grant in &self.0 {
            grant.hold.cancel();
        }
    }

    /// Closes all grants: returns when no request is in flight, or after [`HOLD_SECONDS`].
    pub(super) async fn close(&mut self) {
        self.close_within(Duration::from_secs(HOLD_SECONDS)).await;
    }

    async fn close_within(&mut self, wait: Duration) {
        self.hold();
        let all = async {
            for grant in &self.0 {
                grant.gone.cancelled().await;
            }
        };
        if tokio::time::timeout(wait, all).await.is_err() {
            tracing::warn!("an edge did not finish its requests in time; the guest stops without it");
        }
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn open(grants: &mut Grants) -> Result<EdgeGrant> {
        grants.open(Ipv4Addr::LOCALHOST.into(), Activity::new())
    }

    #[tokio::test]
    async fn closing_waits_for_every_edge() {
        let mut grants = Grants::default();
        let (first, second) = (open(&mut grants).unwrap(), open(&mut grants).unwrap());
        drop(first);
        let mut closing = Box::pin(grants.close());
        assert!(futures::poll!(&mut closing).is_pending());
        assert!(second.hold.is_cancelled());
        drop(second);
        assert!(futures::poll!(&mut closing).is_ready());
    }

    #[tokio::test]
    async fn closing_does_not_wait_forever_for_a_silent_edge() {
        let mut grants = Grants::default();
        let _stuck = open(&mut grants).unwrap();
        grants.close_within(Duration::from_millis(1)).await;
        assert!(grants.0.is_empty());
    }

    #[test]
    fn open_grants_are_limited_and_closed_ones_do_not_count() {
        let mut grants = Grants::default();
        let mut ends: Vec<_> = (0..GRANTS_MAX).map(|_| open(&mut grants).unwrap()).collect();
        assert!(open(&mut grants).is_err());
        ends.pop();
        assert!(open(&mut grants).is_ok());
    }
}
