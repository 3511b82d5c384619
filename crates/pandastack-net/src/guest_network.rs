//! The network that every guest sees. It is the same for all, so that a snapshot restores in any slot.

use std::net::Ipv4Addr;

use pandastack_types::network::DATABASES_ADDRESS;

/// Address of every guest. The block is reserved for translation inside one host (RFC 7335), so it clashes
/// with no network a guest or a host may want to reach, unlike any private range.
pub const GUEST_IP: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);

/// Prefix length of [`GUEST_IP`] and [`GUEST_GATEWAY`].
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

/// Slot end of the veth pair, in every namespace.
pub(crate) const UPLINK_NAME: &str = "up0";
