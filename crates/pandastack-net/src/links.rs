//! Links, addresses, neighbours and routes of a slot, by route netlink.
//!
//! Neighbour entries are permanent: no first packet waits for ARP, a guest cannot poison them, and they do
//! not count against the limit of the host's neighbour table, which 16,384 slots would exceed.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, State,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::error::{NetError, Result};
use crate::netlink::{ACK_DEADLINE, Messages, Netlink, Subsystem};

const NLM_F_REQUEST: u16 = 0x001;
const NLM_F_ACK: u16 = 0x004;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;

/// One end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VethEnd<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: [u8; 6],
}

/// Requests to the calling thread's namespace, sent together. Unlike nftables batches they are not
/// atomic: after an error, the caller removes the links.
#[derive(Debug, Default)]
pub(crate) struct LinkBatch(Messages);

impl LinkBatch {
    /// A veth pair with one end here and the other, down, in `peer_namespace`.
    pub(crate) fn add_veth(&mut self, here: VethEnd<'_>, peer: VethEnd<'_>, peer_namespace: BorrowedFd<'_>) {
        let mut peer_link = link(peer);
        peer_link.attributes.push(LinkAttribute::NetNsFd(peer_namespace.as_fd().as_raw_fd()));
        let mut message = link(here);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer_link))),
        ]));
        self.push(
            RouteNetlinkMessage::NewLink(message),
            NLM_F_CREATE | NLM_F_EXCL,
            format!("adding veth {}", peer.name),
        );
    }

    pub(crate) fn set_up(&mut self, link_index: u32) {
        let mut message = LinkMessage::default();
        message.header.index = link_index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.push(RouteNetlinkMessage::SetLink(message), 0, "setting a link up".to_owned());
    }

    pub(crate) fn set_down(&mut self, link_index: u32) {
        let mut message = LinkMessage::default();
        message.header.index = link_index;
        message.header.change_mask = LinkFlags::Up;
        self.push(RouteNetlinkMessage::SetLink(message), 0, "setting a link down".to_owned());
    }

    pub(crate) fn set_mac(&mut self, link_index: u32, mac: [u8; 6]) {
        let mut message = LinkMessage::default();
        message.header.index = link_index;
        message.attributes.push(LinkAttribute::Address(mac.to_vec()));
        self.push(RouteNetlinkMessage::SetLink(message), 0, "setting a hardware address".to_owned());
    }

    pub(crate) fn delete(&mut self, name: &str) {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.push(RouteNetlinkMessage::DelLink(message), 0, format!("deleting link {name}"));
    }

    pub(crate) fn add_address(&mut self, link_index: u32, address: Ipv4Addr, prefix: u8) {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = prefix;
        message.header.index = link_index;
        let address_ip = IpAddr::V4(address);
        message.attributes = vec![AddressAttribute::Local(address_ip), AddressAttribute::Address(address_ip)];
        self.push(
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_REPLACE,
            format!("adding address {address}"),
        );
    }

    pub(crate) fn add_neighbour(&mut self, link_index: u32, address: Ipv4Addr, mac: [u8; 6]) {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = link_index;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        let label = format!("adding neighbour {address}");
        self.push(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE, label);
    }

    pub(crate) fn add_default_route(&mut self, gateway: Ipv4Addr) {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Gateway(RouteAddress::Inet(gateway)));
        self.push(
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_REPLACE,
            format!("adding route via {gateway}"),
        );
    }

    /// Sends everything to the calling thread's namespace and stops at the first refusal.
    pub(crate) fn commit(self, target: &str) -> Result<()> {
        let acked = self.0.next_sequence() - 1;
        Netlink::open(Subsystem::Route)?.transact(&self.0, acked, target)
    }

    fn push(&mut self, message: RouteNetlinkMessage, flags: u16, label: String) {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        header.sequence_number = self.0.next_sequence();
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let start = self.0.bytes.len();
        self.0.bytes.resize(start + packet.buffer_len().next_multiple_of(4), 0);
        packet.serialize(&mut self.0.bytes[start..start + packet.buffer_len()]);
        self.0.labels.push(label);
    }
}

/// Changes of the links of one namespace, from the moment it was opened.
#[derive(Debug)]
pub(crate) struct LinkEvents(Netlink);

impl LinkEvents {
    /// Listens in the calling thread's namespace.
    pub(crate) fn open() -> Result<Self> {
        Netlink::open_link_events().map(LinkEvents)
    }

    /// Waits until a link passes packets. Being up with a carrier is not enough: a veth end that
    /// came up before its peer drops everything until a kernel worker attaches its queue, which a
    /// busy host delays by up to a second. The running flag does not help either: it is also set
    /// while the operational state is unknown.
    pub(crate) fn wait_until_running(&self, link_index: u32, name: &str) -> Result<()> {
        let is_running = |message: &RouteNetlinkMessage| {
            matches!(message, RouteNetlinkMessage::NewLink(link) if link.header.index == link_index
                && link.attributes.contains(&LinkAttribute::OperState(State::Up)))
        };
        while !self.next(ACK_DEADLINE, name)?.as_ref().is_some_and(is_running) {}
        Ok(())
    }

    /// Waits until none of these links exists; returns the links that still exist at the deadline.
    pub(crate) fn wait_until_gone(&self, mut names: Vec<String>, patience: Duration) -> Vec<String> {
        let deadline = Instant::now() + patience;
        loop {
            names.retain(|name| index_of(name).is_ok());
            let left = deadline.saturating_duration_since(Instant::now());
            // An error counts as the deadline: the caller removes the remaining links.
            if names.is_empty() || left.is_zero() || self.next(left, "slots").is_err() {
                return names;
            }
        }
    }

    /// The next change, or `None` for one that cannot be read.
    fn next(&self, patience: Duration, name: &str) -> Result<Option<RouteNetlinkMessage>> {
        let event =
            self.0.receive_within(patience).map_err(NetError::io("waiting for a link event", name))?;
        match NetlinkMessage::<RouteNetlinkMessage>::deserialize(&event) {
            Ok(NetlinkMessage { payload: NetlinkPayload::InnerMessage(message), .. }) => Ok(Some(message)),
            _ => Ok(None),
        }
    }
}

/// Index of a link in the calling thread's namespace.
pub(crate) fn index_of(name: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(name).map_err(NetError::io("looking up link", name))
}

/// Removes a link of the calling thread's namespace. Harmless if it does not exist.
pub(crate) fn remove(name: &str) -> Result<()> {
    let mut batch = LinkBatch::default();
    batch.delete(name);
    match batch.commit(name) {
        Err(NetError::Netlink { reason, .. }) if reason.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        outcome => outcome,
    }
}

fn link(end: VethEnd<'_>) -> LinkMessage {
    let mut message = LinkMessage::default();
    // An address chosen here also keeps udev from giving the link one of its own.
    message.attributes =
        vec![LinkAttribute::IfName(end.name.to_owned()), LinkAttribute::Address(end.mac.to_vec())];
    message
}
