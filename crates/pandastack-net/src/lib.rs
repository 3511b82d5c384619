//! Network slots: what gives a machine its network, and keeps it inside it.
//!
//! Every guest is baked with the same address, MAC, gateway and resolver, so that a snapshot restores anywhere. A
//! *slot* makes that possible many times on one host: a network namespace that holds the guest's tap, translates the
//! one guest address to an address of the slot's own, and filters what may pass.
//!
//! ```text
//!  guest 192.0.0.2 ── tap0 ┤ slot namespace ├ up0 ═veth═ <prefix>-<index> ├ host ── uplink
//!                192.0.0.1   nft: guard, NAT,   .2/30         .1/30          nft: constant rules,
//!                            policy set                                      masquerade
//! ```
//!
//! What must always hold:
//! - A guest reaches neither another slot, nor an address of the host, nor link-local metadata, whatever its policy says.
//! - The host has a constant number of rules, matched by interface name prefix; what differs per slot lives in its
//!   namespace. Only our own nftables table is touched.
//! - Which slots exist is read from the kernel (namespaces, links); which are in use is said by the agent. There is no
//!   third record that could disagree. See [`SlotPool::adopt`].
//! - A slot is never recycled in place: a released one is destroyed, with its connection table, its connections in the
//!   host's table and its counters, and its index comes up again only after all others had their turn.
//!
//! - Names are decided by the host's resolver and, for web connections, by a proxy inside the slot: see [`names`].
//!
//! Left to others: who gets a slot, when a machine sleeps, what runs behind a port.
//!
//! System calls go through `rustix`. `nix` is for what that does not have or does not have in safe Rust (`unshare`, lists of
//! interfaces, a redirected connection's first destination, definitions of `ioctl`s), `libc` for the numbers and shapes of
//! netlink, nftables and taps.

#![deny(unsafe_code)]

mod config;
mod connections;
mod error;
mod host;
mod links;
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

use std::net::Ipv4Addr;

use pandastack_types::network::DATABASES_ADDRESS;

pub use config::{CONNECTIONS_PER_SLOT_DEFAULT, NetConfig, SLOTS_PER_HOST_MAX, SlotIndex, SlotLimits};
pub use error::{NetError, Result};
pub use names::{
    DATABASE_CONNECTIONS_MAX, DATABASE_CONNECTIONS_PER_SLOT_MAX, DENIALS_WAITING_MAX, DatabaseCall, Denial,
    RESOLVED_MAX, Resolved,
};
pub use pandastack_types::network::{Cidr, NetworkPolicy};
pub use pool::{Adopted, PoolStats, Slot, SlotPool, Traffic};
pub use probe::{Check, probe};
pub use tap::{TAP_OFFLOADS, TAP_VNET_HEADER_BYTES};

/// Address of every guest. The block is reserved for translation inside one host (RFC 7335), so it clashes with no
/// network a guest or a host may want to reach, unlike any private range.
pub const GUEST_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);

/// Prefix length that goes with [`GUEST_IP`] and [`GUEST_GATEWAY`].
pub const GUEST_PREFIX: u8 = 30;

/// Default gateway of every guest: the slot's end of the tap.
pub const GUEST_GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);

const _: () = assert!(DATABASES_ADDRESS.ip().to_bits() == GUEST_GATEWAY.to_bits());

/// Name server of every guest. The slot passes port 53 of its gateway address on to the agent's resolver.
pub const GUEST_DNS: Ipv4Addr = GUEST_GATEWAY;

/// Hardware address of every guest's interface.
pub const GUEST_MAC: [u8; 6] = [0x06, 0x00, 0x0a, 0xc9, 0x00, 0x02];

/// [`GUEST_MAC`] as virtual machine monitors take it.
pub const GUEST_MAC_TEXT: &str = "06:00:0a:c9:00:02";

/// Hardware address of the gateway. Constant too: a snapshot carries the guest's neighbour table.
pub const GATEWAY_MAC: [u8; 6] = [0x06, 0x00, 0x0a, 0xc9, 0x00, 0x01];

/// Name of the tap in every slot's namespace.
pub const TAP_NAME: &str = "tap0";

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        // Only a runtime that shuts down cancels blocking work before it starts.
        Err(_) => Err(NetError::Closed),
    }
}
