//! IPv4 networks.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

/// Inclusive address range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// First address, as a number.
    pub first: u32,
    /// Last address.
    pub last: u32,
}

impl Range {
    pub(super) const ALL: Range = Range { first: 0, last: u32::MAX };
}

/// An IPv4 network such as `10.0.0.0/8`. No bit is set after its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(Ipv4Net);

/// Error text for an invalid IPv4 network, with an example of a valid one.
pub(super) const NOT_A_NETWORK: &str =
    "is not an IPv4 network; write an address and a prefix length such as 10.0.0.0/8, with host bits zero";

/// A text that is not an IPv4 network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} {NOT_A_NETWORK}")]
pub struct CidrError(String);

impl Cidr {
    /// A network known at compile time.
    ///
    /// # Panics
    /// If the prefix is longer than 32 or a bit is set after it; in a constant that is a compile error.
    pub const fn literal(octets: [u8; 4], prefix: u8) -> Self {
        assert!(prefix <= 32 && u32::from_be_bytes(octets).trailing_zeros() + prefix as u32 >= 32);
        let [a, b, c, d] = octets;
        Cidr(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix))
    }

    /// Length of the network part.
    pub fn prefix(&self) -> u8 {
        self.0.prefix_len()
    }

    /// Returns whether the address is inside.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        self.0.contains(&address)
    }

    /// Returns whether all of the other network is inside.
    pub fn covers(&self, other: &Cidr) -> bool {
        self.0.contains(&other.0)
    }

    /// Lower and upper half; `None` for a single address.
    pub fn halves(&self) -> Option<[Cidr; 2]> {
        let mut halves = self.0.subnets(self.prefix() + 1).ok()?;
        Some([Cidr(halves.next()?), Cidr(halves.next()?)])
    }

    /// First address.
    pub fn first(&self) -> Ipv4Addr {
        self.0.network()
    }

    /// The bits of its network part.
    pub fn mask(&self) -> Ipv4Addr {
        self.0.netmask()
    }

    pub(super) fn range(&self) -> Range {
        Range { first: self.0.network().into(), last: self.0.broadcast().into() }
    }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let refuse = || CidrError(text.chars().take(40).collect());
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        // Not parsed by `ipnet`, which takes `010.0.0.0` for 10.0.0.0 where others read 8.0.0.0.
        let address: Ipv4Addr = address.parse().map_err(|_| refuse())?;
        let prefix: u8 = prefix.parse().map_err(|_| refuse())?;
        let network = Ipv4Net::new(address, prefix).map_err(|_| refuse())?;
        if network != network.trunc() {
            return Err(refuse());
        }
        Ok(Cidr(network))
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
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_parse_strictly_and_round_trip() {
        for (text, expect) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("1.2.3.4", Some("1.2.3.4/32")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("10.0.0.1/8", None),
            ("10.0.0.0/33", None),
            ("10.0.0.0/", None),
            ("10.0.0.0/-1", None),
            ("010.0.0.0/8", None),
            ("10.0.0/8", None),
            ("::/0", None),
        ] {
            let parsed = text.parse::<Cidr>().ok().map(|cidr| cidr.to_string());
            assert_eq!(parsed.as_deref(), expect, "{text}");
        }
    }

    #[test]
    fn a_network_splits_into_halves_down_to_one_address() {
        let network = Cidr::literal([10, 0, 0, 2], 31);
        let halves = network.halves().unwrap();
        assert_eq!(halves.map(|half| half.to_string()), ["10.0.0.2/32", "10.0.0.3/32"]);
        assert!(halves.iter().all(|half| network.covers(half) && !half.covers(&network)));
        assert_eq!(halves[0].halves(), None);
        assert!(network.covers(&network) && !network.contains([10, 0, 0, 4].into()));
    }
}
