//! What cannot be decided by address alone: names, and who is told what was refused.
//!
//! One resolver per host answers the guests of all slots and knows each by the address its queries come from, which the
//! host's rules keep from being forged. Under a policy by name it opens the addresses it hands out, for as long as the
//! answer holds; a proxy inside the slot's namespace then checks that web connections to them really ask for an allowed
//! name. Proxies run only where a policy needs one. Connections to databases are taken at the gateway in the same way, and handed
//! on with their slot. What a guest has resolved can be taken to its next slot: see [`Resolved`].
//!
//! ```text
//!   guest --query--> resolver --policy--> host's name servers --answer--> `named` set --> guest
//!   guest --80, 443--> (nft redirect) proxy --name allowed--> server, from inside the namespace
//! ```
//!
//! Must hold: the proxy's own connections begin inside the slot's namespace, so every rule of slot and host holds for them;
//! nothing a guest sends can make any of this panic, block the others, or grow without bound.

mod databases;
mod denied;
mod hello;
mod proxy;
mod resolved;
mod resolver;
mod sockets;
mod upstream;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pandastack_types::network::NetworkPolicy;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{Plan, SlotIndex};
use crate::error::{NetError, Result};
use crate::packet_log::PacketLog;
use crate::{blocking, ruleset, slot};
pub use databases::{DATABASE_CONNECTIONS_MAX, DATABASE_CONNECTIONS_PER_SLOT_MAX, DatabaseCall};
pub use resolved::{RESOLVED_MAX, Resolved};
pub(crate) use sockets::Sockets;
pub(crate) use upstream::{Upstreams, host_resolvers};

/// Refusals that wait to be read. Further ones are not told: whoever reads counts what it gets.
pub const DENIALS_WAITING_MAX: usize = 1024;

/// Queries of one guest under way at once. Further ones are dropped, as a full server would; resolvers ask again.
const QUERIES_PER_SLOT_MAX: usize = 64;

/// Between tries to accept a connection that failed: out of descriptors, nothing tells when some are free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A connection, packet or name that a policy refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Denial {
    /// Whose.
    pub slot: SlotIndex,
    /// `tcp`, `udp`, `icmp`, the protocol's number, or `dns` for a name that was not resolved.
    pub protocol: String,
    /// Where to.
    pub address: Option<Ipv4Addr>,
    /// Which port.
    pub port: Option<u16>,
    /// For which name, where the guest said so.
    pub name: Option<String>,
}

/// Every leased slot, as resolver and proxies see it.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) plan: Plan,
    slots: Mutex<HashMap<Ipv4Addr, Arc<SlotNames>>>,
    upstreams: Upstreams,
    denials: mpsc::Sender<Denial>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// What the pool's owner is told by guests.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) denials: Option<mpsc::Receiver<Denial>>,
    pub(crate) database_calls: Option<mpsc::Receiver<DatabaseCall>>,
}

/// One leased slot.
#[derive(Debug)]
struct SlotNames {
    index: SlotIndex,
    policy: watch::Sender<Arc<NetworkPolicy>>,
    /// Held while the policy and its rules change together, and while what was learned of a name by this policy is added to
    /// them: nothing of an old policy can then come after a new one.
    rules: Mutex<()>,
    queries: Arc<Semaphore>,
    proxied: Arc<Semaphore>,
    database_places: Arc<Semaphore>,
    has_proxy: Mutex<bool>,
    stop: CancellationToken,
}

/// Whether rules know addresses of names under this policy.
fn keeps_addresses(policy: &NetworkPolicy) -> bool {
    policy.opens_names() || !policy.shut_ports().is_empty()
}

impl SlotNames {
    fn policy(&self) -> Arc<NetworkPolicy> {
        Arc::clone(&self.policy.borrow())
    }

    fn lock_rules(&self) -> MutexGuard<'_, ()> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    /// Serves what guests ask for at `sockets` until the pool ends.
    pub(crate) fn open(plan: Plan, upstreams: Upstreams, sockets: Sockets) -> Result<(Arc<Self>, Heard)> {
        let (denials, denials_heard) = mpsc::channel(DENIALS_WAITING_MAX);
        let names = Names {
            plan,
            slots: Mutex::default(),
            upstreams,
            denials,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let names = Arc::new(names);
        let fail = || sockets::fail("listening for guests");
        let udp = UdpSocket::from_std(sockets.udp).map_err(fail())?;
        resolver::serve(&names, udp, TcpListener::from_std(sockets.tcp).map_err(fail())?);
        let (calls, calls_heard) = databases::channel();
        let listener = TcpListener::from_std(sockets.databases).map_err(fail())?;
        let taking = databases::serve(Arc::downgrade(&names), names.stop.clone(), listener, calls);
        names.tasks.spawn(taking);
        Ok((names, Heard { denials: Some(denials_heard), database_calls: Some(calls_heard) }))
    }

    /// Takes a slot in charge, with what tells of refused packets unless that is to be opened yet. Its proxy listens when this
    /// returns, if its policy needs one.
    pub(crate) async fn register(
        self: &Arc<Self>,
        index: SlotIndex,
        policy: &NetworkPolicy,
        log: Option<PacketLog>,
    ) -> Result<()> {
        let slot = Arc::new(SlotNames {
            index,
            policy: watch::Sender::new(Arc::new(policy.clone())),
            rules: Mutex::default(),
            queries: Arc::new(Semaphore::new(QUERIES_PER_SLOT_MAX)),
            proxied: Arc::new(Semaphore::new(proxy::CONNECTIONS_PER_SLOT_MAX)),
            database_places: Arc::new(Semaphore::new(DATABASE_CONNECTIONS_PER_SLOT_MAX)),
            has_proxy: Mutex::new(false),
            stop: self.stop.child_token(),
        });
        let before = self.lock().insert(self.plan.slot_side(index), Arc::clone(&slot));
        if let Some(before) = before {
            before.stop.cancel();
        }
        self.tasks.spawn(denied::watch(Arc::clone(self), Arc::clone(&slot), log));
        self.prepare_proxy(&slot, policy).await
    }

    /// Changes a slot's policy and its rules for the next query, packet and connection, and ends connections that it no
    /// longer permits. Addresses of names are forgotten unless they are this policy's own. When it fails, everything is as before.
    pub(crate) async fn change(
        self: &Arc<Self>,
        index: SlotIndex,
        policy: &NetworkPolicy,
        names_stay: bool,
    ) -> Result<()> {
        let slot = self.slot(self.plan.slot_side(index)).ok_or(NetError::NotInUse(index))?;
        // First: rules that send connections to a proxy must find it there.
        self.prepare_proxy(&slot, policy).await?;
        let (plan, policy) = (self.plan.clone(), policy.clone());
        blocking(move || {
            let rules = ruleset::slot_policy(&policy, &plan, names_stay);
            let _changing = slot.lock_rules();
            // The kernel takes all of it or nothing; what it did not take holds nowhere.
            slot::apply(&plan, index, rules)?;
            slot.policy.send_replace(Arc::new(policy));
            Ok(())
        })
        .await
    }

    /// What the guest of a slot has resolved and may go on with.
    pub(crate) async fn resolved(&self, index: SlotIndex) -> Result<Vec<Resolved>> {
        let slot = self.slot(self.plan.slot_side(index)).ok_or(NetError::NotInUse(index))?;
        if !keeps_addresses(&slot.policy()) {
            return Ok(Vec::new());
        }
        let plan = self.plan.clone();
        blocking(move || {
            let _unchanged = slot.lock_rules();
            Ok(resolved::gather(slot::resolved(&plan, index)?, resolved::now_ms()))
        })
        .await
    }

    /// Lets the guest of a slot go on with what it resolved in another one, as far as its policy allows that now.
    pub(crate) async fn restore_resolved(&self, index: SlotIndex, resolved: &[Resolved]) -> Result<()> {
        let slot = self.slot(self.plan.slot_side(index)).ok_or(NetError::NotInUse(index))?;
        if resolved.is_empty() || !keeps_addresses(&slot.policy()) {
            return Ok(());
        }
        let (plan, resolved) = (self.plan.clone(), resolved.to_vec());
        blocking(move || {
            let _unchanged = slot.lock_rules();
            let entries = resolved::entries(&slot.policy(), &resolved, resolved::now_ms());
            if entries.open.is_empty() && entries.shut.is_empty() {
                return Ok(());
            }
            slot::apply(&plan, index, ruleset::known(&entries.open, &entries.shut))
        })
        .await
    }

    /// Forgets a slot and ends what runs for it.
    pub(crate) fn forget(&self, index: SlotIndex) {
        if let Some(slot) = self.lock().remove(&self.plan.slot_side(index)) {
            slot.stop.cancel();
        }
    }

    /// Ends everything. Tasks end by themselves soon after; nothing they hold outlives the process.
    pub(crate) fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
    }

    async fn prepare_proxy(self: &Arc<Self>, slot: &Arc<SlotNames>, policy: &NetworkPolicy) -> Result<()> {
        if !policy.opens_names() && !policy.denies_names() {
            return Ok(());
        }
        if std::mem::replace(&mut *slot.has_proxy.lock().unwrap_or_else(PoisonError::into_inner), true) {
            return Ok(());
        }
        let started = proxy::start(self, slot).await;
        if started.is_err() {
            *slot.has_proxy.lock().unwrap_or_else(PoisonError::into_inner) = false;
        }
        started
    }

    /// Which guest it is. Others than guests get no answer.
    fn slot_of(&self, from: SocketAddr) -> Option<Arc<SlotNames>> {
        match from.ip() {
            IpAddr::V4(address) => self.slot(address),
            IpAddr::V6(_) => None,
        }
    }

    fn slot(&self, address: Ipv4Addr) -> Option<Arc<SlotNames>> {
        self.lock().get(&address).cloned()
    }

    /// A panic elsewhere cannot leave the map half-changed.
    fn lock(&self) -> MutexGuard<'_, HashMap<Ipv4Addr, Arc<SlotNames>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn namespace(&self, slot: &SlotNames) -> PathBuf {
        self.plan.netns_path(slot.index)
    }

    fn tell(&self, denial: Denial) {
        // Full or closed: nobody reads fast enough, or at all.
        let _ = self.denials.try_send(denial);
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
