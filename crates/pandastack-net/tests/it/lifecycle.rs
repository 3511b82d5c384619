//! Slots are created and destroyed, survive restarts, and leave nothing behind.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pandastack_net::{
    AdoptionResult, Cidr, NetError, NetworkPolicy, PoolStats, SLOTS_PER_HOST_MAX, SlotIndex, SlotPool,
};

use crate::guest::{GUEST_PORT, Guest};
use crate::lab::{Internet, PATIENCE, PORT, SERVER, config, in_lab, sh, until};

/// Counts of all kernel resources of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Census {
    links: usize,
    host_rule_lines: usize,
    namespaces: usize,
}

fn census(directory: &Path) -> Census {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let own = directory.join("netns/").to_str().unwrap().to_owned();
    Census {
        links: nix::net::if_::if_nameindex().unwrap().iter().count(),
        host_rule_lines: sh("nft list ruleset").lines().count(),
        namespaces: mounts.lines().filter(|line| line.contains(&own)).count(),
    }
}

#[test]
fn hundreds_of_slots_are_fully_cleaned_up() {
    in_lab("hundreds_of_slots_are_fully_cleaned_up", |directory| async move {
        const SLOTS: usize = 300;
        let before = census(&directory);
        let mut config = config(&directory);
        config.ready_target = 16;
        let pool = SlotPool::open(config).unwrap();
        let rules_of_host = census(&directory).host_rule_lines;
        let started = Instant::now();
        let mut leased = Vec::new();
        for _ in 0..SLOTS {
            leased.push(pool.take(&NetworkPolicy::all()).await.unwrap());
        }
        let make_per_second = SLOTS as f64 / started.elapsed().as_secs_f64();
        let distinct: BTreeSet<_> = leased.iter().map(|slot| (slot.index, slot.address)).collect();
        assert_eq!(distinct.len(), SLOTS, "a slot was leased twice");
        until("refilled", || pool.stats().ready == 16).await;
        let full = census(&directory);
        assert_eq!(full.host_rule_lines, rules_of_host, "host rules grow with slots");
        assert_eq!((full.links - before.links, full.namespaces), (SLOTS + 16, SLOTS + 16));
        let started = Instant::now();
        for slot in leased {
            assert!(pool.release(slot.index));
        }
        // Out of the kernel, not only off the list.
        until("all destroyed", || census(&directory).links == before.links + pool.stats().ready).await;
        eprintln!(
            "measured: {make_per_second:.0} slots made/s, {:.0} destroyed/s",
            SLOTS as f64 / started.elapsed().as_secs_f64()
        );
        pool.shutdown().await.unwrap();
        assert_eq!(census(&directory), before);
        assert!(!directory.join("netns").exists());
    });
}

/// Takes many minutes and gigabytes of kernel memory: runs with `cargo xtask test --full`.
#[test]
fn every_slot_of_a_host_is_created() {
    const NAME: &str = "every_slot_of_a_host_is_created";
    // The pool has one for each, and its own. Network cards belong to machines, so they are closed here.
    const DESCRIPTORS: u64 = SLOTS_PER_HOST_MAX as u64 + 1024;
    if std::env::var_os("PANDASTACK_TEST_FULL").is_none() {
        return eprintln!("skipped: {NAME}: takes many minutes; `cargo xtask test --full` runs it");
    }
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if most < DESCRIPTORS {
        return eprintln!(
            "skipped: {NAME}: needs {DESCRIPTORS} descriptors, and the limit is {most} (ulimit -Hn)"
        );
    }
    in_lab(NAME, |directory| async move {
        setrlimit(Resource::RLIMIT_NOFILE, DESCRIPTORS, most).unwrap();
        let before = census(&directory);
        let mut config = config(&directory);
        config.take_deadline = Duration::from_secs(60);
        let pool = SlotPool::open(config).unwrap();
        let started = Instant::now();
        let mut leased = Vec::new();
        while leased.len() < SLOTS_PER_HOST_MAX {
            let slot = pool.take(&NetworkPolicy::all()).await.unwrap();
            leased.push((slot.index, slot.address));
        }
        let made = started.elapsed();
        let distinct: BTreeSet<_> = leased.iter().collect();
        assert_eq!(distinct.len(), SLOTS_PER_HOST_MAX, "a slot was leased twice");
        assert_eq!(census(&directory).namespaces, SLOTS_PER_HOST_MAX);
        let refused = pool.take(&NetworkPolicy::all()).await.unwrap_err();
        assert!(matches!(refused, NetError::Exhausted { capacity: SLOTS_PER_HOST_MAX }), "{refused}");
        let started = Instant::now();
        pool.shutdown().await.unwrap();
        eprintln!(
            "measured: {SLOTS_PER_HOST_MAX} slots, {:.0} made/s, {:.0} destroyed/s",
            SLOTS_PER_HOST_MAX as f64 / made.as_secs_f64(),
            SLOTS_PER_HOST_MAX as f64 / started.elapsed().as_secs_f64()
        );
        assert_eq!(census(&directory), before);
    });
}

#[test]
fn taking_from_a_filled_pool_is_fast() {
    in_lab("taking_from_a_filled_pool_is_fast", |directory| async move {
        const SLOTS: usize = 64;
        for policy in [NetworkPolicy::all(), NetworkPolicy::none()] {
            let mut config = config(&directory);
            config.ready_target = SLOTS;
            let pool = SlotPool::open(config).unwrap();
            let began = Instant::now();
            until("filled", || pool.stats().ready == SLOTS).await;
            let making = began.elapsed() / u32::try_from(SLOTS).unwrap();
            let (mut took, mut slots) = (Vec::new(), Vec::new());
            for _ in 0..SLOTS / 2 {
                let started = Instant::now();
                let slot = pool.take(&policy).await.unwrap();
                took.push(started.elapsed());
                // Closing a tap takes a lock of the whole kernel.
                slots.push(slot);
            }
            took.sort();
            let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
            let egress = &policy.egress;
            eprintln!("measured: take with {egress:?}: p50 {median:?}, max {worst:?}; made in {making:?}");
            assert!(median < Duration::from_millis(1).max(making / 4), "{making:?}: {took:?}");
            drop(slots);
            pool.shutdown().await.unwrap();
        }
    });
}

#[test]
fn adopted_leases_survive_a_restart_and_other_slots_are_freed() {
    in_lab("adopted_leases_survive_a_restart_and_other_slots_are_freed", |directory| async move {
        let first = SlotPool::open(config(&directory)).unwrap();
        let kept = first.take(&NetworkPolicy::none()).await.unwrap();
        let lost = first.take(&NetworkPolicy::all()).await.unwrap();
        let broken = first.take(&NetworkPolicy::all()).await.unwrap();
        drop(first);
        sh(&format!("ip link del lab-{}", broken.index));

        let second = SlotPool::open(config(&directory)).unwrap();
        until("filled", || second.stats().ready == 4).await;
        assert!(second.stats().found >= 3, "slots of the first pool were not found");
        let never = SlotIndex(9999);
        let adopted = second
            .adopt(&[kept.index, broken.index, never].map(|index| (index, NetworkPolicy::none())))
            .await
            .unwrap();
        assert_eq!(adopted, AdoptionResult { kept: vec![kept.index], missing: vec![broken.index, never] });
        until("leftovers destroyed", || second.stats().doomed == 0 && second.stats().found == 0).await;
        assert!(!directory.join(format!("netns/lab-{}", lost.index)).exists());

        // The kept slot's machine has its tap open; another one can open it only after that machine
        // ended.
        assert!(second.open_tap(kept.index).await.is_err());
        drop(kept.tap);
        drop(Guest::new(second.open_tap(kept.index).await.unwrap()));
        assert!(matches!(second.open_tap(lost.index).await, Err(NetError::NotInUse(_))));
        for _ in 0..8 {
            assert_ne!(second.take(&NetworkPolicy::all()).await.unwrap().index, kept.index);
        }
        second.shutdown().await.unwrap();
    });
}

/// Connections in the host's table that an address began or took.
fn connections_of(address: Ipv4Addr) -> usize {
    let table = fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
    let ends = [format!("src={address} "), format!("dst={address} ")];
    table.lines().filter(|line| ends.iter().any(|end| line.contains(end))).count()
}

#[test]
fn a_released_slot_leaves_no_connections() {
    const NAME: &str = "a_released_slot_leaves_no_connections";
    if !Path::new("/proc/thread-self/net/nf_conntrack").exists() {
        return eprintln!("skipped: {NAME}: needs a kernel with CONFIG_NF_CONNTRACK_PROCFS");
    }
    in_lab(NAME, |directory| async move {
        let _internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let mut leased = Vec::new();
        for _ in 0..2 {
            let slot = pool.take(&NetworkPolicy::all()).await.unwrap();
            let mut guest = Guest::new(slot.tap);
            for port in [5001, 5002] {
                guest.connect(port, (SERVER, PORT), PATIENCE).expect("the server takes it");
            }
            guest.send("a flow", (SERVER, PORT));
            guest.receive().expect("the server answers");
            let host = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            host.send_to(b"of the host", (slot.address, GUEST_PORT)).unwrap();
            guest.receive().expect("the host's datagram");
            assert_eq!(connections_of(slot.address), 4);
            leased.push((slot.index, slot.address, guest));
        }
        let (index, address, guest) = leased.remove(0);
        drop(guest);
        assert!(pool.release(index));
        until("its connections are forgotten", || connections_of(address) == 0).await;
        assert_eq!(connections_of(leased[0].1), 4, "another slot's are not");
        pool.shutdown().await.unwrap();
        assert_eq!(connections_of(leased[0].1), 0);
    });
}

#[test]
fn a_crash_during_slot_creation_is_cleaned_up() {
    in_lab("a_crash_during_slot_creation_is_cleaned_up", |directory| async move {
        let before = census(&directory);
        sh("ip link add lab-3 type veth peer name other");
        fs::create_dir(directory.join("netns")).unwrap();
        fs::write(directory.join("netns/lab-5"), "").unwrap();
        let pool = SlotPool::open(config(&directory)).unwrap();
        assert_eq!(pool.stats().found, 2);
        pool.adopt(&[]).await.unwrap();
        until("destroyed", || pool.stats().doomed == 0 && pool.stats().ready == 4).await;
        pool.shutdown().await.unwrap();
        assert_eq!(census(&directory), before);
    });
}

#[test]
fn a_full_subnet_is_reported_and_recovers() {
    in_lab("a_full_subnet_is_reported_and_recovers", |directory| async move {
        let mut config = config(&directory);
        config.subnet = Cidr::literal([10, 201, 8, 0], 28);
        let pool = SlotPool::open(config).unwrap();
        let mut leased = Vec::new();
        for _ in 0..4 {
            leased.push(pool.take(&NetworkPolicy::all()).await.unwrap());
        }
        let refused = pool.take(&NetworkPolicy::all()).await.unwrap_err();
        assert!(matches!(refused, NetError::Exhausted { capacity: 4 }), "{refused}");
        assert!(refused.is_capacity());
        let freed = leased.pop().unwrap();
        let index = freed.index;
        drop(freed);
        assert!(pool.release(index));
        assert!(!pool.release(index), "a second release must not free somebody else's slot");
        assert_eq!(pool.take(&NetworkPolicy::all()).await.unwrap().index, index);
        pool.shutdown().await.unwrap();
        assert!(matches!(pool.take(&NetworkPolicy::all()).await, Err(NetError::Closed)));
    });
}

#[test]
fn two_agents_on_a_host_need_distinct_prefixes_and_subnets() {
    in_lab("two_agents_on_a_host_need_distinct_prefixes_and_subnets", |directory| async move {
        let first = SlotPool::open(config(&directory)).unwrap();
        until("filled", || first.stats().ready == 4).await;
        let refused = SlotPool::open(config(&directory)).unwrap_err();
        assert!(matches!(refused, NetError::PrefixTaken { .. }), "{refused}");
        let mut other = config(&directory.join("b"));
        other.name_prefix = "labb".to_owned();
        let refused = SlotPool::open(other.clone()).unwrap_err();
        assert!(matches!(refused, NetError::SubnetTaken { .. }), "{refused}");
        other.subnet = Cidr::literal([10, 202, 0, 0], 16);
        let second = SlotPool::open(other).unwrap();
        second.take(&NetworkPolicy::all()).await.unwrap();
        second.shutdown().await.unwrap();
        let PoolStats { ready, found, .. } = first.stats();
        assert_eq!((ready, found), (4, 0));
        first.take(&NetworkPolicy::all()).await.unwrap();
        first.shutdown().await.unwrap();
    });
}

#[test]
fn parallel_slot_requests_are_all_served() {
    in_lab("parallel_slot_requests_are_all_served", |directory| async move {
        let pool = SlotPool::open(config(&directory)).unwrap();
        let takers: Vec<_> = (0..20)
            .map(|_| {
                let pool = pool.clone();
                tokio::spawn(async move {
                    let slot = pool.take(&NetworkPolicy::none()).await.unwrap();
                    assert!(pool.release(slot.index));
                    slot.index
                })
            })
            .collect();
        let mut indexes = BTreeSet::new();
        for taker in takers {
            indexes.insert(taker.await.unwrap());
        }
        assert_eq!(indexes.len(), 20);
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn the_probe_passes_where_slots_work() {
    in_lab("the_probe_passes_where_slots_work", |_| async {
        let before = sh("nft list ruleset");
        for check in pandastack_net::probe() {
            let about_this_host = check.name == "name resolution for guests";
            assert!(check.ok || about_this_host, "{}: {}", check.name, check.detail);
            assert_eq!(check.ok, check.remedy.is_none());
        }
        assert_eq!(sh("nft list ruleset"), before, "the probe left rules behind");
    });
}
