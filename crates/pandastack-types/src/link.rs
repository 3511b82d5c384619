//! Signatures on the link between control and agents.
//!
//! Both sides know one join secret. Every request, in either direction, carries a MAC over its
//! direction, host, method, path and time, so neither side ever sends the secret and a captured
//! request is of no use for another path, host, direction or, after [`SKEW_SECONDS_MAX`], at all.
//! While the secret is rotated, a request carries a MAC of every generation that its sender accepts, and
//! the receiver accepts it by any generation that both have. So the hosts may change over in any order.
//! The link runs over a unix socket on one box; between hosts it belongs on a private network,
//! because bodies are neither signed nor encrypted.

use std::sync::{Arc, PoisonError, RwLock};

use data_encoding::HEXLOWER;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::HostId;
use crate::secret_ring::{Generation, GenerationStatus, RingError, SecretRing};

/// Version of the private API; the first part of every signature.
pub const LINK_VERSION: &str = "1";
/// Header that carries the signature.
pub const LINK_HEADER: &str = "x-pandastack-link";
/// Largest difference of clocks, and so the longest life of a captured request.
pub const SKEW_SECONDS_MAX: i64 = 60;
/// MACs of one request: more generations are never accepted at once.
const MACS_MAX: usize = 8;
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

/// The join secret: signs links, and other keys are derived from it. Clones share its generations, so that
/// a rotation reaches all of them.
#[derive(Clone)]
pub struct LinkKey(Arc<RwLock<SecretRing>>);

impl std::fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LinkKey(secret)")
    }
}

/// Reason why a signature was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkRefused {
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
    /// The signature was made with another secret, path or direction.
    #[error("the link signature does not match; set the same join secret on both sides")]
    Mismatch,
}

impl LinkKey {
    /// Wraps a secret that was never rotated.
    pub fn new(secret: &[u8]) -> Result<Self, RingError> {
        SecretRing::new(secret).map(Self::from)
    }

    /// The current generations.
    pub fn ring(&self) -> SecretRing {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses these generations from now on, in all clones.
    pub fn replace(&self, ring: SecretRing) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = ring;
    }

    fn with<T>(&self, use_ring: impl FnOnce(&SecretRing) -> T) -> T {
        use_ring(&self.0.read().unwrap_or_else(PoisonError::into_inner))
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
        let macs = self.macs(direction, host.as_str(), method, path, now_unix).join(",");
        format!("{LINK_VERSION} {host} {now_unix} {macs}")
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
        let wanted = self.macs(direction, host, method, path, at);
        let mut given = given.split(',').take(MACS_MAX);
        let same = |a: &str, b: &str| bool::from(a.as_bytes().ct_eq(b.as_bytes()));
        if !given.any(|given| wanted.iter().any(|wanted| same(wanted, given))) {
            return Err(LinkRefused::Mismatch);
        }
        if now_unix.abs_diff(at) > SKEW_SECONDS_MAX.unsigned_abs() {
            return Err(LinkRefused::Expired);
        }
        host.parse().map_err(|_| LinkRefused::Missing)
    }

    /// Identifies the current generation without revealing it.
    pub fn fingerprint(&self) -> String {
        self.with(|ring| fingerprint(ring.current()))
    }

    /// Fingerprints of all generations, oldest first.
    pub fn fingerprints(&self) -> Vec<String> {
        self.with(|ring| ring.generations().iter().map(fingerprint).collect())
    }

    /// All generations, oldest first, without the secret.
    pub fn generations(&self) -> Vec<GenerationStatus> {
        let status = |one: &Generation| GenerationStatus {
            generation: one.number,
            state: one.state,
            fingerprint: fingerprint(one),
        };
        self.with(|ring| ring.generations().iter().map(status).collect())
    }

    /// Number of the generation that signs and seals.
    pub fn current_generation(&self) -> u8 {
        self.with(|ring| ring.current().number)
    }

    /// Derives a secret for another purpose, from which this one cannot be recovered.
    pub fn derive(&self, purpose: &str, parts: &[&str]) -> String {
        self.with(|ring| derive(ring.current(), purpose, parts))
    }

    /// The same by every generation that is accepted, the current one first.
    pub fn derive_each(&self, purpose: &str, parts: &[&str]) -> Vec<String> {
        self.with(|ring| ring.active().map(|one| derive(one, purpose, parts)).collect())
    }

    /// The same by one generation, in any state. `None` if the generation does not exist.
    pub fn derive_with(&self, generation: u8, purpose: &str, parts: &[&str]) -> Option<String> {
        self.with(|ring| ring.generation(generation).map(|one| derive(one, purpose, parts)))
    }

    /// The same by the first generation: for secrets that a rotation must not change, because their
    /// owner would have to change them elsewhere or because they open old data.
    pub fn derive_lasting(&self, purpose: &str, parts: &[&str]) -> String {
        self.with(|ring| derive(ring.first(), purpose, parts))
    }

    fn macs(&self, direction: Direction, host: &str, method: &str, path: &str, at: i64) -> Vec<String> {
        let at = at.to_string();
        let parts = [LINK_VERSION, direction.label(), host, method, path, &at];
        self.with(|ring| ring.active().map(|one| mac(one, &parts)).collect())
    }
}

impl From<SecretRing> for LinkKey {
    fn from(ring: SecretRing) -> Self {
        Self(Arc::new(RwLock::new(ring)))
    }
}

fn fingerprint(generation: &Generation) -> String {
    let mut digits = derive(generation, "fingerprint", &[]);
    digits.truncate(FINGERPRINT_DIGITS);
    digits
}

fn derive(generation: &Generation, purpose: &str, parts: &[&str]) -> String {
    let parts: Vec<&str> = [LINK_VERSION, "derive", purpose].iter().chain(parts).copied().collect();
    mac(generation, &parts)
}

/// Hex of a MAC over these parts.
fn mac(generation: &Generation, parts: &[&str]) -> String {
    // HMAC accepts keys of every length, so this cannot fail; an empty MAC would match nothing anyway.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&generation.key) else { return "-".to_owned() };
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part.as_bytes());
    }
    HEXLOWER.encode(&mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::Direction::*;
    use super::*;

    fn key(byte: u8) -> LinkKey {
        LinkKey::new(&[byte; 32]).unwrap()
    }

    #[test]
    fn a_link_signature_is_bound_to_its_request() {
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
    fn malformed_signature_headers_are_rejected() {
        for header in [None, Some(""), Some("1"), Some("9 a 1 x"), Some("1 a b c"), Some("1 a 1 x y")] {
            assert!(key(1).verify(ControlToAgent, header, "GET", "/", 0).is_err(), "{header:?}");
        }
        assert_eq!(LinkKey::new(b"short").unwrap_err(), RingError::Weak);
    }

    #[test]
    fn control_and_agents_rotate_secrets_in_any_order() {
        let host: HostId = "host-a".parse().unwrap();
        let ring = |stage: u8| {
            let mut ring = SecretRing::new(&[1; 32]).unwrap();
            if stage > 0 {
                ring.stage(&[2; 32]).unwrap();
                ring.activate();
            }
            if stage > 1 {
                ring.finish().unwrap();
            }
            LinkKey::from(ring)
        };
        let accepted = |from: u8, to: u8| {
            let header = ring(from).sign(ControlToAgent, &host, "GET", "/", 1_000);
            ring(to).verify(ControlToAgent, Some(&header), "GET", "/", 1_000).is_ok()
        };
        let before = key(1).sign(ControlToAgent, &host, "GET", "/", 1_000);
        assert_eq!(ring(0).sign(ControlToAgent, &host, "GET", "/", 1_000), before);
        for (from, to, good) in [
            (0, 0, true),
            (0, 1, true),
            (1, 0, true),
            (1, 1, true),
            (1, 2, true),
            (2, 1, true),
            (0, 2, false),
            (2, 0, false),
        ] {
            assert_eq!(accepted(from, to), good, "{from} to {to}");
        }
    }

    #[test]
    fn a_rotation_reaches_every_key_clone() {
        let (link, before) = (key(1), key(1));
        let clone = link.clone();
        let mut ring = link.ring();
        ring.stage(&[2; 32]).unwrap();
        ring.activate();
        link.replace(ring);
        assert_ne!(clone.derive("a", &["b"]), before.derive("a", &["b"]));
        assert_eq!(clone.derive_each("a", &["b"])[1], before.derive("a", &["b"]));
        assert_eq!(clone.derive_with(1, "a", &["b"]), Some(before.derive("a", &["b"])));
        assert_eq!(clone.derive_with(3, "a", &["b"]), None);
        assert_eq!(clone.derive_lasting("a", &["b"]), before.derive("a", &["b"]));
        assert_eq!(clone.fingerprints()[0], before.fingerprint());
    }
}
