//! Requests of edges to control.

use serde::{Deserialize, Serialize};

use crate::{HostId, SandboxId};

/// The route of a sandbox for an edge: `GET /internal/v1/routes/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeRoute {
    /// Host it lives on.
    pub host: HostId,
    /// Address of that host's agent, as it reports it.
    pub agent_address: String,
    /// Membership of that host; 0 if it has no certificate.
    #[serde(default)]
    pub membership: u32,
    /// Incarnation of the sandbox.
    pub incarnation: u64,
    /// Visibility of its ports.
    pub visibility: crate::preview::Visibility,
    /// Number of times the credentials of its previews were revoked.
    pub preview_revision: u64,
    /// `Host` header of requests to its ports, if it is not the client's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_header: Option<crate::host_header::HostHeader>,
    /// Credentials of its previews, for edges without the join secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_key: Option<crate::preview::PreviewKey>,
    /// Reason why the sandbox may not be reached, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

/// The target of an app's host name: `GET /internal/v1/names/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeName {
    /// A port of a sandbox, or of several.
    Serving {
        /// The sandbox.
        sandbox: SandboxId,
        /// TCP port inside it.
        port: u16,
        /// More sandboxes that serve the same app.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        more: Vec<SandboxId>,
        /// Number of sandboxes, from the first on, that share requests; each further one is used
        /// while those before it are busy.
        #[serde(default)]
        always: usize,
        /// The name is a domain of the app's owner, not one below the platform's.
        #[serde(default)]
        own_domain: bool,
    },
    /// The app does not serve requests yet.
    NotServing {
        /// Reason, and what to do.
        why: String,
        /// The app's workspace is suspended.
        #[serde(default)]
        suspended: bool,
    },
}

/// The line by which control notifies edges that names may have new targets. Edges that do not know it read
/// all routes again.
pub const NAMES_CHANGED: &str = "@names";
