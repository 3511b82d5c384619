//! One rule: conditions and a verdict, in the order in which the `nft` program prints them.
//!
//! Every condition loads a field into register 1 (the second field of a key into the part behind it) and compares it there;
//! a rule whose comparison fails ends.

mod meters;

use std::net::Ipv4Addr;

use libc::{
    NFT_CMP_EQ, NFT_CMP_NEQ, NFT_CT_DIRECTION, NFT_CT_MARK, NFT_CT_STATE, NFT_CT_STATUS, NFT_META_IIFNAME,
    NFT_META_L4PROTO, NFT_META_NFPROTO, NFT_META_OIFNAME, NFT_NAT_DNAT, NFT_PAYLOAD_LL_HEADER,
    NFT_PAYLOAD_NETWORK_HEADER, NFT_PAYLOAD_TRANSPORT_HEADER, NFT_REG_1, NFT_REG_VERDICT, NFT_REG32_01,
};
use pandastack_types::network::{Cidr, PortRange};

use super::{Attributes, SetName};

const IFNAME_BYTES: usize = 16;

/// Connection states, as in `ct state`.
pub(crate) const CT_ESTABLISHED_OR_RELATED: u32 = 2 | 4;
pub(crate) const CT_NEW: u32 = 8;

/// Connection status bit: the destination was translated.
const IPS_DST_NAT: u32 = 1 << 5;

/// Inside a range, both ends included.
const NFT_RANGE_EQ: u32 = 0;

/// Conditions, then a verdict.
#[derive(Debug, Default)]
pub(crate) struct Rule(pub(super) Vec<u8>);

impl Rule {
    pub(crate) fn new() -> Self {
        Rule::default()
    }

    /// Matches packets received on exactly this interface.
    pub(crate) fn input_link(self, name: &str) -> Self {
        self.meta(NFT_META_IIFNAME).compare(NFT_CMP_EQ, &link_name(name))
    }

    /// Matches packets received on an interface without this name prefix.
    pub(crate) fn input_links_not(self, prefix: &str) -> Self {
        self.meta(NFT_META_IIFNAME).compare(NFT_CMP_NEQ, prefix.as_bytes())
    }

    /// Leaves on exactly this interface.
    pub(crate) fn output_link(self, name: &str) -> Self {
        self.meta(NFT_META_OIFNAME).compare(NFT_CMP_EQ, &link_name(name))
    }

    /// Matches packets received on an interface with this name prefix.
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

    /// Matches IPv4. Needed before any condition on addresses: the table sees both families.
    pub(crate) fn ipv4(self) -> Self {
        self.meta(NFT_META_NFPROTO).compare(NFT_CMP_EQ, &[libc::NFPROTO_IPV4 as u8])
    }

    /// Matches IPv6.
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

    pub(crate) fn destination_not(self, address: Ipv4Addr) -> Self {
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, 16, 4).compare(NFT_CMP_NEQ, &address.octets())
    }

    /// Matches if destination address and port (of TCP or UDP, matched before) are in a set of
    /// boxes.
    pub(crate) fn destination_and_port_in_set(self, set: SetName) -> Self {
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, 16, 4)
            .payload_into(NFT_REG32_01, NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)
            .lookup(set)
    }

    /// Destination address, with a port given here, is in a set of boxes.
    pub(crate) fn destination_in_set(self, set: SetName, port: u16) -> Self {
        let [high, low] = port.to_be_bytes();
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, 16, 4).load(NFT_REG32_01, &[high, low, 0, 0]).lookup(set)
    }

    /// Destination address is in an expiring set, under this class.
    pub(crate) fn destination_in_class(self, set: SetName, class: u32) -> Self {
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, 16, 4).load(NFT_REG32_01, &class.to_ne_bytes()).lookup(set)
    }

    /// Matches if a set that serves as a switch contains its one key.
    pub(crate) fn switched_on(self, set: SetName) -> Self {
        self.load(NFT_REG_1, &[0; 4]).load(NFT_REG32_01, &[0; 4]).lookup(set)
    }

    fn lookup(self, set: SetName) -> Self {
        self.expression("lookup", |a| {
            a.text(1, set.0);
            a.number(2, NFT_REG_1 as u32);
            a.number(4, set.1);
        })
    }

    pub(crate) fn hardware_source_not(self, mac: [u8; 6]) -> Self {
        self.payload(NFT_PAYLOAD_LL_HEADER, 6, 6).compare(NFT_CMP_NEQ, &mac)
    }

    /// Matches TCP or UDP (`protocol`) to this port.
    pub(crate) fn destination_port(self, protocol: libc::c_int, port: u16) -> Self {
        self.meta(NFT_META_L4PROTO)
            .compare(NFT_CMP_EQ, &[protocol as u8])
            .payload(NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2)
            .compare(NFT_CMP_EQ, &port.to_be_bytes())
    }

    /// Matches this protocol.
    pub(crate) fn protocol(self, protocol: libc::c_int) -> Self {
        self.meta(NFT_META_L4PROTO).compare(NFT_CMP_EQ, &[protocol as u8])
    }

    /// Matches all other protocols.
    pub(crate) fn protocol_not(self, protocol: libc::c_int) -> Self {
        self.meta(NFT_META_L4PROTO).compare(NFT_CMP_NEQ, &[protocol as u8])
    }

    /// Matches the kernel's answer to a connection to a closed port: a reset without a sequence
    /// number, which a reset of an existing connection has.
    pub(crate) fn refuses_connection(self) -> Self {
        const RESET: [u8; 4] = [0, 0x04, 0, 0];
        self.protocol(libc::IPPROTO_TCP)
            .payload(NFT_PAYLOAD_TRANSPORT_HEADER, 12, 4)
            .mask(RESET)
            .compare(NFT_CMP_EQ, &RESET)
            .payload(NFT_PAYLOAD_TRANSPORT_HEADER, 4, 4)
            .compare(NFT_CMP_EQ, &[0; 4])
    }

    /// Matches the ICMP message that nothing receives a datagram.
    pub(crate) fn refuses_datagram(self) -> Self {
        const DESTINATION_UNREACHABLE: u8 = 3;
        const PORT: u8 = 3;
        self.protocol(libc::IPPROTO_ICMP)
            .payload(NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2)
            .compare(NFT_CMP_EQ, &[DESTINATION_UNREACHABLE, PORT])
    }

    /// Matches packets to one of these ports, of TCP or UDP, matched before.
    pub(crate) fn destination_port_in(self, ports: PortRange) -> Self {
        self.payload(NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2).expression("range", |a| {
            a.number(1, NFT_REG_1 as u32);
            a.number(2, NFT_RANGE_EQ);
            a.data(3, &ports.first.to_be_bytes());
            a.data(4, &ports.last.to_be_bytes());
        })
    }

    /// The connection carries this mark.
    pub(crate) fn connection_mark(self, mark: u32) -> Self {
        self.connection(NFT_CT_MARK).compare(NFT_CMP_EQ, &mark.to_ne_bytes())
    }

    /// Marks the connection and continues.
    pub(crate) fn mark_connection(self, mark: u32) -> Self {
        self.load(NFT_REG_1, &mark.to_ne_bytes()).expression("ct", |a| {
            a.number(2, NFT_CT_MARK as u32);
            a.number(4, NFT_REG_1 as u32);
        })
    }

    /// The connection is in one of these states.
    pub(crate) fn connection_state(self, states: u32) -> Self {
        self.connection(NFT_CT_STATE).any_bit(states)
    }

    /// Matches packets in the reply direction.
    pub(crate) fn reply(self) -> Self {
        self.connection(NFT_CT_DIRECTION).compare(NFT_CMP_EQ, &[1])
    }

    /// The connection's destination was translated by a rule of the same namespace.
    pub(crate) fn redirected(self) -> Self {
        self.connection(NFT_CT_STATUS).any_bit(IPS_DST_NAT)
    }

    /// Matches a forged source: a reply to it would not leave by the interface that the packet came
    /// from.
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

    /// Rejects the packet with a reply to its sender, so that the sender's program fails at once.
    pub(crate) fn reject(self) -> Self {
        const ICMP_UNREACHABLE: u32 = 2;
        const ADMINISTRATIVELY_PROHIBITED: u8 = 3;
        self.expression("reject", |a| {
            a.number(1, ICMP_UNREACHABLE);
            a.bytes(2, &[ADMINISTRATIVELY_PROHIBITED]);
        })
    }

    /// Calls another chain and returns at its end.
    pub(crate) fn jump(self, chain: &str) -> Self {
        self.expression("immediate", |a| {
            a.number(1, NFT_REG_VERDICT as u32);
            a.nest(2, |a| {
                a.nest(2, |a| {
                    a.number(1, libc::NFT_JUMP as u32);
                    a.text(2, chain);
                });
            });
        })
    }

    /// Sends the connection to a port of this namespace itself.
    pub(crate) fn redirect_to_port(self, port: u16) -> Self {
        self.load(NFT_REG_1, &port.to_be_bytes()).expression("redir", |a| a.number(1, NFT_REG_1 as u32))
    }

    /// Sends the connection to another address, port unchanged.
    pub(crate) fn redirect_to(self, address: Ipv4Addr) -> Self {
        self.load(NFT_REG_1, &address.octets()).expression("nat", |a| {
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
        self.payload_into(NFT_REG_1, base, offset, length)
    }

    fn payload_into(self, register: libc::c_int, base: libc::c_int, offset: u32, length: u32) -> Self {
        self.expression("payload", |a| {
            a.number(1, register as u32);
            a.number(2, base as u32);
            a.number(3, offset);
            a.number(4, length);
        })
    }

    fn load(self, register: libc::c_int, value: &[u8]) -> Self {
        self.expression("immediate", |a| {
            a.number(1, register as u32);
            a.data(2, value);
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
        self.mask(network.mask().octets()).compare(operator, &network.first().octets())
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
    // The last byte stays zero: the kernel compares the terminated name.
    for (to, from) in padded[..IFNAME_BYTES - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    padded
}
