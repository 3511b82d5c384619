//! State of the service.

use std::sync::Arc;

use http::HeaderMap;
use pandastack_postgres::InsideServer;
use pandastack_rest::url::below;
use pandastack_sandboxes::Sandboxes;
use pandastack_store::apps::{AppStore, PreviewRepoStore};
use pandastack_types::domains::Domains;
use pandastack_webhooks::Webhooks;

use crate::activity::Activity;
use crate::attached_databases::AttachedDatabases;
use crate::domain_challenge::Challenges;

/// The apps of a server.
pub struct Apps {
    /// The sandbox core, which runs the machines of apps.
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// Records of apps and their deployments.
    pub(crate) store: Arc<dyn AppStore>,
    /// Settings for the previews of whole repositories.
    pub(crate) repos: Arc<dyn PreviewRepoStore>,
    /// Tells hosts of repositories how deployments go.
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) databases: Arc<dyn AttachedDatabases>,
    /// Sessions of machines with databases.
    pub(crate) inside: InsideServer,
    pub(crate) activity: Activity,
    /// Names of the platform, and domains below which apps have theirs.
    pub(crate) domains: Domains,
    /// Looks up proofs that a custom domain is its owner's.
    pub(crate) challenges: Challenges,
}

impl Apps {
    /// Whether a host name is the platform's own.
    pub fn is_platform(&self, host: &str) -> bool {
        self.domains.is_platform(host)
    }

    /// Apps whose machines run in `sandboxes`.
    pub fn new(
        sandboxes: Arc<Sandboxes>,
        webhooks: Arc<Webhooks>,
        databases: Arc<dyn AttachedDatabases>,
        domains: Domains,
        challenges: Challenges,
    ) -> Self {
        let store: Arc<dyn AppStore> = sandboxes.store.clone();
        let repos: Arc<dyn PreviewRepoStore> = sandboxes.store.clone();
        Self {
            sandboxes,
            store,
            repos,
            webhooks,
            databases,
            inside: InsideServer::default(),
            activity: Activity::default(),
            domains,
            challenges,
        }
    }

    /// Names of the platform, and domains below which apps have theirs.
    pub fn domains(&self) -> &Domains {
        &self.domains
    }

    /// The address of an app with this name, for a caller.
    pub(crate) fn address(&self, headers: &HeaderMap, name: &str) -> String {
        below(headers, name, &self.domains)
    }
}
