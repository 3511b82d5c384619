//! Routes to sandboxes, and their source.

use std::net::IpAddr;

use async_trait::async_trait;
use pandastack_agent_client::AgentClient;
use pandastack_types::SandboxId;
use pandastack_types::host_header::HostHeader;
use pandastack_types::preview::{PreviewKey, Visibility};

use crate::app_route::AppRoute;

/// The location of a sandbox, and its visibility.
#[derive(Clone)]
pub struct Route {
    /// Location of the sandbox.
    pub to: Location,
    /// Visibility of its ports.
    pub visibility: Visibility,
    /// `Host` header of requests to its ports, if it is not the client's.
    pub host_header: Option<HostHeader>,
    /// Credentials of a private one.
    pub key: Option<PreviewKey>,
}

/// The location of a sandbox.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "one per sandbox, and nearly always the large one")]
pub enum Location {
    /// A sandbox on a host, which may sleep.
    Sandbox {
        /// The agent of the sandbox's host.
        agent: AgentClient,
        /// The incarnation of the sandbox that is meant.
        incarnation: u64,
    },
    /// A server that is always reachable.
    Fixed(IpAddr),
    /// A sandbox that must not be reached, and why: its workspace is suspended.
    Closed(String),
}

/// The source of routes does not respond.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct RouteUnavailable(pub String);

/// Source of routes. Results are cached until [`crate::Edge::forget_route`]; while the source does
/// not answer, the last result is used.
#[async_trait]
pub trait RouteSource: Send + Sync + 'static {
    /// The route of a sandbox; `None` if the sandbox does not exist.
    async fn find(&self, sandbox: &SandboxId) -> Result<Option<Route>, RouteUnavailable>;

    /// The route of a host name, in lowercase and without port; `None` if it belongs to no app.
    /// Results are cached until [`crate::Edge::forget_names`].
    async fn find_name(&self, _name: &str) -> Result<Option<AppRoute>, RouteUnavailable> {
        Ok(None)
    }
}
