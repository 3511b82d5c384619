//! The identity of a host: what its certificate says about it.
//!
//! ```text
//!   pandastack://agent/host-a/2      role, host id, membership
//! ```
//!
//! A host that was removed and joins again has the next membership, so its old certificate stays refused.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::HostId;

/// Start of an identity's text.
const SCHEME: &str = "pandastack://";

/// What a host does in the installation, and so what it may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostRole {
    /// A control server. Nobody joins as one: control servers share the authority's key.
    Control,
    /// Runs sandboxes.
    Agent,
    /// Forwards traffic to sandboxes.
    Edge,
}

impl HostRole {
    /// The name in JSON, certificates and the database.
    pub fn as_str(self) -> &'static str {
        match self {
            HostRole::Control => "control",
            HostRole::Agent => "agent",
            HostRole::Edge => "edge",
        }
    }
}

impl FromStr for HostRole {
    type Err = InvalidIdentity;

    fn from_str(text: &str) -> Result<Self, InvalidIdentity> {
        let named = [HostRole::Control, HostRole::Agent, HostRole::Edge];
        named.into_iter().find(|role| role.as_str() == text).ok_or(InvalidIdentity)
    }
}

impl fmt::Display for HostRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the identity of a host of this platform")]
pub struct InvalidIdentity;

/// A host, as its certificate names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostIdentity {
    /// Its role.
    pub role: HostRole,
    /// Its id.
    pub host: HostId,
    /// Number of times that a host of this id has joined; 0 for control servers.
    pub membership: u32,
}

impl fmt::Display for HostIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.role, self.host, self.membership)
    }
}

impl FromStr for HostIdentity {
    type Err = InvalidIdentity;

    fn from_str(text: &str) -> Result<Self, InvalidIdentity> {
        let mut parts = text.strip_prefix(SCHEME).ok_or(InvalidIdentity)?.split('/');
        let (Some(role), Some(host), Some(membership), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(InvalidIdentity);
        };
        let identity = Self {
            role: role.parse()?,
            host: host.parse().map_err(|_| InvalidIdentity)?,
            membership: membership.parse().map_err(|_| InvalidIdentity)?,
        };
        // One text for each identity: no signs, no leading zeros.
        if identity.to_string() == text { Ok(identity) } else { Err(InvalidIdentity) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_has_one_text() {
        let text = "pandastack://agent/host-a/2";
        let identity: HostIdentity = text.parse().unwrap();
        assert_eq!(
            (identity.role, identity.host.as_str(), identity.membership),
            (HostRole::Agent, "host-a", 2)
        );
        assert_eq!(identity.to_string(), text);
        for wrong in [
            "",
            "pandastack://",
            "pandastack://agent/host-a",
            "pandastack://agent/host-a/2/",
            "pandastack://agent/host-a/+2",
            "pandastack://agent/host-a/02",
            "pandastack://root/host-a/2",
            "pandastack://agent/Host_a/2",
            "https://agent/host-a/2",
        ] {
            assert!(wrong.parse::<HostIdentity>().is_err(), "{wrong}");
        }
    }
}
