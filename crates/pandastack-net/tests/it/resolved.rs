//! Resolved names follow a guest from slot to slot.

use std::net::Ipv4Addr;
use std::time::{SystemTime, UNIX_EPOCH};

use pandastack_net::{NetworkPolicy, RESOLVED_MAX, Resolved, Slot, SlotPool};

use crate::guest::Guest;
use crate::lab::{Internet, PATIENCE, PORT, SERVER, config, in_lab, policy, sh};
use crate::names::{SYN_ACK, arrives, passes, resolve};

/// A new slot whose guest keeps using names that it resolved elsewhere.
async fn guest_in_new_slot(pool: &SlotPool, policy: &NetworkPolicy, resolved: &[Resolved]) -> Guest {
    let Slot { index, tap, .. } = pool.take(policy).await.unwrap();
    pool.restore_resolved(index, resolved).await.unwrap();
    Guest::new(tap)
}

#[test]
fn resolved_names_carry_over_to_another_slot() {
    in_lab("resolved_names_carry_over_to_another_slot", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let by_name = policy(r#"{"allow":["a.com:443,7000","b.com:22"]}"#);
        let slot = pool.take(&by_name).await.unwrap();
        let mut guest = Guest::new(slot.tap);
        assert_eq!(resolve(&mut guest, "a.com."), Ok(vec![SERVER]));
        // The same address, on other ports.
        assert_eq!(resolve(&mut guest, "b.com."), Ok(vec![SERVER]));
        let resolved = pool.resolved(slot.index).await.unwrap();
        let mut names: Vec<_> = resolved.iter().map(|one| (one.name.as_str(), one.address)).collect();
        names.sort_unstable();
        assert_eq!(names, [("a.com", SERVER), ("b.com", SERVER)]);
        assert!(pool.release(slot.index));

        let mut fresh = guest_in_new_slot(&pool, &by_name, &[]).await;
        assert!(!passes(&mut fresh, &internet, "never resolved", (SERVER, PORT)));
        let mut next = guest_in_new_slot(&pool, &by_name, &resolved).await;
        assert!(arrives(&mut next, &internet, "resolved elsewhere", (SERVER, PORT)));
        assert!(!passes(&mut next, &internet, "another port", (SERVER, PORT + 1)));
        // Web connections still go to the proxy, which checks their host name.
        assert_eq!(next.connect(5001, (SERVER, 443), PATIENCE), Some(SYN_ACK));
        // The guest can resolve again as ever.
        assert_eq!(resolve(&mut next, "a.com."), Ok(vec![SERVER]));
        assert!(arrives(&mut next, &internet, "renewed", (SERVER, PORT)));

        let mut narrowed = guest_in_new_slot(&pool, &policy(r#"{"allow":["b.com:22"]}"#), &resolved).await;
        assert!(!passes(&mut narrowed, &internet, "no longer allowed", (SERVER, PORT)));
        let mut swapped = guest_in_new_slot(&pool, &policy(r#"{"allow":["b.com:7000"]}"#), &resolved).await;
        assert!(arrives(&mut swapped, &internet, "allowed there now", (SERVER, PORT)));
        let past: Vec<_> = resolved.iter().map(|one| Resolved { open_until_ms: 1, ..one.clone() }).collect();
        let mut late = guest_in_new_slot(&pool, &by_name, &past).await;
        assert!(!passes(&mut late, &internet, "its time is over", (SERVER, PORT)));
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn a_name_denied_in_one_slot_stays_denied_in_another() {
    in_lab("a_name_denied_in_one_slot_stays_denied_in_another", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        for json in [r#"{"allow":["a.com"],"deny":["a.com:7000"]}"#, r#"{"deny":["a.com:7000"]}"#] {
            let denied = policy(json);
            let slot = pool.take(&denied).await.unwrap();
            assert_eq!(resolve(&mut Guest::new(slot.tap), "a.com."), Ok(vec![SERVER]));
            let resolved = pool.resolved(slot.index).await.unwrap();
            let mut next = guest_in_new_slot(&pool, &denied, &resolved).await;
            assert!(!passes(&mut next, &internet, "denied on that port", (SERVER, PORT)), "{json}");
            assert_eq!(next.connect(5001, (SERVER, 443), PATIENCE), Some(SYN_ACK), "{json}");
        }
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn resolved_addresses_carry_over_to_the_next_agent() {
    in_lab("resolved_addresses_carry_over_to_the_next_agent", |directory| async move {
        let internet = Internet::connect();
        let by_name = policy(r#"{"allow":["*.a.com"]}"#);
        let first = SlotPool::open(config(&directory)).unwrap();
        let slot = first.take(&by_name).await.unwrap();
        let (mut guest, index) = (Guest::new(slot.tap), slot.index);
        assert_eq!(resolve(&mut guest, "www.a.com."), Ok(vec![SERVER]));
        let before = first.resolved(index).await.unwrap();
        drop(first);
        let second = SlotPool::open(config(&directory)).unwrap();
        second.adopt(&[(index, by_name.clone())]).await.unwrap();
        let after = second.resolved(index).await.unwrap();
        assert_eq!((after.len(), &after[0].name, after[0].address), (1, &"www.a.com".to_owned(), SERVER));
        assert!(after[0].open_until_ms.abs_diff(before[0].open_until_ms) < 1000, "{before:?} {after:?}");
        let mut next = guest_in_new_slot(&second, &by_name, &after).await;
        assert!(arrives(&mut next, &internet, "resolved under the first agent", (SERVER, PORT)));
        second.shutdown().await.unwrap();
    });
}

#[test]
fn the_maximum_number_of_long_resolved_names_is_restored() {
    in_lab("the_maximum_number_of_long_resolved_names_is_restored", |directory| async move {
        let pool = SlotPool::open(config(&directory)).unwrap();
        let soon = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64 + 600_000;
        // 127 bytes; longer names stay behind.
        let label = "x".repeat(59);
        let one = |at: usize| Resolved {
            name: format!("{at:03}.{label}.{label}.com"),
            address: Ipv4Addr::from_bits(SERVER.to_bits() + at as u32),
            open_until_ms: soon,
            shut_until_ms: 0,
        };
        let many: Vec<_> = (0..2 * RESOLVED_MAX).map(one).collect();
        assert_eq!(many[0].name.len(), 127);
        let by_name = policy(r#"{"allow":["*.com"]}"#);
        let slot = pool.take(&by_name).await.unwrap();
        pool.restore_resolved(slot.index, &many).await.unwrap();
        let kept = pool.resolved(slot.index).await.unwrap();
        assert_eq!(kept.len(), RESOLVED_MAX);
        let is_whole = |one: &Resolved| one.name.len() == 127 && one.open_until_ms < soon + 1000;
        assert!(kept.iter().all(is_whole), "{:?}", kept[0]);
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn an_overlong_resolved_name_is_not_carried_over() {
    in_lab("an_overlong_resolved_name_is_not_carried_over", |directory| async move {
        let internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let slot = pool.take(&policy(r#"{"allow":["*.a.com"]}"#)).await.unwrap();
        let (mut guest, label) = (Guest::new(slot.tap), "x".repeat(61));
        assert_eq!(resolve(&mut guest, &format!("{label}.{label}.{label}.{label}.a.com.")), Ok(vec![SERVER]));
        assert!(arrives(&mut guest, &internet, "resolved", (SERVER, PORT)));
        assert_eq!(pool.resolved(slot.index).await.unwrap(), []);
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn slots_without_name_rules_have_no_resolved_addresses() {
    in_lab("slots_without_name_rules_have_no_resolved_addresses", |directory| async move {
        let _internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let slot = pool.take(&NetworkPolicy::all()).await.unwrap();
        assert_eq!(resolve(&mut Guest::new(slot.tap), "a.com."), Ok(vec![SERVER]));
        assert_eq!(pool.resolved(slot.index).await.unwrap(), []);
        let by_name = pool.take(&policy(r#"{"allow":["a.com"]}"#)).await.unwrap();
        assert_eq!(pool.resolved(by_name.index).await.unwrap(), []);
        assert!(pool.release(slot.index));
        pool.resolved(slot.index).await.unwrap_err();
        pool.shutdown().await.unwrap();
    });
}

#[test]
fn operators_see_which_name_opened_an_address() {
    in_lab("operators_see_which_name_opened_an_address", |directory| async move {
        let _internet = Internet::connect();
        let pool = SlotPool::open(config(&directory)).unwrap();
        let slot = pool.take(&policy(r#"{"allow":["a.com"]}"#)).await.unwrap();
        assert_eq!(resolve(&mut Guest::new(slot.tap), "a.com."), Ok(vec![SERVER]));
        let namespace = directory.join(format!("netns/lab-{}", slot.index));
        let listed = sh(&format!("nsenter --net={} nft list set inet slot named", namespace.display()));
        assert!(listed.contains(&SERVER.to_string()) && listed.contains("\"a.com\""), "{listed}");
        pool.shutdown().await.unwrap();
    });
}
