//! Resolved names of a guest, carried over from one slot to the next.
//!
//! A program keeps using an address that it resolved before its machine slept, was forked or rolled
//! back. Its next slot must know the same about that address as the last one, or the program is
//! refused although its policy allows the connection. A slot's rules keep each address with its
//! name and its remaining time, even while no agent runs; this module reads that, and writes it
//! into another slot under the policy in force there.
//!
//! Must hold: an address is open no longer than it would have been in the slot that it was resolved
//! in; only names that the new slot's policy allows open anything, and only public addresses; ports
//! that a name closes are carried over with the ports that it opens. The number of addresses is
//! limited to [`RESOLVED_MAX`].

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pandastack_types::network::{Ceiling, NetworkPolicy, is_public};
use serde::{Deserialize, Serialize};

use super::resolver::NAMED_LIFETIME_MAX;
use crate::nft::{Element, ListedElement};
use crate::ruleset::{self, ListedNames};

/// Limit of addresses carried over to the next slot, the ones with the most time left first, and of
/// their entries in its rules. An address that is dropped opens again once it is resolved again.
/// This many fit into one message to the kernel, with any names.
pub const RESOLVED_MAX: usize = 512;

/// An address that a guest resolved a name to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// Lowercase, without a dot at its end.
    pub name: String,
    /// The address.
    pub address: Ipv4Addr,
    /// Time until which it is open where the name is allowed, in milliseconds since 1970. Zero if
    /// it was not open.
    pub open_until_ms: u64,
    /// Time until which it is closed on ports where the name is denied. Zero if it was not closed.
    pub shut_until_ms: u64,
}

impl Resolved {
    fn relevant_until_ms(&self) -> u64 {
        self.open_until_ms.max(self.shut_until_ms)
    }
}

/// Milliseconds since 1970. A clock that stops with its host would not do: entries may wait on a
/// disk.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Collects the names that rules hold. Addresses without one were resolved under an earlier
/// version, and stay behind.
pub(super) fn gather(listed: ListedNames, now_ms: u64) -> Vec<Resolved> {
    let mut known: BTreeMap<(String, Ipv4Addr), (u64, u64)> = BTreeMap::new();
    let ends =
        |one: &ListedElement| now_ms.saturating_add(u64::try_from(one.left.as_millis()).unwrap_or(u64::MAX));
    for one in listed.open.into_iter().filter(|one| !one.note.is_empty()) {
        let until = ends(&one);
        let (open, _) = known.entry((one.note, one.address)).or_default();
        *open = until.max(*open);
    }
    for one in listed.shut.into_iter().filter(|one| !one.note.is_empty()) {
        let until = ends(&one);
        let (_, shut) = known.entry((one.note, one.address)).or_default();
        *shut = until.max(*shut);
    }
    let each = known.into_iter().map(|((name, address), (open_until_ms, shut_until_ms))| Resolved {
        name,
        address,
        open_until_ms,
        shut_until_ms,
    });
    let mut resolved: Vec<Resolved> = each.collect();
    resolved.sort_by_key(|one| std::cmp::Reverse(one.relevant_until_ms()));
    resolved.truncate(RESOLVED_MAX);
    resolved
}

/// Entries of a slot's rules.
#[derive(Debug, Default)]
pub(super) struct Entries<'a> {
    pub(super) open: Vec<Element<'a>>,
    pub(super) shut: Vec<Element<'a>>,
}

type ByClass<'a> = BTreeMap<(Ipv4Addr, usize), (Duration, &'a str)>;

/// Entries for a slot with this policy, from names that were resolved elsewhere. The first ones, if
/// they are too many.
pub(super) fn entries<'a>(
    policy: &NetworkPolicy,
    ceiling: &Ceiling,
    resolved: &'a [Resolved],
    now_ms: u64,
) -> Entries<'a> {
    let (mut open, mut shut) = (ByClass::new(), ByClass::new());
    for one in resolved {
        let opened = time_left(one.open_until_ms, now_ms).filter(|_| is_public(one.address));
        let opens = opened.map(|_| policy.opened_by(&one.name, ceiling)).unwrap_or_default();
        let shuts = policy.shut_by(&one.name);
        if open.len() + shut.len() + opens.len() + shuts.len() > RESOLVED_MAX {
            break;
        }
        add(&mut open, one, &opens, opened);
        // At least as long as it is open: the earlier policy may not have closed it.
        add(&mut shut, one, &shuts, time_left(one.relevant_until_ms(), now_ms));
    }
    Entries { open: elements(open), shut: elements(shut) }
}

/// The time left, if any. A clock that was set back extends it to at most the lifetime of an
/// answer.
fn time_left(until_ms: u64, now_ms: u64) -> Option<Duration> {
    let millis = until_ms.checked_sub(now_ms).filter(|millis| *millis > 0)?;
    Some(Duration::from_millis(millis).min(NAMED_LIFETIME_MAX))
}

/// Several names may share an address: the longest time counts.
fn add<'a>(to: &mut ByClass<'a>, one: &'a Resolved, classes: &[usize], left: Option<Duration>) {
    let Some(left) = left else { return };
    for class in classes {
        let known = to.entry((one.address, *class)).or_insert((left, &one.name));
        if known.0 < left {
            *known = (left, &one.name);
        }
    }
}

fn elements(known: ByClass<'_>) -> Vec<Element<'_>> {
    let each = known.into_iter();
    each.map(|((address, class), (left, name))| ruleset::element(address, class, left, name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_800_000_000_000;
    const SERVER: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 34);
    const OTHER: Ipv4Addr = Ipv4Addr::new(93, 184, 216, 35);

    fn policy(json: &str) -> NetworkPolicy {
        serde_json::from_str(json).expect("policy")
    }

    fn open(name: &str, address: Ipv4Addr, seconds: u64) -> Resolved {
        let open_until_ms = NOW_MS + seconds * 1000;
        Resolved { name: name.to_owned(), address, open_until_ms, shut_until_ms: 0 }
    }

    fn listed(note: &str, address: Ipv4Addr, seconds: u64) -> ListedElement {
        ListedElement { address, left: Duration::from_secs(seconds), note: note.to_owned() }
    }

    /// Addresses and remaining seconds that a policy opens and closes.
    fn check(json: &str, resolved: &[Resolved], opens: &[(Ipv4Addr, u64)], shuts: &[(Ipv4Addr, u64)]) {
        let entries = entries(&policy(json), &Ceiling::default(), resolved, NOW_MS);
        let seconds = |elements: &[Element<'_>]| -> Vec<(Ipv4Addr, u64)> {
            elements.iter().map(|one| (one.address, one.lifetime.as_secs())).collect()
        };
        assert_eq!(seconds(&entries.open), opens, "{json}");
        assert_eq!(seconds(&entries.shut), shuts, "{json}");
    }

    #[test]
    fn addresses_in_rules_are_grouped_by_name_and_keep_their_expiry() {
        let open = vec![
            listed("a.com", SERVER, 60),
            // On other ports, by the same name.
            listed("a.com", SERVER, 90),
            listed("b.com", OTHER, 300),
            listed("", OTHER, 300),
        ];
        let shut = vec![listed("a.com", SERVER, 3600), listed("c.com", OTHER, 30)];
        let found = gather(ListedNames { open, shut }, NOW_MS);
        let known: Vec<_> = found
            .iter()
            .map(|one| {
                let seconds = |until_ms: u64| until_ms.saturating_sub(NOW_MS) / 1000;
                (one.name.as_str(), one.address, seconds(one.open_until_ms), seconds(one.shut_until_ms))
            })
            .collect();
        assert_eq!(known, [("a.com", SERVER, 90, 3600), ("b.com", OTHER, 300, 0), ("c.com", OTHER, 0, 30)]);
    }

    #[test]
    fn only_names_allowed_by_the_policy_open_addresses() {
        let resolved = [open("www.a.com", SERVER, 60), open("b.com", OTHER, 60)];
        check(r#"{"allow":["*.a.com","b.com"]}"#, &resolved, &[(SERVER, 60), (OTHER, 60)], &[]);
        check(r#"{"allow":["b.com"]}"#, &resolved, &[(OTHER, 60)], &[]);
        check(r#"{"allow":["*.a.com"],"deny":["www.a.com"]}"#, &resolved, &[], &[]);
        check(r#"{"egress":"none"}"#, &resolved, &[], &[]);
        check(r#"{"egress":"all"}"#, &resolved, &[], &[]);
        // Two sets of ports: one entry for each.
        check(r#"{"allow":["b.com:22","b.com:25"]}"#, &resolved, &[(OTHER, 60), (OTHER, 60)], &[]);
    }

    #[test]
    fn resolved_addresses_close_at_their_expiry() {
        let allows = r#"{"allow":["a.com","b.com"]}"#;
        check(allows, &[open("a.com", SERVER, 0)], &[], &[]);
        check(allows, &[Resolved { open_until_ms: NOW_MS - 1, ..open("a.com", SERVER, 0) }], &[], &[]);
        check(allows, &[open("a.com", SERVER, 1_000_000)], &[(SERVER, 3600)], &[]);
        check(allows, &[open("a.com", SERVER, 60), open("b.com", SERVER, 30)], &[(SERVER, 60)], &[]);
        check(allows, &[open("a.com", Ipv4Addr::new(10, 0, 0, 1), 60)], &[], &[]);
    }

    #[test]
    fn denied_ports_of_a_name_close_together_with_its_openings() {
        let denies = r#"{"allow":["a.com"],"deny":["a.com:22"]}"#;
        check(denies, &[open("a.com", SERVER, 60)], &[(SERVER, 60)], &[(SERVER, 60)]);
        let shut = Resolved { shut_until_ms: NOW_MS + 600_000, ..open("a.com", SERVER, 60) };
        check(denies, std::slice::from_ref(&shut), &[(SERVER, 60)], &[(SERVER, 600)]);
        check(r#"{"deny":["a.com:22"]}"#, &[shut], &[], &[(SERVER, 600)]);
    }

    #[test]
    fn resolved_names_are_bounded_and_keep_the_longest_lived() {
        let address = |at: usize| Ipv4Addr::from_bits(SERVER.to_bits() + at as u32);
        let many = (0..2 * RESOLVED_MAX).map(|at| listed("x.a.com", address(at), at as u64 + 1)).collect();
        let found = gather(ListedNames { open: many, shut: Vec::new() }, NOW_MS);
        assert_eq!(found.len(), RESOLVED_MAX);
        let least = found.iter().map(|one| one.open_until_ms).min();
        assert_eq!(least, Some(NOW_MS + (RESOLVED_MAX as u64 + 1) * 1000), "the longest are kept");
        let several = policy(r#"{"allow":["*.a.com:1","*.a.com:2","*.a.com:3"],"deny":["x.a.com:2"]}"#);
        let Entries { open, shut } = entries(&several, &Ceiling::default(), &found, NOW_MS);
        assert_eq!((open.len(), shut.len()), (RESOLVED_MAX / 4 * 3, RESOLVED_MAX / 4));
    }
}
