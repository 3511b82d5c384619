//! The route of an app's host name.

use std::sync::Arc;

use pandastack_types::SandboxId;

/// The target of a host name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppRoute {
    /// Sandboxes that serve the same.
    Serving(Instances),
    /// An app that is not live yet, with the next step.
    NotServing(String),
    /// An app that must not be reached, because the operator suspended its workspace.
    Suspended(String),
}

/// Sandboxes that can each serve a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instances {
    /// The sandboxes, in the order in which they are used.
    pub sandboxes: Arc<[SandboxId]>,
    /// Number of machines, from the first on, that share requests; each further one is used while
    /// those before it are busy.
    pub always: usize,
    /// TCP port inside each.
    pub port: u16,
    /// The host name is a custom domain of the app's owner.
    pub own_domain: bool,
}
