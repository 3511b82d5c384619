//! Limits on one guest's new connections, open connections and traffic.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pandastack_net::{Denial, NetConfig, NetworkPolicy, SlotLimits, SlotPool};
use pandastack_types::agent_api::EgressLimit;
use tokio::sync::mpsc;

use crate::isolation::{LeasedSlot, lease, pass_control, payloads};
use crate::lab::{Internet, PATIENCE, PORT, PRIVATE_SERVER, SERVER, config, in_lab, policy};

#[test]
fn connections_and_bandwidth_are_limited() {
    in_lab("connections_and_bandwidth_are_limited", |directory| async move {
        let internet = Internet::connect();
        let mut few = config(&directory);
        few.limits.connections_max = 8;
        let pool = SlotPool::open(few).unwrap();
        let mut slot = lease(&pool, &NetworkPolicy::all()).await;
        for port in 1..=8 {
            slot.guest.send("a connection", (SERVER, 8000 + port));
        }
        slot.guest.send("one too many", (SERVER, PORT));
        // Another slot has its own count.
        let mut other = lease(&pool, &NetworkPolicy::all()).await;
        pass_control(&mut other.guest);
        assert_eq!(payloads(&internet), ["control"]);
        pool.shutdown().await.unwrap();
        drop(pool);

        let mut slow = config(&directory);
        slow.limits.bytes_per_second = Some(4096);
        let pool = SlotPool::open(slow).unwrap();
        let mut slot = lease(&pool, &NetworkPolicy::all()).await;
        let payload = "x".repeat(972);
        for _ in 0..40 {
            slot.guest.send(&payload, (SERVER, PORT));
        }
        while slot.guest.receive_within(Duration::from_millis(300)).is_some() {}
        let passed = payloads(&internet).len();
        assert!(
            (1..20).contains(&passed),
            "{passed} of 40 datagrams of 1000 bytes passed at 4096 bytes a second"
        );
        pool.shutdown().await.unwrap();
    });
}

/// A slot with little room for abuse, and the refusals of its pool.
async fn limited(
    directory: &Path,
    limits: SlotLimits,
) -> (Arc<SlotPool>, mpsc::Receiver<Denial>, LeasedSlot) {
    let pool = SlotPool::open(NetConfig { limits, ..config(directory) }).unwrap();
    let denials = pool.denials().unwrap();
    let slot = lease(&pool, &policy(r#"{"egress":"all","allow":["192.168.77.0/24"]}"#)).await;
    (pool, denials, slot)
}

/// The first refusal. The listener may start after the slot was taken: packets are sent until one is reported.
async fn first_refusal(denials: &mut mpsc::Receiver<Denial>, mut send: impl FnMut()) -> Denial {
    let deadline = Instant::now() + PATIENCE;
    loop {
        send();
        if let Ok(refusal) = tokio::time::timeout(Duration::from_millis(100), denials.recv()).await {
            return refusal.unwrap();
        }
        assert!(Instant::now() < deadline, "no refusal was reported");
    }
}

#[test]
fn per_minute_connection_and_destination_limits_are_reported() {
    in_lab("per_minute_connection_and_destination_limits_are_reported", |directory| async move {
        let internet = Internet::connect();
        let few = SlotLimits { connections_per_minute: Some(4), ..SlotLimits::default() };
        let (pool, mut denials, mut slot) = limited(&directory, few).await;
        pass_control(&mut slot.guest);
        for port in 1..=3 {
            slot.guest.send("a connection", (SERVER, 8000 + port));
        }
        let send = || slot.guest.send("one too many", (PRIVATE_SERVER, PORT));
        let denial = first_refusal(&mut denials, send).await;
        assert_eq!((denial.slot, denial.address), (slot.index, Some(PRIVATE_SERVER)));
        assert_eq!(denial.limit, Some(EgressLimit::ConnectionsPerMinute));
        // An existing connection continues, however many packets it sends.
        for _ in 0..8 {
            pass_control(&mut slot.guest);
        }
        assert_eq!(payloads(&internet), ["control"; 9]);
        // Another slot has its own count.
        pass_control(&mut lease(&pool, &NetworkPolicy::all()).await.guest);
        pool.shutdown().await.unwrap();
        drop(pool);

        let narrow = SlotLimits { destinations_per_minute: Some(1), ..SlotLimits::default() };
        let (pool, mut denials, mut slot) = limited(&directory, narrow).await;
        pass_control(&mut slot.guest);
        let send = || slot.guest.send("another address", (PRIVATE_SERVER, PORT));
        let denial = first_refusal(&mut denials, send).await;
        assert_eq!((denial.address, denial.port), (Some(PRIVATE_SERVER), Some(PORT)));
        assert_eq!(denial.limit, Some(EgressLimit::DestinationsPerMinute));
        for port in 1..=9 {
            slot.guest.send("the same address", (SERVER, 8000 + port));
        }
        pass_control(&mut slot.guest);
        assert_eq!(payloads(&internet), ["control"; 3]);
        pool.shutdown().await.unwrap();
    });
}
