//! Connections and names that a policy denied.

use std::net::Ipv4Addr;

use pandastack_types::agent_api::EgressLimit;

use crate::config::SlotIndex;

/// A connection, packet or name that a policy or a limit refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Denial {
    /// The slot of the guest.
    pub slot: SlotIndex,
    /// `tcp`, `udp`, `icmp`, the protocol's number, or `dns` for a name that was not resolved.
    pub protocol: String,
    /// The destination.
    pub address: Option<Ipv4Addr>,
    /// The destination port.
    pub port: Option<u16>,
    /// The name, where the guest gave one.
    pub name: Option<String>,
    /// The limit that it was over; `None` if the policy refused it.
    pub limit: Option<EgressLimit>,
}
