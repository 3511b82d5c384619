//! Policies by name, which addresses alone cannot decide, and reports of denied connections.
//!
//! One resolver per host answers the guests of all slots and knows each by the address its queries
//! come from, which the host's rules keep from being forged. Under a policy by name it opens the
//! addresses that it returns, for the lifetime of the answer; a proxy inside the slot's namespace
//! then checks that web connections to them really name an allowed host. Proxies run only where a
//! policy needs one. Connections to databases are accepted at the gateway in the same way, and
//! passed on with their slot. A guest's resolved names can be carried over to its next slot: see
//! [`Resolved`].
//!
//! ```text
//!   guest --query--> resolver --policy--> host's name servers --answer--> `named` set --> guest
//!   guest --80, 443--> (nft redirect) proxy --name allowed--> server, from inside the namespace
//! ```
//!
//! Must hold: the proxy's own connections start inside the slot's namespace, so every rule of slot
//! and host applies to them; no input from a guest can make this code panic, block other guests, or
//! grow without bound.

mod databases;
mod denial;
mod denied;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod hello;
mod limits;
mod proxy;
mod registry;
mod resolved;
mod resolver;
mod slot_names;
mod sockets;
mod upstream;

use std::sync::Arc;

use pandastack_types::network::NetworkPolicy;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::mpsc;

use crate::blocking::blocking;
use crate::config::{Plan, SlotIndex};
use crate::error::{NetError, Result};
use crate::packet_log::PacketLog;
use crate::{ruleset, slot};
pub use databases::DatabaseCall;
pub use denial::Denial;
pub use limits::{DATABASE_CONNECTIONS_MAX, DATABASE_CONNECTIONS_PER_SLOT_MAX, DENIALS_WAITING_MAX};
use registry::Registry;
pub use resolved::{RESOLVED_MAX, Resolved};
use slot_names::SlotNames;
pub(crate) use sockets::Sockets;
pub(crate) use upstream::{Upstreams, host_resolvers};

/// The resolver, the proxies and the listener for databases, for all leased slots.
#[derive(Debug)]
pub(crate) struct Names(Arc<Registry>);

/// Channels that report guest activity to the owner of the pool.
#[derive(Debug)]
pub(crate) struct Receivers {
    pub(crate) denials: Option<mpsc::Receiver<Denial>>,
    pub(crate) database_calls: Option<mpsc::Receiver<DatabaseCall>>,
}

/// Returns whether rules keep addresses of names under this policy.
fn keeps_addresses(policy: &NetworkPolicy) -> bool {
    policy.opens_names() || !policy.shut_ports().is_empty()
}

impl Names {
    /// Serves guests at `sockets` until the pool ends.
    pub(crate) fn open(plan: Plan, upstreams: Upstreams, sockets: Sockets) -> Result<(Self, Receivers)> {
        let (denials, reported_denials) = mpsc::channel(DENIALS_WAITING_MAX);
        let registry = Arc::new(Registry::new(plan, upstreams, denials));
        let fail = || sockets::fail("listening for guests");
        let udp = UdpSocket::from_std(sockets.udp).map_err(fail())?;
        resolver::serve(&registry, udp, TcpListener::from_std(sockets.tcp).map_err(fail())?);
        let (calls, database_calls) = databases::channel();
        let listener = TcpListener::from_std(sockets.databases).map_err(fail())?;
        let accepting = databases::serve(Arc::downgrade(&registry), registry.stop.clone(), listener, calls);
        registry.tasks.spawn(accepting);
        let receivers = Receivers { denials: Some(reported_denials), database_calls: Some(database_calls) };
        Ok((Self(registry), receivers))
    }

    /// Registers a slot, with the log of its refused packets unless that is to be opened yet. If its policy
    /// needs a proxy, that listens when this returns.
    pub(crate) async fn register(
        &self,
        index: SlotIndex,
        policy: &NetworkPolicy,
        log: Option<PacketLog>,
    ) -> Result<()> {
        let slot = Arc::new(SlotNames::new(index, policy, self.0.stop.child_token()));
        self.0.insert(&slot);
        self.0.tasks.spawn(denied::watch(Arc::clone(&self.0), Arc::clone(&slot), log));
        self.prepare_proxy(&slot, policy).await
    }

    /// Changes a slot's policy and its rules for the next query, packet and connection, and ends connections
    /// that it no longer permits. Addresses of names are forgotten unless they are this policy's own. When it
    /// fails, everything is as before.
    pub(crate) async fn change(
        &self,
        index: SlotIndex,
        policy: &NetworkPolicy,
        names_stay: bool,
    ) -> Result<()> {
        let slot = self.slot(index)?;
        // First: rules that send connections to a proxy must find it there.
        self.prepare_proxy(&slot, policy).await?;
        let (plan, policy) = (self.0.plan.clone(), policy.clone());
        blocking(move || {
            let rules = ruleset::slot_policy(&policy, &plan, names_stay);
            let _changing = slot.lock_rules();
            // The kernel applies the batch as a whole or not at all; on failure no part is in
            // force.
            slot::apply(&plan, index, rules)?;
            slot.policy.send_replace(Arc::new(policy));
            Ok(())
        })
        .await
    }

    /// Names that the guest of a slot has resolved and may keep using.
    pub(crate) async fn resolved(&self, index: SlotIndex) -> Result<Vec<Resolved>> {
        let slot = self.slot(index)?;
        if !keeps_addresses(&slot.policy()) {
            return Ok(Vec::new());
        }
        let plan = self.0.plan.clone();
        blocking(move || {
            let _unchanged = slot.lock_rules();
            Ok(resolved::gather(slot::resolved(&plan, index)?, resolved::now_ms()))
        })
        .await
    }

    /// Restores names that the guest of a slot resolved in another slot, as far as its policy allows that
    /// now.
    pub(crate) async fn restore_resolved(&self, index: SlotIndex, resolved: &[Resolved]) -> Result<()> {
        let slot = self.slot(index)?;
        if resolved.is_empty() || !keeps_addresses(&slot.policy()) {
            return Ok(());
        }
        let (plan, resolved) = (self.0.plan.clone(), resolved.to_vec());
        blocking(move || {
            let _unchanged = slot.lock_rules();
            let entries = resolved::entries(&slot.policy(), &plan.ceiling, &resolved, resolved::now_ms());
            if entries.open.is_empty() && entries.shut.is_empty() {
                return Ok(());
            }
            slot::apply(&plan, index, ruleset::renew_addresses(&entries.open, &entries.shut))
        })
        .await
    }

    /// Forgets a slot and ends what runs for it.
    pub(crate) fn forget(&self, index: SlotIndex) {
        self.0.remove(index);
    }

    /// Ends everything. Tasks end by themselves soon after; nothing they hold outlives the process.
    pub(crate) fn close(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
    }

    async fn prepare_proxy(&self, slot: &Arc<SlotNames>, policy: &NetworkPolicy) -> Result<()> {
        if !policy.opens_names() && !policy.denies_names() {
            return Ok(());
        }
        if slot.set_has_proxy(true) {
            return Ok(());
        }
        let started = proxy::start(&self.0, slot).await;
        if started.is_err() {
            slot.set_has_proxy(false);
        }
        started
    }

    fn slot(&self, index: SlotIndex) -> Result<Arc<SlotNames>> {
        self.0.slot(index).ok_or(NetError::NotInUse(index))
    }
}
