//! All leased slots, and shared state of the services for guests.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::denial::Denial;
use super::slot_names::SlotNames;
use super::upstream::Upstreams;
use crate::config::{Plan, SlotIndex};

/// Every leased slot, by the source address of its guest's packets.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) plan: Plan,
    slots: Mutex<HashMap<Ipv4Addr, Arc<SlotNames>>>,
    pub(super) upstreams: Upstreams,
    denials: mpsc::Sender<Denial>,
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Registry {
    pub(super) fn new(plan: Plan, upstreams: Upstreams, denials: mpsc::Sender<Denial>) -> Self {
        Self {
            plan,
            slots: Mutex::default(),
            upstreams,
            denials,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Adds a slot, and ends what runs for a slot of the same index.
    pub(super) fn insert(&self, slot: &Arc<SlotNames>) {
        let before = self.lock().insert(self.plan.slot_side(slot.index), Arc::clone(slot));
        if let Some(before) = before {
            before.stop.cancel();
        }
    }

    /// Removes a slot, and ends what runs for it.
    pub(super) fn remove(&self, index: SlotIndex) {
        if let Some(slot) = self.lock().remove(&self.plan.slot_side(index)) {
            slot.stop.cancel();
        }
    }

    pub(super) fn slot(&self, index: SlotIndex) -> Option<Arc<SlotNames>> {
        self.slot_at(self.plan.slot_side(index))
    }

    /// The slot whose guest sends from this address. Only guests get an answer.
    pub(super) fn slot_of(&self, from: SocketAddr) -> Option<Arc<SlotNames>> {
        match from.ip() {
            IpAddr::V4(address) => self.slot_at(address),
            IpAddr::V6(_) => None,
        }
    }

    fn slot_at(&self, address: Ipv4Addr) -> Option<Arc<SlotNames>> {
        self.lock().get(&address).cloned()
    }

    /// A panic elsewhere cannot leave the map half-changed.
    fn lock(&self) -> MutexGuard<'_, HashMap<Ipv4Addr, Arc<SlotNames>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn namespace(&self, slot: &SlotNames) -> PathBuf {
        self.plan.netns_path(slot.index)
    }

    /// Reports refused connections.
    pub(super) fn report(&self, denial: Denial) {
        // An error means that the queue is full or has no reader; the denial is dropped.
        let _ = self.denials.try_send(denial);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
