//! State of the service.

use std::sync::Arc;

use http::HeaderMap;
use pandastack_edge::Edge;
use pandastack_postgres::InsideServer;
use pandastack_rest::url::below;
use pandastack_sandboxes::Background;
use pandastack_sandboxes::machines::Machines;
use pandastack_sandboxes::platform_templates::PlatformTemplates;
use pandastack_store::apps::{AppStore, PreviewRepoStore};
use pandastack_types::domains::Domains;
use pandastack_types::link::LinkKey;
use pandastack_types::{AppId, Result, WorkspaceId};
use pandastack_webhooks::Webhooks;

use crate::activity::Activity;
use crate::attached_databases::AttachedDatabases;
use crate::domain_challenge::Challenges;
use crate::name_changes::NameChanges;

/// Dependencies of the service, from the server.
pub struct AppsParts {
    /// Records of apps and their deployments.
    pub store: Arc<dyn AppStore>,
    /// Settings for the previews of whole repositories.
    pub repos: Arc<dyn PreviewRepoStore>,
    /// The machines that build and serve.
    pub machines: Arc<dyn Machines>,
    /// Templates that apps start from.
    pub templates: Arc<dyn PlatformTemplates>,
    /// Checks the health of servers in machines.
    pub edge: Arc<Edge>,
    /// Notified when an app name may have a new target.
    pub names: Arc<NameChanges>,
    /// Work beside requests.
    pub background: Background,
    /// Derives deploy keys and domain challenges.
    pub link: LinkKey,
    /// Reports deployment status to Git hosts.
    pub webhooks: Arc<Webhooks>,
    /// Databases that apps are attached to.
    pub databases: Arc<dyn AttachedDatabases>,
    /// Names of the platform, and domains below which apps have theirs.
    pub domains: Domains,
    /// Verifies ownership of custom domains.
    pub challenges: Challenges,
}

/// The apps of a server.
pub struct Apps {
    pub(crate) store: Arc<dyn AppStore>,
    pub(crate) repos: Arc<dyn PreviewRepoStore>,
    pub(crate) machines: Arc<dyn Machines>,
    pub(crate) templates: Arc<dyn PlatformTemplates>,
    pub(crate) edge: Arc<Edge>,
    pub(crate) names: Arc<NameChanges>,
    pub(crate) background: Background,
    pub(crate) link: LinkKey,
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) databases: Arc<dyn AttachedDatabases>,
    /// Sessions of machines with databases.
    pub(crate) inside: InsideServer,
    pub(crate) activity: Activity,
    pub(crate) domains: Domains,
    pub(crate) challenges: Challenges,
}

impl Apps {
    /// Returns whether a host name is the platform's own.
    pub fn is_platform(&self, host: &str) -> bool {
        self.domains.is_platform(host)
    }

    /// Apps of these parts.
    pub fn new(parts: AppsParts) -> Self {
        Self {
            store: parts.store,
            repos: parts.repos,
            machines: parts.machines,
            templates: parts.templates,
            edge: parts.edge,
            names: parts.names,
            background: parts.background,
            link: parts.link,
            webhooks: parts.webhooks,
            databases: parts.databases,
            inside: InsideServer::default(),
            activity: Activity::default(),
            domains: parts.domains,
            challenges: parts.challenges,
        }
    }

    /// An app of a workspace, by id or name, and its address as the client of its latest deployment
    /// reaches it.
    pub async fn find_address(&self, workspace: &WorkspaceId, id_or_name: &str) -> Result<(AppId, String)> {
        let record = self.store.app(Some(workspace), id_or_name).await?;
        let known = self.store.deployments(&record.id).await?.into_iter().find_map(|one| one.spec.address);
        Ok((record.id, known.unwrap_or_else(|| format!("http://{}.localhost", record.name))))
    }

    /// Refuses an app that a workspace does not have.
    pub async fn check_exists(&self, workspace: &WorkspaceId, id_or_name: &str) -> Result<()> {
        Ok(self.store.app(Some(workspace), id_or_name).await.map(drop)?)
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
