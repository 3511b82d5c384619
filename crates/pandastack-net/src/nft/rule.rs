//! One rule: conditions and a verdict, written left to right as the `nft` program would print them.
//!
//! Every condition loads a field into register 1 and compares it there; a rule whose comparison fails ends.

use std::net::Ipv4Addr;

use libc::{
    NFT_CMP_EQ, NFT_CMP_NEQ, NFT_CT_DIRECTION, NFT_CT_STATE, NFT_CT_STATUS, NFT_META_IIFNAME,
    NFT_META_L4PROTO, NFT_META_NFPROTO, NFT_META_OIFNAME, NFT_NAT_DNAT, NFT_PAYLOAD_LL_HEADER,
    NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER, NFT_REG_1, NFT_REG_VERDICT,
};

use super::{Attributes, SetName};
use crate::policy::Cidr;

const IFNAME_BYTES: usize = 16;

/// Connection states, as in `ct state`.
pub(crate) const CT_ESTABLISHED_OR_RELATED: u32 = 2 | 4;

/// Connection status bit: the destination was translated.
const IPS_DST_NAT: u32 = 1 << 5;

/// Conditions, then a verdict.
#[derive(Debug, Default)]
pub(crate) struct Rule(pub(super) Vec<u8>);

impl Rule {
    pub(crate) fn new() -> Self {
        Rule::default()
    }

    /// Came in on exactly this interface.
    pub(crate) fn input_link(self, name: &str) -> Self {
        self.meta(NFT_META_IIFNAME).compare(NFT_CMP_EQ, &link_name(name))
    }

    /// Leaves on exactly this interface.
    pub(crate) fn output_link(self, name: &str) -> Self {
        self.meta(NFT_META_OIFNAME).compare(NFT_CMP_EQ, &link_name(name))
    }

    /// Came in on an interface whose name starts so.
    pub(crate) fn input_links(self, prefix: &str) -> Self {
        self.meta(NFT_META_IIFNAME).compare(NFT_CMP_EQ, prefix.as_bytes())
    }

    /// Leaves on an interface whose name starts so.
    pub(crate) fn output_links(self, prefix: &str) -> Self {
        self.meta(NFT_META_OIFNAME).compare(NFT_CMP_EQ, prefix.as_bytes())
    }

    /// Leaves on an interface whose name starts otherwise.
    pub(crate) fn output_links_not(self, prefix: &str) -> Self {
        self.meta(NFT_META_OIFNAME).compare(NFT_CMP_NEQ, prefix.as_bytes())
    }

    /// Is IPv4. Needed before any condition on addresses: the table sees both families.
    pub(crate) fn ipv4(self) -> Self {
        self.meta(NFT_META_NFPROTO).compare(NFT_CMP_EQ, &[libc::NFPROTO_IPV4 as u8])
    }

    /// Is IPv6.
    pub(crate) fn ipv6(self) -> Self {
        self.meta(NFT_META_NFPROTO).compare(NFT_CMP_EQ, &[libc::NFPROTO_IPV6 as u8])
    }

    pub(crate) fn source(self, address: Ipv4Addr) -> Self {
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, 12, 4).compare(NFT_CMP_EQ, &address.octets())
    }

    pub(crate) fn source_not(self, address: Ipv4Addr) -> Self {
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, 12, 4).compare(NFT_CMP_NEQ, &address.octets())
    }

    pub(crate) fn source_in(self, network: Cidr) -> Self {
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, 12, 4).masked(network, NFT_CMP_EQ)
    }

    pub(crate) fn destination(self, address: Ipv4Addr) -> Self {
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, 16, 4).compare(NFT_CMP_EQ, &address.octets())
    }

    pub(crate) fn destination_in(self, network: Cidr) -> Self {
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, 16, 4).masked(network, NFT_CMP_EQ)
    }

    pub(crate) fn destination_in_set(self, set: SetName) -> Self {
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, 16, 4).expression("lookup", |a| {
            a.text(1, set.0);
            a.number(2, NFT_REG_1 as u32);
            a.number(4, set.1);
        })
    }

    pub(crate) fn hardware_source_not(self, mac: [u8; 6]) -> Self {
        self.payload(NFT_PAYLOAD_LL_HEADER, 6, 6).compare(NFT_CMP_NEQ, &mac)
    }

    /// Is TCP or UDP (`protocol`) to this port.
    pub(crate) fn destination_port(self, protocol: libc::c_int, port: u16) -> Self {
        self.meta(NFT_META_L4PROTO)
            .compare(NFT_CMP_EQ, &[protocol as u8])
            .payload(NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)
            .compare(NFT_CMP_EQ, &port.to_be_bytes())
    }

    /// The connection is in one of these states.
    pub(crate) fn connection_state(self, states: u32) -> Self {
        self.connection(NFT_CT_STATE).any_bit(states)
    }

    /// The packet answers, rather than asks.
    pub(crate) fn reply(self) -> Self {
        self.connection(NFT_CT_DIRECTION).compare(NFT_CMP_EQ, &[1])
    }

    /// The connection's destination was translated by a rule of the same namespace.
    pub(crate) fn redirected(self) -> Self {
        self.connection(NFT_CT_STATUS).any_bit(IPS_DST_NAT)
    }

    /// An answer to the source would not leave by the interface the packet came from: a forged source.
    pub(crate) fn source_not_behind_link(self) -> Self {
        const SOURCE_AND_LINK: u32 = 1 | 8;
        const RESULT_LINK: u32 = 1;
        self.expression("fib", |a| {
            a.number(1, NFT_REG_1 as u32);
            a.number(2, RESULT_LINK);
            a.number(3, SOURCE_AND_LINK);
        })
        .compare(NFT_CMP_EQ, &[0; 4])
    }

    pub(crate) fn accept(self) -> Self {
        self.verdict(libc::NF_ACCEPT)
    }

    pub(crate) fn drop(self) -> Self {
        self.verdict(libc::NF_DROP)
    }

    /// Sends the connection to another address, port unchanged.
    pub(crate) fn redirect_to(self, address: Ipv4Addr) -> Self {
        self.expression("immediate", |a| {
            a.number(1, NFT_REG_1 as u32);
            a.data(2, &address.octets());
        })
        .expression("nat", |a| {
            a.number(1, NFT_NAT_DNAT as u32);
            a.number(2, libc::NFPROTO_IPV4 as u32);
            a.number(3, NFT_REG_1 as u32);
        })
    }

    /// Makes the connection appear to come from the interface it leaves by.
    pub(crate) fn masquerade(self) -> Self {
        self.expression("masq", |_| {})
    }

    fn meta(self, key: libc::c_int) -> Self {
        self.expression("meta", |a| {
            a.number(1, NFT_REG_1 as u32);
            a.number(2, key as u32);
        })
    }

    fn payload(self, base: libc::c_int, offset: u32, length: u32) -> Self {
        self.expression("payload", |a| {
            a.number(1, NFT_REG_1 as u32);
            a.number(2, base as u32);
            a.number(3, offset);
            a.number(4, length);
        })
    }

    fn connection(self, key: libc::c_int) -> Self {
        self.expression("ct", |a| {
            a.number(1, NFT_REG_1 as u32);
            a.number(2, key as u32);
        })
    }

    fn compare(self, operator: libc::c_int, value: &[u8]) -> Self {
        self.expression("cmp", |a| {
            a.number(1, NFT_REG_1 as u32);
            a.number(2, operator as u32);
            a.data(3, value);
        })
    }

    fn mask(self, mask: [u8; 4]) -> Self {
        self.expression("bitwise", |a| {
            a.number(1, NFT_REG_1 as u32);
            a.number(2, NFT_REG_1 as u32);
            a.number(3, 4);
            a.data(4, &mask);
            a.data(5, &[0; 4]);
        })
    }

    fn masked(self, network: Cidr, operator: libc::c_int) -> Self {
        self.mask(network.mask().to_be_bytes()).compare(operator, &network.first().to_be_bytes())
    }

    /// Connection fields are in the byte order of the host.
    fn any_bit(self, bits: u32) -> Self {
        self.mask(bits.to_ne_bytes()).compare(NFT_CMP_NEQ, &[0; 4])
    }

    fn verdict(self, code: libc::c_int) -> Self {
        self.expression("immediate", |a| {
            a.number(1, NFT_REG_VERDICT as u32);
            a.nest(2, |a| a.nest(2, |a| a.number(1, code as u32)));
        })
    }

    fn expression(mut self, name: &str, body: impl FnOnce(&mut Attributes<'_>)) -> Self {
        Attributes(&mut self.0).nest(1, |a| {
            a.text(1, name);
            a.nest(2, body);
        });
        self
    }
}

fn link_name(name: &str) -> [u8; IFNAME_BYTES] {
    let mut padded = [0; IFNAME_BYTES];
    // One byte stays zero: the kernel compares the terminated name.
    for (to, from) in padded[..IFNAME_BYTES - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    padded
}
