//! What a guest may reach, as data: a policy becomes one list of address ranges, which becomes one nftables set.
//!
//! Rules never change with the policy, so applying one is a single atomic netlink batch and can be done to a running
//! machine. Three layers decide an address, strongest first: what nobody may reach, what this policy adds, what the
//! base allows.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{NetError, Result};

/// Most ranges a policy may add.
pub const ALLOW_CIDRS_MAX: usize = 256;

/// Never reachable, whatever a policy says: this host, link-local and metadata, loopback, multicast, reserved.
const NEVER: [Cidr; 5] = [
    Cidr::literal([0, 0, 0, 0], 8),
    Cidr::literal([127, 0, 0, 0], 8),
    Cidr::literal([169, 254, 0, 0], 16),
    Cidr::literal([224, 0, 0, 0], 4),
    Cidr::literal([240, 0, 0, 0], 4),
];

/// Not the internet: private, carrier and special ranges. A policy may open parts of these.
const NOT_INTERNET: [Cidr; 10] = [
    Cidr::literal([10, 0, 0, 0], 8),
    Cidr::literal([100, 64, 0, 0], 10),
    // Azure serves instance metadata and credentials from this public address.
    Cidr::literal([168, 63, 129, 16], 32),
    Cidr::literal([172, 16, 0, 0], 12),
    Cidr::literal([192, 0, 0, 0], 24),
    Cidr::literal([192, 0, 2, 0], 24),
    Cidr::literal([192, 168, 0, 0], 16),
    Cidr::literal([198, 18, 0, 0], 15),
    Cidr::literal([198, 51, 100, 0], 24),
    Cidr::literal([203, 0, 113, 0], 24),
];

/// An IPv4 network such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    first: u32,
    prefix: u8,
}

/// Why a text is no IPv4 network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an IPv4 network: write an address and a prefix length, such as 10.0.0.0/8")]
pub struct CidrError(String);

impl Cidr {
    /// A network known at compile time. Bits after the prefix are cleared.
    ///
    /// # Panics
    /// When the prefix is longer than 32; in a constant that is a compile error.
    pub const fn literal(octets: [u8; 4], prefix: u8) -> Self {
        assert!(prefix <= 32);
        Cidr { first: u32::from_be_bytes(octets) & mask(prefix), prefix }
    }

    /// Length of the network part.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether the address is inside.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        u32::from(address) & mask(self.prefix) == self.first
    }

    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    pub(crate) fn mask(&self) -> u32 {
        mask(self.prefix)
    }

    fn range(&self) -> Range {
        Range { first: self.first, last: self.first | !mask(self.prefix) }
    }
}

const fn mask(prefix: u8) -> u32 {
    if prefix == 0 { 0 } else { u32::MAX << (32 - prefix) }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let refuse = || CidrError(text.to_owned());
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let address: Ipv4Addr = address.parse().map_err(|_| refuse())?;
        let prefix: u8 = prefix.parse().map_err(|_| refuse())?;
        if prefix > 32 || u32::from(address) & !mask(prefix) != 0 {
            return Err(refuse());
        }
        Ok(Cidr { first: address.into(), prefix })
    }
}

impl TryFrom<String> for Cidr {
    type Error = CidrError;

    fn try_from(text: String) -> Result<Self, CidrError> {
        text.parse()
    }
}

impl From<Cidr> for String {
    fn from(cidr: Cidr) -> String {
        cidr.to_string()
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.first), self.prefix)
    }
}

/// Where a policy starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EgressBase {
    /// Everything that is publicly routed, and name resolution.
    #[default]
    Internet,
    /// Nothing, not even name resolution: queries carry data out.
    None,
}

/// What a guest may reach by itself. Traffic that the host starts towards a guest is not affected.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EgressPolicy {
    /// Where it starts from.
    pub base: EgressBase,
    /// Networks added to it, at most [`ALLOW_CIDRS_MAX`]; private ones too. Other slots, addresses of the host,
    /// loopback, link-local and multicast stay closed.
    #[serde(default)]
    pub allow_cidrs: Vec<Cidr>,
}

impl EgressPolicy {
    /// The public internet: the default.
    pub fn internet() -> Self {
        EgressPolicy::default()
    }

    /// No traffic out.
    pub fn none() -> Self {
        EgressPolicy { base: EgressBase::None, allow_cidrs: Vec::new() }
    }

    /// Whether a freshly made slot already behaves like this.
    pub(crate) fn is_default(&self) -> bool {
        self.base == EgressBase::Internet && self.allow_cidrs.is_empty()
    }

    pub(crate) fn resolves_names(&self) -> bool {
        self.base == EgressBase::Internet
    }

    /// The reachable addresses as sorted, disjoint, non-adjacent ranges, without the slots' own subnet.
    pub(crate) fn ranges(&self, slots: Cidr) -> Result<Vec<Range>> {
        if self.allow_cidrs.len() > ALLOW_CIDRS_MAX {
            return Err(NetError::InvalidConfig(format!(
                "an egress policy holds at most {ALLOW_CIDRS_MAX} networks, this one has {}",
                self.allow_cidrs.len()
            )));
        }
        let mut open = match self.base {
            EgressBase::Internet => subtract(vec![Range::ALL], NOT_INTERNET.iter().map(Cidr::range)),
            EgressBase::None => Vec::new(),
        };
        open.extend(self.allow_cidrs.iter().map(Cidr::range));
        let closed = NEVER.iter().copied().chain([slots]);
        Ok(subtract(union(open), closed.map(|cidr| cidr.range())))
    }
}

/// Inclusive address range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Range {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl Range {
    const ALL: Range = Range { first: 0, last: u32::MAX };
}

/// Sorts and merges what overlaps or touches: the kernel's interval set refuses both.
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

fn subtract(from: Vec<Range>, what: impl IntoIterator<Item = Range>) -> Vec<Range> {
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

    fn reaches(policy: &EgressPolicy, address: &str) -> bool {
        let address = u32::from(address.parse::<Ipv4Addr>().expect("address"));
        let ranges = policy.ranges(SLOTS).expect("valid policy");
        ranges.iter().any(|range| (range.first..=range.last).contains(&address))
    }

    #[test]
    fn internet_is_the_public_space_only() {
        let policy = EgressPolicy::internet();
        for open in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "223.255.255.255",
            "172.32.0.1",
            "100.128.0.0",
        ] {
            assert!(reaches(&policy, open), "{open} must be open");
        }
        for closed in [
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
        ] {
            assert!(!reaches(&policy, closed), "{closed} must be closed");
        }
    }

    #[test]
    fn additions_open_private_networks_but_never_the_forbidden() {
        let allow_cidrs = ["0.0.0.0/0".parse().expect("cidr")].to_vec();
        let policy = EgressPolicy { base: EgressBase::None, allow_cidrs };
        for open in ["192.168.1.1", "10.200.255.255", "10.202.0.0", "1.1.1.1"] {
            assert!(reaches(&policy, open), "{open} must be open");
        }
        for closed in ["10.201.0.0", "10.201.255.255", "169.254.169.254", "127.0.0.1", "239.1.1.1", "0.0.0.0"]
        {
            assert!(!reaches(&policy, closed), "{closed} must be closed");
        }
    }

    #[test]
    fn none_is_empty_and_ranges_never_touch() {
        assert_eq!(EgressPolicy::none().ranges(SLOTS).expect("valid"), Vec::new());
        let allow = ["10.0.0.0/9", "10.128.0.0/9", "10.5.0.0/16"].map(|text| text.parse().expect("cidr"));
        let policy = EgressPolicy { base: EgressBase::Internet, allow_cidrs: allow.to_vec() };
        let ranges = policy.ranges(SLOTS).expect("valid");
        assert!(ranges.windows(2).all(|pair| pair[0].last < u32::MAX && pair[0].last + 1 < pair[1].first));
    }

    #[test]
    fn too_many_networks_are_refused() {
        let allow_cidrs = vec![Cidr::literal([10, 0, 0, 0], 8); ALLOW_CIDRS_MAX + 1];
        assert!(EgressPolicy { base: EgressBase::None, allow_cidrs }.ranges(SLOTS).is_err());
    }

    #[test]
    fn networks_parse_strictly_and_print_back() {
        for (text, expect) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("1.2.3.4", Some("1.2.3.4/32")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("10.0.0.1/8", None),
            ("10.0.0.0/33", None),
            ("10.0.0/8", None),
            ("::/0", None),
        ] {
            let parsed = text.parse::<Cidr>().ok().map(|cidr| cidr.to_string());
            assert_eq!(parsed.as_deref(), expect, "{text}");
        }
        let policy: EgressPolicy =
            serde_json::from_str(r#"{"base":"none","allow_cidrs":["10.0.0.0/8"]}"#).expect("json");
        assert_eq!(policy.allow_cidrs, [Cidr::literal([10, 0, 0, 0], 8)]);
    }
}
