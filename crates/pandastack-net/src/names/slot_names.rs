//! One leased slot: its policy, and its limits of work in flight.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pandastack_types::network::NetworkPolicy;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::limits::{
    DATABASE_CONNECTIONS_PER_SLOT_MAX, NAME_CONNECTIONS_PER_SLOT_MAX, PROXIED_PER_SLOT_MAX,
    QUERIES_PER_SLOT_MAX,
};
use crate::config::SlotIndex;

/// A leased slot as the resolver and its proxy see it.
#[derive(Debug)]
pub(super) struct SlotNames {
    pub(super) index: SlotIndex,
    pub(super) policy: watch::Sender<Arc<NetworkPolicy>>,
    /// Held while the policy changes together with its rules, and while addresses of a name are added to the
    /// rules: no address that an old policy allowed can then be added after a new policy.
    rules: Mutex<()>,
    pub(super) queries: Arc<Semaphore>,
    pub(super) name_connections: Arc<Semaphore>,
    pub(super) proxied: Arc<Semaphore>,
    pub(super) database_permits: Arc<Semaphore>,
    has_proxy: Mutex<bool>,
    pub(super) stop: CancellationToken,
}

impl SlotNames {
    /// A slot with its first policy, until `stop`.
    pub(super) fn new(index: SlotIndex, policy: &NetworkPolicy, stop: CancellationToken) -> Self {
        Self {
            index,
            policy: watch::Sender::new(Arc::new(policy.clone())),
            rules: Mutex::default(),
            queries: Arc::new(Semaphore::new(QUERIES_PER_SLOT_MAX)),
            name_connections: Arc::new(Semaphore::new(NAME_CONNECTIONS_PER_SLOT_MAX)),
            proxied: Arc::new(Semaphore::new(PROXIED_PER_SLOT_MAX)),
            database_permits: Arc::new(Semaphore::new(DATABASE_CONNECTIONS_PER_SLOT_MAX)),
            has_proxy: Mutex::new(false),
            stop,
        }
    }

    pub(super) fn policy(&self) -> Arc<NetworkPolicy> {
        Arc::clone(&self.policy.borrow())
    }

    pub(super) fn lock_rules(&self) -> MutexGuard<'_, ()> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records whether the slot has a proxy. Returns whether it had one before.
    pub(super) fn set_has_proxy(&self, has_proxy: bool) -> bool {
        std::mem::replace(&mut *self.has_proxy.lock().unwrap_or_else(PoisonError::into_inner), has_proxy)
    }
}
