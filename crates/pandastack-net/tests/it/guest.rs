//! A guest in user space: enough Ethernet, IP and UDP to talk and to forge.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use pandastack_net::{GATEWAY_MAC, GUEST_IP, GUEST_MAC, TAP_VNET_HEADER_BYTES};

use crate::lab::PATIENCE;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
pub const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];

/// Source port of everything the guest sends.
pub const GUEST_PORT: u16 = 4000;

pub struct Guest {
    card: File,
    /// Number of IPv6 frames received while waiting for others.
    pub ipv6_frames: usize,
}

/// A datagram as the guest sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    pub from: (Ipv4Addr, u16),
    pub to: (Ipv4Addr, u16),
    pub payload: String,
    pub bytes: Vec<u8>,
}

impl Guest {
    pub fn new(tap: OwnedFd) -> Self {
        Guest { card: File::from(tap), ipv6_frames: 0 }
    }

    /// An honest datagram.
    pub fn send(&mut self, payload: &str, to: (Ipv4Addr, u16)) {
        self.send_as(GUEST_IP, GUEST_MAC, payload, to);
    }

    /// An honest datagram of any bytes.
    pub fn send_bytes(&mut self, payload: &[u8], to: (Ipv4Addr, u16)) {
        self.send_frame(GUEST_MAC, ETHERTYPE_IPV4, &udp_packet((GUEST_IP, GUEST_PORT), to, payload));
    }

    /// A datagram with any source.
    pub fn send_as(&mut self, from: Ipv4Addr, mac: [u8; 6], payload: &str, to: (Ipv4Addr, u16)) {
        let packet = udp_packet((from, GUEST_PORT), to, payload.as_bytes());
        self.send_frame(mac, ETHERTYPE_IPV4, &packet);
    }

    pub fn send_frame(&mut self, mac: [u8; 6], ethertype: [u8; 2], packet: &[u8]) {
        let header = [0; TAP_VNET_HEADER_BYTES as usize];
        let frame = [&header[..], &GATEWAY_MAC, &mac, &ethertype, packet].concat();
        assert_eq!(self.card.write(&frame).unwrap(), frame.len());
    }

    /// Queries the hardware address of `target`.
    pub fn resolve(&mut self, target: Ipv4Addr) -> Option<[u8; 6]> {
        let head = [0, 1, 8, 0, 6, 4, 0, 1];
        let request = [&head[..], &GUEST_MAC, &GUEST_IP.octets(), &[0; 6], &target.octets()].concat();
        self.send_frame(GUEST_MAC, ETHERTYPE_ARP, &request);
        self.next_frame(PATIENCE, |frame| {
            (frame[12..14] == ETHERTYPE_ARP && frame[21] == 2 && frame[28..32] == target.octets())
                .then(|| frame[22..28].try_into().unwrap())
        })
    }

    /// The next datagram, within the test's patience.
    pub fn receive(&mut self) -> Option<Datagram> {
        self.next_frame(PATIENCE, parse_datagram)
    }

    /// The next datagram, if one arrives in time.
    pub fn receive_within(&mut self, patience: Duration) -> Option<Datagram> {
        self.next_frame(patience, parse_datagram)
    }

    /// Starts a TCP connection from this port; returns the flags of the first reply that arrives in
    /// time.
    pub fn connect(&mut self, port: u16, to: (Ipv4Addr, u16), patience: Duration) -> Option<u8> {
        self.send_frame(GUEST_MAC, ETHERTYPE_IPV4, &syn_packet((GUEST_IP, port), to));
        self.next_frame(patience, |frame| {
            let packet =
                frame.get(14..).filter(|packet| frame[12..14] == ETHERTYPE_IPV4 && packet[9] == 6)?;
            let is_answer = packet[12..16] == to.0.octets() && packet[22..24] == port.to_be_bytes();
            is_answer.then(|| packet[33])
        })
    }

    /// Returns whether an ICMP message reports that a datagram was refused.
    pub fn is_refused(&mut self, patience: Duration) -> bool {
        let refused = |frame: &[u8]| (frame[12..14] == ETHERTYPE_IPV4 && frame[23] == 1).then_some(());
        self.next_frame(patience, refused).is_some()
    }

    /// A datagram that is already there.
    pub fn received(&mut self) -> Option<Datagram> {
        self.next_frame(Duration::ZERO, parse_datagram)
    }

    fn next_frame<T>(&mut self, patience: Duration, mut pick: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + patience;
        let mut buffer = [0; 2048];
        loop {
            match self.card.read(&mut buffer) {
                Ok(length) => {
                    let frame = &buffer[TAP_VNET_HEADER_BYTES as usize..length];
                    self.ipv6_frames += usize::from(frame[12..14] == ETHERTYPE_IPV6);
                    if let Some(picked) = pick(frame) {
                        return Some(picked);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left =
                        deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
                    let mut polled = [rustix::event::PollFd::new(&self.card, rustix::event::PollFlags::IN)];
                    let timeout = rustix::event::Timespec {
                        tv_sec: left.as_secs() as i64,
                        tv_nsec: left.subsec_nanos().into(),
                    };
                    rustix::event::poll(&mut polled, Some(&timeout)).unwrap();
                }
                Err(error) => panic!("reading the tap: {error}"),
            }
        }
    }
}

fn parse_datagram(frame: &[u8]) -> Option<Datagram> {
    let packet = frame.get(14..).filter(|packet| frame[12..14] == ETHERTYPE_IPV4 && packet[9] == 17)?;
    let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&packet[at..at + 4]).unwrap());
    let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let length = usize::from(port(24));
    Some(Datagram {
        from: (address(12), port(20)),
        to: (address(16), port(22)),
        payload: String::from_utf8_lossy(&packet[28..20 + length]).into_owned(),
        bytes: packet[28..20 + length].to_vec(),
    })
}

/// The checksum of IP and TCP, over pairs of bytes; the length is even.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

fn ip_header(protocol: u8, from: Ipv4Addr, to: Ipv4Addr, length: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    packet
}

fn syn_packet(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Vec<u8> {
    const HEADER_BYTES: u16 = 20;
    let mut segment = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    // Sequence 1000, nothing acknowledged, five words of header, SYN, a window.
    segment.extend([0, 0, 3, 232, 0, 0, 0, 0, 0x50, 0x02, 0x20, 0, 0, 0, 0, 0]);
    let [high, low] = HEADER_BYTES.to_be_bytes();
    let pseudo = [&from.0.octets()[..], &to.0.octets(), &[0, 6, high, low], &segment].concat();
    segment[16..18].copy_from_slice(&checksum(&pseudo));
    let mut packet = ip_header(6, from.0, to.0, 20 + HEADER_BYTES);
    packet.extend(segment);
    packet
}

pub fn udp_packet(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let length = (28 + payload.len()) as u16;
    let mut packet = ip_header(17, from.0, to.0, length);
    packet.extend(from.1.to_be_bytes());
    packet.extend(to.1.to_be_bytes());
    packet.extend((length - 20).to_be_bytes());
    // Zero: no checksum, which UDP over IPv4 allows.
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}
