//! One entry of a list: an address, network or name, with optional ports.
//!
//! ```text
//!   target = place [ ":" ports ]          10.0.0.0/8        10.0.0.5:5432       api.example.com
//!   place  = address | network | name     *.example.com:443 0.0.0.0/0:25,465    example.com:8000-8009
//!   ports  = port [ "-" port ] { "," ... }
//! ```

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Cidr;
use super::cidr::NOT_A_NETWORK;
use crate::limits::{NETWORK_NAME_BYTES_MAX, NETWORK_TARGET_PORTS_MAX};

/// Longest label of a name.
const LABEL_BYTES_MAX: usize = 63;

/// Inclusive range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRange {
    /// First.
    pub first: u16,
    /// Last.
    pub last: u16,
}

/// An entry of a policy's list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target {
    /// Destination.
    pub place: Destination,
    /// TCP and UDP ports. Empty: all ports, and protocols without ports.
    pub ports: Vec<PortRange>,
}

/// The destination of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Destination {
    /// Addresses.
    Network(Cidr),
    /// Names.
    Name(NamePattern),
}

/// A name, or with `*.` in front every name below one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamePattern {
    wildcard: bool,
    /// Lowercase, without a dot at its end.
    name: String,
}

/// Reason why a text is not a valid target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {why}")]
pub struct TargetError {
    text: String,
    why: String,
}

impl Target {
    /// Returns whether the entry is an address or network, and not a name.
    pub fn is_network(&self) -> bool {
        matches!(self.place, Destination::Network(_))
    }

    /// Returns whether the entry names this address and port, by address.
    pub(super) fn is_about(&self, address: Ipv4Addr, port: u16) -> bool {
        match &self.place {
            Destination::Network(network) => network.contains(address) && has_port(&self.ports, port),
            Destination::Name(_) => false,
        }
    }

    /// Returns whether one of the entry's port ranges has the port. An entry without ports has none
    /// here.
    pub(super) fn has_port(&self, port: u16) -> bool {
        self.ports.iter().any(|ports| (ports.first..=ports.last).contains(&port))
    }
}

/// Returns whether a port is in these ranges; an empty list means all ports.
pub(super) fn has_port(ports: &[PortRange], port: u16) -> bool {
    ports.is_empty() || ports.iter().any(|ports| (ports.first..=ports.last).contains(&port))
}

impl NamePattern {
    /// Returns whether the pattern matches a lowercase name without a trailing dot.
    pub fn matches(&self, name: &str) -> bool {
        match self.wildcard {
            false => name == self.name,
            true => {
                name.strip_suffix(&self.name).is_some_and(|below| below.len() > 1 && below.ends_with('.'))
            }
        }
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let refuse = |why: String| TargetError { text: text.chars().take(80).collect(), why };
        let (place, ports) = match text.split_once(':') {
            Some((place, ports)) => (place, parse_ports(ports).map_err(refuse)?),
            None => (text, Vec::new()),
        };
        if place.contains('/') || is_like_an_address(place) {
            let network = place.parse().map_err(|_| refuse(NOT_A_NETWORK.to_owned()))?;
            return Ok(Target { place: Destination::Network(network), ports });
        }
        Ok(Target { place: Destination::Name(parse_name(place).map_err(refuse)?), ports })
    }
}

/// Whether the last part has only digits: no name ends so, but a mistyped address does. A trailing
/// dot is not stored, so it is ignored here: otherwise the stored text could not be parsed again.
fn is_like_an_address(place: &str) -> bool {
    let last = place.strip_suffix('.').unwrap_or(place).rsplit('.').next().unwrap_or_default();
    !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse_ports(text: &str) -> Result<Vec<PortRange>, String> {
    let parse = |part: &str| -> Option<PortRange> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (0 < first && first <= last).then_some(PortRange { first, last })
    };
    let ports: Option<Vec<_>> = text.split(',').take(NETWORK_TARGET_PORTS_MAX + 1).map(parse).collect();
    let mut ports = ports.ok_or("has invalid ports; write :443, :8000-8009 or :80,443, from 1 to 65535")?;
    if ports.len() > NETWORK_TARGET_PORTS_MAX {
        return Err(format!("has more than {NETWORK_TARGET_PORTS_MAX} port ranges; split the entry"));
    }
    ports.sort_unstable();
    Ok(ports)
}

fn parse_name(text: &str) -> Result<NamePattern, String> {
    let (wildcard, name) = text.strip_prefix("*.").map_or((false, text), |below| (true, below));
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > NETWORK_NAME_BYTES_MAX || !name.split('.').all(is_label) {
        return Err("is not an IPv4 address, network or domain name; write 10.0.0.0/8, example.com or \
                    *.example.com, and non-ASCII names in their xn-- form"
            .to_owned());
    }
    Ok(NamePattern { wildcard, name })
}

impl TryFrom<String> for Target {
    type Error = TargetError;

    fn try_from(text: String) -> Result<Self, TargetError> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.to_string()
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.wildcard { "*." } else { "" }, self.name)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Destination::Network(network) => network.fmt(f)?,
            Destination::Name(name) => name.fmt(f)?,
        }
        for (at, ports) in self.ports.iter().enumerate() {
            f.write_str(if at == 0 { ":" } else { "," })?;
            match ports.first == ports.last {
                true => write!(f, "{}", ports.first)?,
                false => write!(f, "{}-{}", ports.first, ports.last)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_targets_parse_strictly_and_round_trip() {
        for (text, expect) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("1.2.3.4", Some("1.2.3.4/32")),
            ("1.2.3.4:53", Some("1.2.3.4/32:53")),
            ("0.0.0.0/0:465,25", Some("0.0.0.0/0:25,465")),
            ("10.0.0.0/8:8000-8009", Some("10.0.0.0/8:8000-8009")),
            ("Example.COM.", Some("example.com")),
            ("*.example.com:443", Some("*.example.com:443")),
            ("intranet", Some("intranet")),
            ("_dmarc.example.com", Some("_dmarc.example.com")),
            ("", None),
            ("*", None),
            ("*example.com", None),
            ("a.*.com", None),
            ("exa mple.com", None),
            ("-a.com", None),
            ("a..com", None),
            ("münchen.de", None),
            ("10.0.0.256", None),
            ("10.0.0", None),
            ("10.", None),
            ("*.10.", None),
            ("10.0.0.1/8", None),
            ("example.com/8", None),
            ("example.com:", None),
            ("example.com:0", None),
            ("example.com:9-8", None),
            ("example.com:65536", None),
            ("http://example.com", None),
            ("::1", None),
        ] {
            let parsed = text.parse::<Target>().ok().map(|target| target.to_string());
            assert_eq!(parsed.as_deref(), expect, "{text}");
        }
        assert!("a.b.".repeat(70).parse::<Target>().is_err());
        let ports: Vec<String> = (1..=NETWORK_TARGET_PORTS_MAX).map(|port| port.to_string()).collect();
        assert!(format!("a.com:{}", ports.join(",")).parse::<Target>().is_ok());
        assert!(format!("a.com:{},99", ports.join(",")).parse::<Target>().is_err());
    }

    #[test]
    fn a_wildcard_matches_only_subdomains() {
        let matches = |pattern: &str, name: &str| match pattern.parse::<Target>().unwrap().place {
            Destination::Name(pattern) => pattern.matches(name),
            Destination::Network(_) => panic!("{pattern} is a name"),
        };
        assert!(matches("example.com", "example.com"));
        assert!(!matches("example.com", "www.example.com"));
        assert!(matches("*.example.com", "www.example.com"));
        assert!(matches("*.example.com", "a.b.example.com"));
        assert!(!matches("*.example.com", "example.com"));
        assert!(!matches("*.example.com", "badexample.com"));
        assert!(!matches("*.example.com", ".example.com"));
        assert!(!matches("*.example.com", "example.com.evil.org"));
    }
}
