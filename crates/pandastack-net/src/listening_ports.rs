//! The ports of the gateway that guests use, and where the host listens for them.

use libc::{IPPROTO_TCP, IPPROTO_UDP};
use pandastack_types::network::DATABASES_ADDRESS;

const DNS_PORT: u16 = 53;

/// Services at the gateway of every guest: protocol and port.
pub(crate) const SERVICES: [(libc::c_int, u16); 3] =
    [(IPPROTO_UDP, DNS_PORT), (IPPROTO_TCP, DNS_PORT), (IPPROTO_TCP, DATABASES_ADDRESS.port())];

/// Ports on which the host listens for guests: the resolver, and connections to databases.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListeningPorts {
    pub(crate) udp: u16,
    pub(crate) tcp: u16,
    pub(crate) databases: u16,
}

impl ListeningPorts {
    /// Protocol, the port that guests use, and the host's port for it.
    pub(crate) fn each(self) -> impl Iterator<Item = (libc::c_int, u16, u16)> {
        let listening = [self.udp, self.tcp, self.databases];
        SERVICES.into_iter().zip(listening).map(|((protocol, asked), port)| (protocol, asked, port))
    }
}
