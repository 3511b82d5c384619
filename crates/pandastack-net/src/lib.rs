//! Network slots: the network of a machine, and its isolation.
//!
//! Every guest is baked with the same address, MAC, gateway and resolver, so that a snapshot restores
//! anywhere. A *slot* makes that possible many times on one host: a network namespace that holds the guest's
//! tap, translates the one guest address to an address of the slot's own, and filters what may pass.
//!
//! ```text
//!  guest 192.0.0.2 ── tap0 ┤ slot namespace ├ up0 ═veth═ <prefix>-<index> ├ host ── uplink
//!                192.0.0.1   nft: guard, NAT,   .2/30         .1/30          nft: constant rules,
//!                            policy set                                      masquerade
//! ```
//!
//! Invariants:
//! - A guest reaches neither another slot, nor an address of the host, nor link-local metadata,
//!   under any policy.
//! - The host has a constant number of rules, matched by interface name prefix; rules that differ
//!   per slot are in its namespace. Only our own nftables table is touched.
//! - The existing slots are read from the kernel (namespaces, links); the agent knows which are in
//!   use. No third record exists that could disagree. See [`SlotPool::adopt`].
//! - A slot is never recycled in place: a released slot is destroyed, with its connection table,
//!   its connections in the host's table and its counters, and its index is reused only after all
//!   others.
//!
//! - Names are decided by the host's resolver and, for web connections, by a proxy inside the slot: see [`names`].
//!
//! Out of scope: assigning slots, putting machines to sleep, services behind ports.
//!
//! System calls go through `rustix`. The exceptions are named in `Cargo.toml`.

#![deny(unsafe_code)]

mod blocking;
mod config;
mod connections;
mod error;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod guest_network;
mod host;
mod links;
mod listening_ports;
mod maker;
mod names;
mod namespace;
mod netlink;
mod nft;
mod packet_log;
mod pool;
mod probe;
mod ruleset;
mod slot;
mod tap;

pub use config::{
    CONNECTIONS_PER_MINUTE_DEFAULT, CONNECTIONS_PER_SLOT_DEFAULT, DESTINATIONS_PER_MINUTE_DEFAULT, NetConfig,
    SLOTS_PER_HOST_MAX, SlotIndex, SlotLimits,
};
pub use error::{NetError, Result};
pub use guest_network::{
    GATEWAY_MAC, GUEST_DNS, GUEST_GATEWAY, GUEST_IP, GUEST_MAC, GUEST_MAC_TEXT, GUEST_PREFIX, TAP_NAME,
};
pub use host::{prefix_is_free, subnet_is_free};
pub use names::{
    DATABASE_CONNECTIONS_MAX, DATABASE_CONNECTIONS_PER_SLOT_MAX, DENIALS_WAITING_MAX, DatabaseCall, Denial,
    RESOLVED_MAX, Resolved,
};
pub use pandastack_types::network::{Cidr, NetworkPolicy};
pub use pool::{AdoptionResult, PoolStats, Slot, SlotPool, Traffic};
pub use probe::{Check, probe};
pub use tap::{TAP_OFFLOADS, TAP_VNET_HEADER_BYTES};
