//! Converts lists of targets to disjoint ranges of addresses and ports for the kernel.

use super::cidr::Range;
use super::{Ceiling, Cidr, Destination, Egress, NetworkPolicy, PortRange, Target};

/// Never reachable, regardless of policy and operator settings: this host, link-local, loopback,
/// multicast, reserved, and where clouds serve metadata and credentials of their machines.
pub(super) const NEVER: [Cidr; 8] = [
    Cidr::literal([0, 0, 0, 0], 8),
    Cidr::literal([127, 0, 0, 0], 8),
    Cidr::literal([169, 254, 0, 0], 16),
    Cidr::literal([224, 0, 0, 0], 4),
    Cidr::literal([240, 0, 0, 0], 4),
    // Metadata beside 169.254.169.254: Azure's, Alibaba Cloud's, and Oracle Cloud's old address.
    Cidr::literal([168, 63, 129, 16], 32),
    Cidr::literal([100, 100, 100, 200], 32),
    Cidr::literal([192, 0, 0, 192], 32),
];

/// Not the internet: private, carrier and special ranges. A policy may open parts of these that the operator
/// allows, by address only.
pub(super) const NOT_INTERNET: [Cidr; 9] = [
    Cidr::literal([10, 0, 0, 0], 8),
    Cidr::literal([100, 64, 0, 0], 10),
    Cidr::literal([172, 16, 0, 0], 12),
    Cidr::literal([192, 0, 0, 0], 24),
    Cidr::literal([192, 0, 2, 0], 24),
    Cidr::literal([192, 168, 0, 0], 16),
    Cidr::literal([198, 18, 0, 0], 15),
    Cidr::literal([198, 51, 100, 0], 24),
    Cidr::literal([203, 0, 113, 0], 24),
];

/// Port number for protocols without ports, such as ICMP. No TCP or UDP service can have it.
const NO_PORT: u16 = 0;

/// A box of addresses and ports. Port 0 means protocols without ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The addresses.
    pub addresses: Range,
    /// The ports.
    pub ports: PortRange,
}

/// Returns whether clouds serve metadata and credentials of their machines at an address.
pub fn is_metadata(address: std::net::Ipv4Addr) -> bool {
    address.is_link_local() || NEVER.iter().any(|network| network.prefix() == 32 && network.contains(address))
}

/// Returns whether the address is publicly routed, so that a name may open it.
pub fn is_public(address: std::net::Ipv4Addr) -> bool {
    !NEVER.iter().chain(&NOT_INTERNET).any(|network| network.contains(address))
}

impl NetworkPolicy {
    /// Destinations that may be reached by address, as disjoint boxes, without those above the
    /// ceiling.
    pub fn openings(&self, ceiling: &Ceiling) -> Vec<Opening> {
        let targets = self.allow.iter().chain(&self.deny).chain(&ceiling.guest_allow);
        boxes(targets, |port| self.addresses_on(port, ceiling))
    }

    /// Destinations that names must not open, as disjoint boxes: the denied networks. None unless
    /// names open anything.
    pub fn closings(&self) -> Vec<Opening> {
        if !self.closes_networks() {
            return Vec::new();
        }
        boxes(self.deny.iter(), |port| union(networks_on(&self.deny, port)))
    }

    fn addresses_on(&self, port: u16, ceiling: &Ceiling) -> Vec<Range> {
        let mut open = match self.egress {
            Egress::All => subtract(vec![Range::ALL], NOT_INTERNET.iter().map(Cidr::range)),
            Egress::None => Vec::new(),
        };
        open.extend(networks_on(&self.allow, port));
        if self.has_internet() {
            open.extend(networks_on(&ceiling.guest_allow, port));
        }
        subtract(union(open), networks_on(&self.deny, port).into_iter().chain(ceiling.closed_on(port)))
    }
}

/// The networks that a list names on a port.
pub(super) fn networks_on(targets: &[Target], port: u16) -> Vec<Range> {
    let here = targets.iter().filter(|target| target.ports.is_empty() || target.has_port(port));
    here.filter_map(|target| match &target.place {
        Destination::Network(network) => Some(network.range()),
        Destination::Name(_) => None,
    })
    .collect()
}

/// The addresses of every port, those of neighbours together where they are the same.
fn boxes<'a>(
    targets: impl Iterator<Item = &'a Target>,
    addresses_on: impl Fn(u16) -> Vec<Range>,
) -> Vec<Opening> {
    let mut bands: Vec<(PortRange, Vec<Range>)> = Vec::new();
    for ports in cut(targets) {
        let addresses = addresses_on(ports.first);
        match bands.last_mut() {
            Some((before, same)) if *same == addresses => before.last = ports.last,
            _ => bands.push((ports, addresses)),
        }
    }
    let boxes = |(ports, addresses): (PortRange, Vec<Range>)| {
        addresses.into_iter().map(move |addresses| Opening { addresses, ports })
    };
    bands.into_iter().flat_map(boxes).collect()
}

/// All ports, split wherever a rule for a network begins or ends.
fn cut<'a>(targets: impl Iterator<Item = &'a Target>) -> Vec<PortRange> {
    let mut starts = vec![NO_PORT, 1];
    for ports in targets.filter(|target| target.is_network()).flat_map(|target| &target.ports) {
        starts.push(ports.first);
        starts.extend(ports.last.checked_add(1));
    }
    starts.sort_unstable();
    starts.dedup();
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([u16::MAX]);
    starts.iter().zip(ends).map(|(first, last)| PortRange { first: *first, last }).collect()
}

/// Sorts and merges what overlaps or touches.
fn union(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut merged: Vec<Range> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.first <= last.last.saturating_add(1) => last.last = last.last.max(range.last),
            _ => merged.push(range),
        }
    }
    merged
}

pub(super) fn subtract(from: Vec<Range>, what: impl IntoIterator<Item = Range>) -> Vec<Range> {
    what.into_iter().fold(from, |ranges, cut| {
        let mut rest = Vec::with_capacity(ranges.len() + 1);
        for range in ranges {
            if cut.last < range.first || range.last < cut.first {
                rest.push(range);
                continue;
            }
            if range.first < cut.first {
                rest.push(Range { first: range.first, last: cut.first - 1 });
            }
            if cut.last < range.last {
                rest.push(Range { first: cut.last + 1, last: range.last });
            }
        }
        rest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: Cidr = Cidr::literal([10, 201, 0, 0], 16);

    fn policy(json: &str) -> NetworkPolicy {
        serde_json::from_str(json).unwrap()
    }

    #[track_caller]
    fn check(policy: &NetworkPolicy, open: &[(&str, u16)], closed: &[(&str, u16)]) {
        let ceiling = Ceiling { slots: Some(SLOTS), ..Ceiling::widest() };
        check_boxes(&policy.openings(&ceiling), open, closed);
    }

    #[track_caller]
    fn check_boxes(openings: &[Opening], open: &[(&str, u16)], closed: &[(&str, u16)]) {
        let reaches = |(address, port): &(&str, u16)| {
            let address = u32::from(address.parse::<std::net::Ipv4Addr>().unwrap());
            let hits = openings.iter().filter(|opening| {
                (opening.addresses.first..=opening.addresses.last).contains(&address)
                    && (opening.ports.first..=opening.ports.last).contains(port)
            });
            let hits = hits.count();
            assert!(hits <= 1, "boxes overlap at {address}:{port}: {openings:?}");
            hits == 1
        };
        for target in open {
            assert!(reaches(target), "{target:?} must be open: {openings:?}");
        }
        for target in closed {
            assert!(!reaches(target), "{target:?} must be closed: {openings:?}");
        }
    }

    #[test]
    fn egress_all_covers_only_public_addresses() {
        let open = [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "223.255.255.255",
            "172.32.0.1",
            "100.128.0.0",
        ];
        let closed = [
            "0.0.0.1",
            "10.0.0.1",
            "10.201.3.2",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.168.1.1",
            "198.19.0.1",
            "224.0.0.1",
            "255.255.255.255",
        ];
        check(
            &NetworkPolicy::all(),
            &open.map(|address| (address, 443)),
            &closed.map(|address| (address, 443)),
        );
        check(&NetworkPolicy::all(), &open.map(|address| (address, 0)), &closed.map(|address| (address, 0)));
        assert_eq!(NetworkPolicy::none().openings(&Ceiling::widest()), []);
    }

    #[test]
    fn allow_lists_open_private_but_never_forbidden_networks() {
        let widest = policy(r#"{"allow":["0.0.0.0/0"]}"#);
        let open = ["192.168.1.1", "10.200.255.255", "10.202.0.0", "1.1.1.1"];
        let closed = ["10.201.0.0", "10.201.255.255", "169.254.169.254", "127.0.0.1", "239.1.1.1", "0.0.0.0"];
        check(&widest, &open.map(|address| (address, 80)), &closed.map(|address| (address, 80)));
    }

    #[test]
    fn policies_cannot_open_more_than_the_operator_allows() {
        let greedy = policy(r#"{"egress":"all","allow":["0.0.0.0/0","10.0.0.0/8","169.254.169.254"]}"#);
        let none = greedy.openings(&Ceiling::default());
        let private = ["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1"];
        let metadata = ["169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192"];
        for closed in private.into_iter().chain(metadata) {
            check_boxes(&none, &[("1.1.1.1", 80)], &[(closed, 80), (closed, 0)]);
        }
        let reachable_private = vec![Cidr::literal([10, 9, 0, 0], 16), Cidr::literal([0, 0, 0, 0], 0)];
        let some = Ceiling { reachable_private: reachable_private[..1].to_vec(), ..Ceiling::default() };
        check_boxes(&greedy.openings(&some), &[("10.9.1.1", 80)], &[("10.8.1.1", 80), ("192.168.1.1", 80)]);
        let all = Ceiling { reachable_private, ..Ceiling::default() };
        check_boxes(
            &greedy.openings(&all),
            &private.map(|address| (address, 80)),
            &metadata.map(|one| (one, 80)),
        );
        // Permission by the operator alone does not open a destination.
        check_boxes(&NetworkPolicy::all().openings(&all), &[], &private.map(|address| (address, 80)));
    }

    #[test]
    fn port_rules_split_openings_and_deny_wins() {
        let mail = policy(r#"{"deny":["0.0.0.0/0:25","9.9.9.0/24"]}"#);
        check(
            &mail,
            &[("1.1.1.1", 24), ("1.1.1.1", 26), ("1.1.1.1", 0)],
            &[("1.1.1.1", 25), ("9.9.9.9", 80), ("9.9.9.9", 0)],
        );
        let some =
            policy(r#"{"allow":["10.0.0.0/8:5432,8000-8009","10.7.0.0/16"],"deny":["10.7.7.0/24:22"]}"#);
        check(
            &some,
            &[
                ("10.1.1.1", 5432),
                ("10.1.1.1", 8000),
                ("10.1.1.1", 8009),
                ("10.7.1.1", 22),
                ("10.7.1.1", 0),
                ("10.7.7.7", 21),
            ],
            &[("10.1.1.1", 5431), ("10.1.1.1", 8010), ("10.1.1.1", 0), ("10.7.7.7", 22), ("1.1.1.1", 5432)],
        );
    }

    #[test]
    fn name_rules_exclude_denied_networks() {
        let some = policy(
            r#"{"allow":["a.com","10.0.0.0/8"],"deny":["93.184.216.0/24","93.184.0.0/16:22","0.0.0.0/0:25","b.com"]}"#,
        );
        check_boxes(
            &some.closings(),
            &[("93.184.216.34", 443), ("93.184.216.34", 0), ("93.184.1.1", 22), ("1.1.1.1", 25)],
            &[("93.184.1.1", 23), ("1.1.1.1", 443), ("1.1.1.1", 0), ("10.0.0.1", 443)],
        );
        assert_eq!(policy(r#"{"deny":["93.184.216.0/24"]}"#).closings(), []);
    }

    #[test]
    fn adjacent_ranges_of_one_port_band_are_merged() {
        let merged = policy(r#"{"egress":"all","allow":["10.0.0.0/9","10.128.0.0/9","10.5.0.0/16"]}"#);
        let openings = merged.openings(&Ceiling { slots: Some(SLOTS), ..Ceiling::widest() });
        assert!(openings.windows(2).all(|pair| pair[0].addresses.last + 1 < pair[1].addresses.first));
        assert!(openings.iter().all(|opening| opening.ports == PortRange { first: 0, last: u16::MAX }));
    }
}
