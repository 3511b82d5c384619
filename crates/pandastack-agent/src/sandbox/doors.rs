//! The doors through which edges send requests past the driver, straight to the guest.
//!
//! Must hold: while a door is open the guest runs, at the address the door was given. So the
//! driver, which alone stops guests, closes all doors first: edges begin nothing new and finish
//! what they began ([`pandastack_types::door`]).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use pandastack_types::door::{DOORS_MAX, HOLD_SECONDS};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::activity::Activity;
use crate::error::{AgentError, Result};

/// The driver's side of all doors.
#[derive(Default)]
pub(crate) struct Doors(Vec<Door>);

struct Door {
    hold: CancellationToken,
    gone: CancellationToken,
}

/// An edge's side of a door. The door counts as closed when this is dropped.
pub(crate) struct DoorEnd {
    /// Where the guest is while the door is open.
    pub address: IpAddr,
    /// Cancelled when no more requests may begin.
    pub hold: CancellationToken,
    /// For use while requests are under way.
    pub activity: Arc<Activity>,
    /// Held, not read.
    _gone: DropGuard,
}

impl Doors {
    pub(super) fn open(&mut self, address: IpAddr, activity: Arc<Activity>) -> Result<DoorEnd> {
        self.0.retain(|door| !door.gone.is_cancelled());
        if self.0.len() >= DOORS_MAX {
            return Err(AgentError::NoCapacity(format!("{DOORS_MAX} edges already send to this sandbox")));
        }
        let (hold, gone) = (CancellationToken::new(), CancellationToken::new());
        self.0.push(Door { hold: hold.clone(), gone: gone.clone() });
        Ok(DoorEnd { address, hold, activity, _gone: gone.drop_guard() })
    }

    /// Tells every edge to begin nothing more, and does not wait.
    pub(super) fn hold(&self) {
        for door in &self.0 {
            door.hold.cancel();
        }
    }

    /// Closes all doors: returns when no request is under way, or after [`HOLD_SECONDS`].
    pub(super) async fn close(&mut self) {
        self.close_within(Duration::from_secs(HOLD_SECONDS)).await;
    }

    async fn close_within(&mut self, wait: Duration) {
        self.hold();
        let all = async {
            for door in &self.0 {
                door.gone.cancelled().await;
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

    fn open(doors: &mut Doors) -> Result<DoorEnd> {
        doors.open(Ipv4Addr::LOCALHOST.into(), Activity::new())
    }

    #[tokio::test]
    async fn closing_waits_for_every_edge() {
        let mut doors = Doors::default();
        let (first, second) = (open(&mut doors).unwrap(), open(&mut doors).unwrap());
        drop(first);
        let mut closing = Box::pin(doors.close());
        assert!(futures::poll!(&mut closing).is_pending());
        assert!(second.hold.is_cancelled());
        drop(second);
        assert!(futures::poll!(&mut closing).is_ready());
    }

    #[tokio::test]
    async fn an_edge_that_never_answers_is_not_waited_for_for_ever() {
        let mut doors = Doors::default();
        let _stuck = open(&mut doors).unwrap();
        doors.close_within(Duration::from_millis(1)).await;
        assert!(doors.0.is_empty());
    }

    #[test]
    fn doors_are_bounded_and_closed_ones_do_not_count() {
        let mut doors = Doors::default();
        let mut ends: Vec<_> = (0..DOORS_MAX).map(|_| open(&mut doors).unwrap()).collect();
        assert!(open(&mut doors).is_err());
        ends.pop();
        assert!(open(&mut doors).is_ok());
    }
}
