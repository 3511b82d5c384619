//! What an edge must know of a sandbox to send a request to it, and where it learns that.

use std::net::IpAddr;

use async_trait::async_trait;
use pandastack_agent_client::AgentClient;
use pandastack_types::SandboxId;
use pandastack_types::preview::{PreviewKey, Visibility};

use crate::names::Named;

/// How a sandbox is reached, and by whom.
#[derive(Clone)]
pub struct Route {
    /// Where it is.
    pub to: Place,
    /// Who may open its ports.
    pub visibility: Visibility,
    /// Credentials of a private one.
    pub key: Option<PreviewKey>,
}

/// Where requests go.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "one per sandbox, and nearly always the large one")]
pub enum Place {
    /// A sandbox on a host, which may sleep.
    Sandbox {
        /// Its host's agent.
        agent: AgentClient,
        /// The life of it that is meant.
        incarnation: u64,
    },
    /// Something that is always there.
    Fixed(IpAddr),
}

/// Why a route is not known.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct RouteUnavailable(pub String);

/// Where routes come from. Answers are kept until [`crate::Edge::forget_route`]; while the source does not answer, what
/// was known before is used.
#[async_trait]
pub trait RouteSource: Send + Sync + 'static {
    /// The route of a sandbox; `None` when there is no such sandbox.
    async fn find(&self, sandbox: &SandboxId) -> Result<Option<Route>, RouteUnavailable>;

    /// What stands behind a host name, in lowercase and without port; `None` when it is nobody's. Answers are kept until
    /// [`crate::Edge::forget_names`].
    async fn find_name(&self, _name: &str) -> Result<Option<Named>, RouteUnavailable> {
        Ok(None)
    }
}
