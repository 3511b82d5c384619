//! Destinations that a guest can and cannot reach.
//!
//! A packet is proven blocked without waiting: after it the guest sends a packet that passes, on
//! the same path; when that one has arrived, the blocked one would have arrived too.

use std::fs::{self, File};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use pandastack_net::{
    GATEWAY_MAC, GUEST_GATEWAY, GUEST_IP, GUEST_MAC, NetConfig, NetworkPolicy, SlotIndex, SlotPool,
};

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType};

use crate::guest::{Datagram, ETHERTYPE_IPV6, GUEST_PORT, Guest};
use crate::lab::{
    HOST_UPLINK, Internet, METADATA, PATIENCE, PORT, PRIVATE_SERVER, SERVER, config, in_lab, in_namespace,
    policy, sh, until,
};

/// Time to wait for a reply that should not arrive.
const SOON: Duration = Duration::from_millis(200);

pub struct LeasedSlot {
    pub guest: Guest,
    pub index: SlotIndex,
    pub address: Ipv4Addr,
}

pub async fn lease(pool: &Arc<SlotPool>, policy: &NetworkPolicy) -> LeasedSlot {
    let slot = pool.take(policy).await.unwrap();
    LeasedSlot { guest: Guest::new(slot.tap), index: slot.index, address: slot.address }
}

/// Sends a datagram to the public server and takes the answer: everything sent before it has been dealt with.
pub fn pass_control(guest: &mut Guest) {
    guest.send("control", (SERVER, PORT));
    let answer = guest.receive().expect("the public server must answer");
    assert_eq!((answer.from, answer.payload.as_str()), ((SERVER, PORT), "control"));
}

pub fn payloads(internet: &Internet) -> Vec<String> {
    internet.arrivals().into_iter().map(|(_, payload, _)| payload).collect()
}

#[test]
fn guest_traffic_leaves_with_the_hosts_address() {
    in_lab("guest_traffic_leaves_with_the_hosts_address", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let mut slot = lease(&pool, &NetworkPolicy::all()).await;
        assert_eq!(slot.guest.resolve(GUEST_GATEWAY), Some(GATEWAY_MAC));
        pass_control(&mut slot.guest);
        let (at, payload, from) = internet.arrivals().remove(0);
        assert_eq!((at, payload.as_str(), *from.ip()), (SERVER, "control", HOST_UPLINK));
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn packets_with_forged_sources_or_closed_destinations_are_dropped() {
    in_lab("packets_with_forged_sources_or_closed_destinations_are_dropped", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let mut slot = lease(&pool, &NetworkPolicy::all()).await;
        let guest = &mut slot.guest;
        guest.send("metadata", (METADATA, PORT));
        guest.send("private", (PRIVATE_SERVER, PORT));
        guest.send_as(Ipv4Addr::new(93, 184, 216, 77), GUEST_MAC, "forged public source", (SERVER, PORT));
        guest.send_as(slot.address, GUEST_MAC, "forged slot source", (SERVER, PORT));
        guest.send_as(Ipv4Addr::LOCALHOST, GUEST_MAC, "forged loopback source", (SERVER, PORT));
        guest.send_as(GUEST_IP, [0x06, 0, 0, 0, 0, 0x99], "forged hardware source", (SERVER, PORT));
        pass_control(guest);
        assert_eq!(payloads(&internet), ["control"]);
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn guests_cannot_reach_the_host_or_other_slots() {
    in_lab("guests_cannot_reach_the_host_or_other_slots", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let service = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        service.set_nonblocking(true).unwrap();
        // The widest policy there is must not open any of these.
        let widest = policy(r#"{"egress":"all","allow":["0.0.0.0/0"]}"#);
        let mut attacker = lease(&pool, &widest).await;
        let mut victim = lease(&pool, &widest).await;
        let host_side = Ipv4Addr::from(u32::from(attacker.address) - 1);
        let victim_host_side = Ipv4Addr::from(u32::from(victim.address) - 1);
        for host in [host_side, victim_host_side, HOST_UPLINK, GUEST_GATEWAY, Ipv4Addr::LOCALHOST] {
            attacker.guest.send("to the host", (host, PORT));
        }
        attacker.guest.send("to a slot", (victim.address, PORT));
        attacker.guest.send("to itself", (attacker.address, PORT));
        attacker.guest.send("to metadata", (METADATA, PORT));
        attacker.guest.send("to multicast", (Ipv4Addr::new(224, 0, 0, 251), 5353));
        pass_control(&mut attacker.guest);
        assert_eq!(payloads(&internet), ["control"]);
        assert!(service.recv_from(&mut [0; 64]).is_err(), "the host's service was reached");
        assert_eq!(victim.guest.received(), None, "another guest was reached");
        // Both checks above would also pass if no packet could arrive there at all.
        service.send_to(b"hello", (Ipv4Addr::LOCALHOST, PORT)).unwrap();
        assert!(service.recv_from(&mut [0; 64]).is_ok());
        service.send_to(b"hello", (victim.address, 80)).unwrap();
        assert_eq!(victim.guest.receive().unwrap().payload, "hello");
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn only_the_host_reaches_guest_ports() {
    in_lab("only_the_host_reaches_guest_ports", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        // Inbound works without any right to go out.
        let mut slot = lease(&pool, &NetworkPolicy::none()).await;
        internet.send("from the internet", (slot.address, 9000));
        let host = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        host.set_read_timeout(Some(PATIENCE)).unwrap();
        host.send_to(b"question", (slot.address, GUEST_PORT)).unwrap();
        let Datagram { from, to, payload, .. } = slot.guest.receive().expect("the host's datagram");
        assert_eq!((from.0, to, payload.as_str()), (GUEST_GATEWAY, (GUEST_IP, GUEST_PORT), "question"));
        slot.guest.send("answer", from);
        let mut buffer = [0; 64];
        let (length, sender) = host.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..length], sender), (&b"answer"[..], (slot.address, GUEST_PORT).into()));
        assert_eq!(slot.guest.received(), None);
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn policies_cannot_reach_beyond_the_operators_limit() {
    in_lab("policies_cannot_reach_beyond_the_operators_limit", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(NetConfig { reachable_private: Vec::new(), ..config(&directory) }).unwrap();
        let greedy = policy(r#"{"egress":"all","allow":["0.0.0.0/0","192.168.77.0/24","169.254.169.254"]}"#);
        let mut slot = lease(&pool, &greedy).await;
        let mut send = |what: &str| {
            slot.guest.send(what, (PRIVATE_SERVER, PORT));
            slot.guest.send(what, (METADATA, PORT));
            pass_control(&mut slot.guest);
        };
        send("from the start");
        pool.set_policy(slot.index, &NetworkPolicy::none()).await.unwrap();
        pool.set_policy(slot.index, &greedy).await.unwrap();
        send("by a change");
        assert_eq!(payloads(&internet), ["control", "control"]);
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn mail_ports_are_closed_unless_a_policy_names_them() {
    in_lab("mail_ports_are_closed_unless_a_policy_names_them", |directory| async move {
        let _internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let mut slot = lease(&pool, &NetworkPolicy::all()).await;
        // The server's kernel answers a packet that passes; our kernel answers a refused one, and
        // not with TCP.
        let connects = |guest: &mut Guest, from, is_open| {
            guest.connect(from, (SERVER, 25), if is_open { PATIENCE } else { SOON }).is_some()
        };
        assert!(!connects(&mut slot.guest, 4000, false), "open by default");
        for (from, text, is_open) in [
            (4001, r#"{"egress":"all","allow":["93.184.216.34:25"]}"#, true),
            (4002, r#"{"egress":"all","allow":["93.184.216.34:587"]}"#, false),
            (4003, r#"{"allow":["93.184.216.34"]}"#, false),
            (4004, r#"{"allow":["93.184.216.0/24:20-30"]}"#, true),
        ] {
            pool.set_policy(slot.index, &policy(text)).await.unwrap();
            assert_eq!(connects(&mut slot.guest, from, is_open), is_open, "{text}");
        }
        let mut first = lease(&pool, &policy(r#"{"allow":["93.184.216.34:25"]}"#)).await;
        assert!(connects(&mut first.guest, 4005, true), "from the start");
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn policy_changes_apply_to_open_flows() {
    in_lab("policy_changes_apply_to_open_flows", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let private_only = policy(r#"{"allow":["192.168.77.0/24"]}"#);
        let mut slot = lease(&pool, &private_only).await;
        slot.guest.send("closed", (SERVER, PORT));
        slot.guest.send("private", (PRIVATE_SERVER, PORT));
        assert_eq!(slot.guest.receive().unwrap().from, (PRIVATE_SERVER, PORT));
        pool.set_policy(slot.index, &NetworkPolicy::all()).await.unwrap();
        slot.guest.send("private again", (PRIVATE_SERVER, PORT));
        pass_control(&mut slot.guest);
        assert_eq!(payloads(&internet), ["private", "control"], "an open flow outlived its policy");
        pool.set_policy(slot.index, &NetworkPolicy::none()).await.unwrap();
        slot.guest.send("nothing may pass", (SERVER, PORT));
        pool.set_policy(slot.index, &NetworkPolicy::all()).await.unwrap();
        pass_control(&mut slot.guest);
        assert_eq!(payloads(&internet), ["control"]);
        pool.shutdown().await.unwrap();
    });
}

/// Hears every IPv6 packet that arrives at a link of the calling thread's namespace.
fn watch_ipv6() -> OwnedFd {
    let protocol = u16::from_be_bytes(ETHERTYPE_IPV6).to_be();
    let protocol = NonZeroU32::new(protocol.into()).map(Protocol::from_raw);
    rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, protocol).unwrap()
}

/// Packets received so far, without the headers of the frames.
fn received(watch: &OwnedFd) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut buffer = [0; 2048];
    while let Ok((length, _)) = rustix::net::recv(watch, &mut buffer[..], RecvFlags::DONTWAIT) {
        packets.push(buffer[14..length].to_vec());
    }
    packets
}

fn ipv6_packet(from: &str, to: &str, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let octets = |address: &str| address.parse::<Ipv6Addr>().unwrap().octets();
    let [high, low] = (payload.len() as u16).to_be_bytes();
    [&[0x60, 0, 0, 0, high, low, protocol, 255][..], &octets(from), &octets(to), payload].concat()
}

#[test]
fn ipv6_packets_are_dropped() {
    in_lab("ipv6_packets_are_dropped", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let mut slot = lease(&pool, &NetworkPolicy::all()).await;
        let namespace = File::open(directory.join(format!("netns/lab-{}", slot.index))).unwrap();
        let (inside, outside) = (in_namespace(&namespace, watch_ipv6), watch_ipv6());
        let datagram = [&[0x0f, 0xa0, 0x1b, 0x58, 0, 12, 0, 0][..], b"leak"].concat();
        let packets = [
            // Router solicitation to all routers: any IPv6 router on the link would answer.
            ipv6_packet("fe80::2", "ff02::2", 58, &[133, 0, 0x7b, 0xb9, 0, 0, 0, 0]),
            ipv6_packet("fe80::2", "fe80::1", 17, &datagram),
            ipv6_packet("fd00::2", "2001:db8::1", 17, &datagram),
        ];
        for packet in &packets {
            slot.guest.send_frame(GUEST_MAC, ETHERTYPE_IPV6, packet);
        }
        pass_control(&mut slot.guest);
        assert_eq!(payloads(&internet), ["control"]);
        assert_eq!(slot.guest.ipv6_frames, 0, "somebody speaks IPv6 to the guest");
        assert_eq!(received(&inside), packets, "the watch does not hear what arrives");
        let leaked: Vec<_> =
            received(&outside).into_iter().filter(|packet| packets.contains(packet)).collect();
        assert!(leaked.is_empty(), "IPv6 left the slot: {leaked:?}");
        let addresses = fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
        assert!(!addresses.contains("lab-"), "a slot link has an IPv6 address:\n{addresses}");
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn malformed_guest_packets_are_harmless() {
    in_lab("malformed_guest_packets_are_harmless", |directory| async move {
        let _internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let mut slot = lease(&pool, &NetworkPolicy::all()).await;
        for length in 0..200usize {
            let noise: Vec<u8> = (0..length).map(|at| (at * 31 + length * 7) as u8).collect();
            slot.guest.send_frame(GUEST_MAC, [0x08, (length % 7) as u8], &noise);
        }
        pass_control(&mut slot.guest);
        until("the pool is full again", || pool.stats().ready == 4).await;
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn host_rules_isolate_slots_without_namespace_rules() {
    in_lab("host_rules_isolate_slots_without_namespace_rules", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let service = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).unwrap();
        service.set_nonblocking(true).unwrap();
        let attacker = lease(&pool, &NetworkPolicy::all()).await;
        let victim = lease(&pool, &NetworkPolicy::all()).await;
        // Remove all rules in both namespaces, as an attacker who had broken out into them could.
        let open =
            |slot: &LeasedSlot| File::open(directory.join(format!("netns/lab-{}", slot.index))).unwrap();
        let [from, to] = [open(&attacker), open(&victim)];
        let bind = |namespace: &File, address: Ipv4Addr| {
            in_namespace(namespace, || {
                sh("nft flush ruleset");
                sh("ip link set lo up && ip addr add 10.201.99.2/32 dev lo");
                UdpSocket::bind((address, PORT)).unwrap()
            })
        };
        let (attack, target) = (bind(&from, attacker.address), bind(&to, victim.address));
        let forged = in_namespace(&from, || UdpSocket::bind(("10.201.99.2", PORT)).unwrap());
        target.set_nonblocking(true).unwrap();
        internet.send("from the internet", (victim.address, PORT));
        forged.send_to(b"forged", (SERVER, PORT)).unwrap();
        for address in
            [victim.address, METADATA, HOST_UPLINK, Ipv4Addr::from(u32::from(attacker.address) - 1)]
        {
            attack.send_to(b"attack", (address, PORT)).unwrap();
        }
        attack.send_to(b"control", (SERVER, PORT)).unwrap();
        attack.set_read_timeout(Some(PATIENCE)).unwrap();
        let (_, answered) = attack.recv_from(&mut [0; 64]).expect("the public server must answer");
        assert_eq!(answered, (SERVER, PORT).into());
        assert_eq!(payloads(&internet), ["control"]);
        assert!(service.recv_from(&mut [0; 64]).is_err(), "the host's service was reached");
        assert!(target.recv_from(&mut [0; 64]).is_err(), "another slot was reached");
        service.send_to(b"from the host", (victim.address, PORT)).unwrap();
        assert!(target.recv_from(&mut [0; 64]).is_ok(), "the host may reach a slot");
        pool.shutdown().await.unwrap();
    });
}
