//! Hosts, and how they join.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::HostId;
use crate::host_identity::HostRole;

/// How a host and the control server authenticate each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostLink {
    /// A socket on the control server's machine.
    Socket,
    /// The shared join secret, over an unencrypted connection. Migrate such hosts.
    SharedSecret,
    /// Certificates on both sides (mutual TLS).
    Certificate,
    /// Not at all: the host was removed.
    Removed,
}

impl HostLink {
    /// The link to an agent at an address.
    pub fn of(address: &str) -> Self {
        match address.split_once(':').map(|(scheme, _)| scheme) {
            Some("unix") => Self::Socket,
            Some("https") => Self::Certificate,
            _ => Self::SharedSecret,
        }
    }

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            HostLink::Socket => "socket",
            HostLink::SharedSecret => "shared_secret",
            HostLink::Certificate => "certificate",
            HostLink::Removed => "removed",
        }
    }
}

/// A host, as shown to operators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// Host ID.
    pub id: HostId,
    /// Role of the host. Fields about sandboxes are empty for edges.
    #[serde(default = "agent")]
    pub role: HostRole,
    /// Whether the host responds.
    pub reachable: bool,
    /// How the host is authenticated.
    #[serde(default = "socket")]
    pub link: HostLink,
    /// End of the host's certificate, which the host renews by itself; null for hosts without one.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub certificate_expires_at: Option<Timestamp>,
    /// Engine for new sandboxes.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// Number of sandboxes on the host.
    pub sandboxes: u64,
    /// Memory that is not reserved, in MiB.
    pub memory_free_mb: u64,
    /// Free disk space in the host's store, in bytes.
    pub disk_free_bytes: u64,
    /// Version of the agent.
    pub version: String,
    /// Time of the agent's last report; for an edge, the time at which it joined.
    #[schema(value_type = String, format = DateTime)]
    pub last_seen_at: Timestamp,
}

fn agent() -> HostRole {
    HostRole::Agent
}

fn socket() -> HostLink {
    HostLink::Socket
}

/// Request body of `POST /v1/hosts/tokens`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateHostToken {
    /// Role of the host that joins: `agent` (default) or `edge`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<HostRole>,
    /// The only host that may use the token. Required for a host that the control server knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostId>,
    /// Lifetime of the token in seconds: 1 to 86,400, 900 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u32>,
}

/// A join token. It is shown once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostToken {
    /// The token, a secret.
    pub token: String,
    /// Its public part, which the audit log names.
    pub id: String,
    /// Role of the host that joins with it.
    pub role: HostRole,
    /// The only host that may use it; null for any new host.
    pub host: Option<HostId>,
    /// End of the token. It also ends with its first use.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}

/// Request body of `POST /v1/hosts/migrate`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MigrateHosts {
    /// Refuse the shared secret over TCP, if no host needs it any more.
    #[serde(default)]
    pub finish: bool,
    /// Refuse it even if some hosts need it.
    #[serde(default)]
    pub force: bool,
}

/// Progress of hosts from the shared join secret to certificates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostMigration {
    /// Whether the shared secret is refused over TCP.
    pub finished: bool,
    /// Hosts that still use it.
    pub pending: Vec<HostId>,
}
