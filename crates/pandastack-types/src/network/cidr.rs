//! IPv4 networks.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ranges::Range;

/// An IPv4 network such as `10.0.0.0/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr {
    first: u32,
    prefix: u8,
}

/// Why a text is no IPv4 network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an IPv4 network: write an address and a prefix length such as 10.0.0.0/8, with no bit set after the prefix"
)]
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

    /// Its first address, as a number.
    pub fn first(&self) -> u32 {
        self.first
    }

    /// The bits of its network part.
    pub fn mask(&self) -> u32 {
        mask(self.prefix)
    }

    pub(super) fn range(&self) -> Range {
        Range { first: self.first, last: self.first | !mask(self.prefix) }
    }
}

const fn mask(prefix: u8) -> u32 {
    if prefix == 0 { 0 } else { u32::MAX << (32 - prefix) }
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let refuse = || CidrError(text.chars().take(40).collect());
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

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
