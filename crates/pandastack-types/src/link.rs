//! Signatures on the link between control and agents.
//!
//! Both sides know one join secret. Every request, in either direction, carries a MAC over its
//! direction, host, method, path and time, so neither side ever sends the secret and a captured
//! request is of no use for another path, host, direction or, after [`SKEW_SECONDS_MAX`], at all.
//! The link runs over a unix socket on one box; between hosts it belongs on a private network,
//! because bodies are neither signed nor encrypted.

use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::HostId;

/// Version of the private API; the first part of every signature.
pub const LINK_VERSION: &str = "1";
/// Header that carries the signature.
pub const LINK_HEADER: &str = "x-pandastack-link";
/// Largest difference of clocks, and so the longest life of a captured request.
pub const SKEW_SECONDS_MAX: i64 = 60;
/// Shortest join secret.
pub const SECRET_BYTES_MIN: usize = 32;

/// Hex digits of a fingerprint.
const FINGERPRINT_DIGITS: usize = 16;

/// The direction of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Control calls an agent.
    ControlToAgent,
    /// An agent calls control.
    AgentToControl,
}

impl Direction {
    fn label(self) -> &'static str {
        match self {
            Direction::ControlToAgent => "control>agent",
            Direction::AgentToControl => "agent>control",
        }
    }
}

/// The shared join secret.
#[derive(Clone)]
pub struct LinkKey(Vec<u8>);

impl std::fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LinkKey(secret)")
    }
}

/// Why a signature was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkRefused {
    /// The secret is too short to be one.
    #[error(
        "the join secret is shorter than {SECRET_BYTES_MIN} bytes; generate one with `pandastack join-secret`"
    )]
    WeakSecret,
    /// No signature, or not in our form.
    #[error("the request has no valid link signature; set the same join secret on both sides")]
    Missing,
    /// The other side speaks another version.
    #[error("link version `{0}` is not supported (this side uses {LINK_VERSION}); upgrade the older side")]
    Version(String),
    /// Clocks differ or the request is old.
    #[error(
        "the link signature is over {SKEW_SECONDS_MAX} s old or in the future; synchronize the hosts' clocks"
    )]
    Expired,
    /// Another secret, path or direction.
    #[error("the link signature does not match; set the same join secret on both sides")]
    Mismatch,
}

impl LinkKey {
    /// Wraps a join secret.
    pub fn new(secret: &[u8]) -> Result<Self, LinkRefused> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(LinkRefused::WeakSecret);
        }
        Ok(Self(secret.to_vec()))
    }

    /// Header value for a request made at `now_unix`.
    pub fn sign(
        &self,
        direction: Direction,
        host: &HostId,
        method: &str,
        path: &str,
        now_unix: i64,
    ) -> String {
        let mac = self.mac(direction, host.as_str(), method, path, now_unix);
        format!("{LINK_VERSION} {host} {now_unix} {}", HEXLOWER.encode(&mac))
    }

    /// Checks a header value and returns the host it names.
    pub fn verify(
        &self,
        direction: Direction,
        header: Option<&str>,
        method: &str,
        path: &str,
        now_unix: i64,
    ) -> Result<HostId, LinkRefused> {
        let mut parts = header.ok_or(LinkRefused::Missing)?.split(' ');
        let version = parts.next().unwrap_or_default();
        if version != LINK_VERSION {
            return Err(LinkRefused::Version(version.chars().take(16).collect()));
        }
        let (Some(host), Some(at), Some(given), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(LinkRefused::Missing);
        };
        let at: i64 = at.parse().map_err(|_| LinkRefused::Missing)?;
        let wanted = HEXLOWER.encode(&self.mac(direction, host, method, path, at));
        if !bool::from(wanted.as_bytes().ct_eq(given.as_bytes())) {
            return Err(LinkRefused::Mismatch);
        }
        if now_unix.abs_diff(at) > SKEW_SECONDS_MAX.unsigned_abs() {
            return Err(LinkRefused::Expired);
        }
        host.parse().map_err(|_| LinkRefused::Missing)
    }

    /// Distinguishes one secret from another without revealing either.
    pub fn fingerprint(&self) -> String {
        let mut digits = self.derive("fingerprint", &[]);
        digits.truncate(FINGERPRINT_DIGITS);
        digits
    }

    /// A secret for another purpose, of which nothing leads back to this one.
    pub fn derive(&self, purpose: &str, parts: &[&str]) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        for part in [LINK_VERSION, "derive", purpose].iter().chain(parts) {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        HEXLOWER.encode(&mac.finalize().into_bytes())
    }

    fn mac(&self, direction: Direction, host: &str, method: &str, path: &str, at: i64) -> Vec<u8> {
        // HMAC accepts keys of every length, so this cannot fail; an empty MAC would match nothing anyway.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return Vec::new() };
        for part in [LINK_VERSION, direction.label(), host, method, path, &at.to_string()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part.as_bytes());
        }
        mac.finalize().into_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::Direction::*;
    use super::*;

    fn key(byte: u8) -> LinkKey {
        LinkKey::new(&[byte; 32]).unwrap()
    }

    #[test]
    fn a_signature_is_good_for_one_request_only() {
        let host: HostId = "host-a".parse().unwrap();
        let header = key(1).sign(ControlToAgent, &host, "POST", "/agent/v1/sandboxes", 1_000);
        let verify = |key: LinkKey, direction, method: &str, path: &str, now| {
            key.verify(direction, Some(&header), method, path, now)
        };
        let path = "/agent/v1/sandboxes";
        assert_eq!(verify(key(1), ControlToAgent, "POST", path, 1_030), Ok(host));
        assert_eq!(verify(key(2), ControlToAgent, "POST", path, 1_000), Err(LinkRefused::Mismatch));
        assert_eq!(verify(key(1), AgentToControl, "POST", path, 1_000), Err(LinkRefused::Mismatch));
        assert_eq!(verify(key(1), ControlToAgent, "GET", path, 1_000), Err(LinkRefused::Mismatch));
        assert_eq!(verify(key(1), ControlToAgent, "POST", "/other", 1_000), Err(LinkRefused::Mismatch));
        assert_eq!(verify(key(1), ControlToAgent, "POST", path, 1_061), Err(LinkRefused::Expired));
        assert_eq!(verify(key(1), ControlToAgent, "POST", path, 939), Err(LinkRefused::Expired));
    }

    #[test]
    fn nonsense_is_refused_without_panic() {
        for header in [None, Some(""), Some("1"), Some("9 a 1 x"), Some("1 a b c"), Some("1 a 1 x y")] {
            assert!(key(1).verify(ControlToAgent, header, "GET", "/", 0).is_err(), "{header:?}");
        }
        assert_eq!(LinkKey::new(b"short").unwrap_err(), LinkRefused::WeakSecret);
    }
}
