//! The slot pool: slots are created ahead of need, leased in microseconds, and destroyed in the
//! background.
//!
//! ```text
//!            make                take                release            destroy
//!   free ------------> ready ------------> in use ------------> doomed ----------> free
//!     ^                                      ^                     ^
//!     |          (agent restart)             | adopt, named        | adopt, not named
//!     +------------------------------------ found -----------------+
//! ```
//!
//! One OS thread, the maker ([`crate::maker`]), does everything slow. A slot is in exactly one of the states
//! above. Ready slots are counted by a semaphore, which serves waiting takers in order.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pandastack_types::chain;
use pandastack_types::network::NetworkPolicy;
use tokio::sync::{Semaphore, mpsc};

use crate::blocking::blocking;
use crate::config::{NetConfig, SlotIndex};
use crate::error::{NetError, Result};
use crate::host::{self, Claim};
use crate::maker::{Shared, State};
use crate::names::{DatabaseCall, Denial, Names, Receivers, Resolved, Upstreams};
use crate::namespace::NetNs;
use crate::slot::ReadySlot;
use crate::{ruleset, slot};

/// A leased slot. Return it with [`SlotPool::release`] once the machine's process has ended.
#[derive(Debug)]
pub struct Slot {
    /// Index of the slot; store it to release or adopt.
    pub index: SlotIndex,
    /// The guest's network card: one queue, with virtio headers. See [`SlotPool::open_tap`] for another one
    /// later.
    pub tap: OwnedFd,
    /// Address at which processes of this host reach the guest, on every port.
    pub address: Ipv4Addr,
}

/// Result of [`SlotPool::adopt`]: the state of the slots that are in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdoptionResult {
    /// Leased again, traffic never stopped.
    pub kept: Vec<SlotIndex>,
    /// Missing or incomplete slots: their machines have no network.
    pub missing: Vec<SlotIndex>,
}

/// Bytes that went through a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Sent by the guest.
    pub sent_bytes: u64,
    /// To the guest.
    pub received_bytes: u64,
}

/// Sizes for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStats {
    /// Slots of the subnet.
    pub capacity: usize,
    /// Made and waiting.
    pub ready: usize,
    /// Leased.
    pub in_use: usize,
    /// Found at start and not yet adopted.
    pub found: usize,
    /// Released, not yet destroyed.
    pub doomed: usize,
}

/// All slots of one agent.
#[derive(Debug)]
pub struct SlotPool {
    shared: Arc<Shared>,
    maker: Mutex<Option<JoinHandle<()>>>,
    take_deadline: Duration,
    names: Names,
    receivers: Mutex<Receivers>,
    _claim: Claim,
}

impl SlotPool {
    /// Prepares the host (forwarding, our table, the namespace directory) and starts filling the pool. Slots
    /// of an earlier agent are left alone until [`SlotPool::adopt`].
    ///
    /// Blocks for a few milliseconds. The calling thread's network namespace counts as the host's,
    /// and the resolver runs on its runtime.
    pub fn open(config: NetConfig) -> Result<Arc<Self>> {
        let plan = config.plan()?;
        let (claim, sockets) = host::prepare(&plan)?;
        let (names, receivers) = Names::open(plan.clone(), Upstreams::new(config.resolver), sockets)?;
        let found = slot::find_all(&plan)?;
        let state = State { occupied: found.clone(), found, ..State::default() };
        let shared = Arc::new(Shared {
            host: NetNs::current()?,
            ready_target: config.ready_target.min(plan.capacity()),
            plan,
            state: Mutex::new(state),
            work: Condvar::new(),
            ready: Semaphore::new(0),
        });
        let maker = thread::Builder::new()
            .name("slot-maker".to_owned())
            // A thread starts in the namespace of its parent thread: the host's.
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.make_and_destroy()
            })
            .map_err(NetError::io("starting the slot maker thread", "slot-maker"))?;
        let maker = Mutex::new(Some(maker));
        let receivers = Mutex::new(receivers);
        let take_deadline = config.take_deadline;
        Ok(Arc::new(SlotPool { shared, maker, take_deadline, names, receivers, _claim: claim }))
    }

    /// Leases a slot. Microseconds while the pool is filled; otherwise waits for the maker, up to the
    /// deadline.
    pub async fn take(&self, policy: &NetworkPolicy) -> Result<Slot> {
        let shared = &self.shared;
        let rules = (!policy.is_default()).then(|| ruleset::first_policy(policy, &shared.plan));
        shared.check_not_exhausted()?;
        let started = Instant::now();
        match tokio::time::timeout(self.take_deadline, shared.ready.acquire()).await {
            Ok(Ok(permit)) => permit.forget(),
            Ok(Err(_closed)) => return Err(NetError::Closed),
            Err(_elapsed) => return Err(shared.not_ready(started.elapsed())),
        }
        let ReadySlot { index, tap, log } = shared.lease_ready().ok_or(NetError::Closed)?;
        // The rules of a fresh namespace are ours alone: the kernel answers at once.
        if let Some(rules) = rules
            && let Err(error) = rules.commit(log.socket())
        {
            self.release(index);
            return Err(error);
        }
        if let Err(error) = self.names.register(index, policy, Some(log)).await {
            self.release(index);
            return Err(error);
        }
        Ok(Slot { index, tap, address: shared.plan.slot_side(index) })
    }

    /// Releases a slot; it is destroyed in the background. `false` when it was not in use, which is
    /// harmless.
    pub fn release(&self, index: SlotIndex) -> bool {
        let mut state = self.shared.lock();
        if !state.in_use.remove(&index) {
            return false;
        }
        self.names.forget(index);
        state.doomed.push_back(index);
        self.shared.work.notify_one();
        true
    }

    /// Adopts slots after an agent restart: leases the slots of running machines, with their
    /// policies, and dooms all others. Call it once with every slot in use, even if the list is
    /// empty.
    ///
    /// A slot that cannot be given its policy passes nothing from then on: its machine continues without a
    /// network.
    pub async fn adopt(&self, in_use: &[(SlotIndex, NetworkPolicy)]) -> Result<AdoptionResult> {
        let claimed: BTreeSet<SlotIndex> = in_use.iter().map(|(index, _)| *index).collect();
        let shared = Arc::clone(&self.shared);
        let mut adopted = blocking(move || {
            let found = std::mem::take(&mut shared.lock().found);
            let is_kept = |index: &SlotIndex| found.contains(index) && slot::is_whole(&shared.plan, *index);
            let (kept, missing): (Vec<_>, Vec<_>) =
                shared.host.run(|| Ok(claimed.into_iter().partition(is_kept)))?;
            let mut state = shared.lock();
            state.in_use.extend(&kept);
            state.doomed.extend(found.into_iter().filter(|index| !kept.contains(index)));
            shared.work.notify_one();
            Ok(AdoptionResult { kept, missing })
        })
        .await?;
        for (index, policy) in in_use {
            if adopted.kept.contains(index) && !self.put_in_force(*index, policy).await {
                adopted.kept.retain(|kept| kept != index);
                adopted.missing.push(*index);
                self.release(*index);
            }
        }
        Ok(adopted)
    }

    /// Sets the policy of an adopted slot, which its predecessor may have recorded but not applied.
    /// If a slot of another version cannot take it, the slot is closed: its machine continues
    /// without a network. `false` if closing failed too.
    async fn put_in_force(&self, index: SlotIndex, policy: &NetworkPolicy) -> bool {
        let applied = match self.names.register(index, policy, None).await {
            Ok(()) => self.names.change(index, policy, true).await,
            failed => failed,
        };
        let Err(error) = applied else { return true };
        tracing::error!(
            slot = %index, error = %chain(&error),
            "cannot apply a network policy: its sandbox has no network until it hibernates and wakes"
        );
        let shared = Arc::clone(&self.shared);
        let closed = blocking(move || shared.host.run(|| slot::close(&shared.plan, index))).await;
        if let Err(error) = &closed {
            tracing::error!(
                slot = %index, error = %chain(&error),
                "cannot close a network slot; removing it"
            );
        }
        closed.is_ok()
    }

    /// Connections and lookups that policies refuse from now on. There is one reader: a second call
    /// gets none.
    pub fn denials(&self) -> Option<mpsc::Receiver<Denial>> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner).denials.take()
    }

    /// Connections of guests to databases, from now on. There is one reader: a second call gets none.
    pub fn database_calls(&self) -> Option<mpsc::Receiver<DatabaseCall>> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner).database_calls.take()
    }

    /// Opens the tap of a leased slot again, for a machine that wakes. Fails while another process has it
    /// open.
    pub async fn open_tap(&self, index: SlotIndex) -> Result<OwnedFd> {
        self.check_leased(index)?;
        let shared = Arc::clone(&self.shared);
        blocking(move || slot::open_tap(&shared.plan, index)).await
    }

    /// Replaces the policy of a leased slot, also while its machine runs. Atomic, and binding for connections
    /// that are already open.
    pub async fn set_policy(&self, index: SlotIndex, policy: &NetworkPolicy) -> Result<()> {
        self.check_leased(index)?;
        self.names.change(index, policy, false).await
    }

    /// Names of its policy that the guest of a leased slot has resolved, and may keep using in
    /// another slot.
    pub async fn resolved(&self, index: SlotIndex) -> Result<Vec<Resolved>> {
        self.check_leased(index)?;
        self.names.resolved(index).await
    }

    /// Lets the guest of a leased slot, before it runs, keep using names that it resolved in
    /// another slot: each address for the rest of its time, if the policy of this slot allows its
    /// name.
    pub async fn restore_resolved(&self, index: SlotIndex, resolved: &[Resolved]) -> Result<()> {
        self.check_leased(index)?;
        self.names.restore_resolved(index, resolved).await
    }

    /// Address at which processes of this host reach the guest of a slot.
    pub fn address(&self, index: SlotIndex) -> Ipv4Addr {
        self.shared.plan.slot_side(index)
    }

    /// Bytes that the guest of a leased slot sent and received since the slot was created. Zero if
    /// the slot is gone.
    pub fn traffic(&self, index: SlotIndex) -> Traffic {
        let dir = Path::new("/sys/class/net").join(self.shared.plan.link_name(index)).join("statistics");
        let read = |file: &str| -> u64 {
            let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
            text.trim().parse().unwrap_or_default()
        };
        // The host's end of the pair: bytes received there were sent by the guest.
        Traffic { sent_bytes: read("rx_bytes"), received_bytes: read("tx_bytes") }
    }

    /// Sizes for metrics.
    pub fn stats(&self) -> PoolStats {
        let state = self.shared.lock();
        PoolStats {
            capacity: self.shared.plan.capacity(),
            ready: state.ready.len(),
            in_use: state.in_use.len(),
            found: state.found.len(),
            doomed: state.doomed.len() + state.destroying,
        }
    }

    /// Removes every slot, leased ones too, and our table. For the end of a host's service; an agent that
    /// only restarts drops the pool instead and leaves everything in place.
    ///
    /// IP forwarding stays on: by now something else on the host may need it.
    pub async fn shutdown(&self) -> Result<()> {
        self.names.close();
        self.shared.close();
        let maker = self.take_maker();
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            join(maker);
            shared.remove_everything()
        })
        .await
    }

    fn check_leased(&self, index: SlotIndex) -> Result<()> {
        if self.shared.lock().in_use.contains(&index) { Ok(()) } else { Err(NetError::NotInUse(index)) }
    }

    fn take_maker(&self) -> Option<JoinHandle<()>> {
        self.maker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for SlotPool {
    fn drop(&mut self) {
        self.names.close();
        self.shared.close();
        join(self.take_maker());
    }
}

fn join(maker: Option<JoinHandle<()>>) {
    if let Some(maker) = maker
        && maker.join().is_err()
    {
        tracing::error!("the slot maker thread panicked");
    }
}
