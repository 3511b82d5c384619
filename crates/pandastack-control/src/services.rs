//! The services of the server; each handler takes the ones it needs.

use std::sync::Arc;

use axum::extract::FromRef;
use pandastack_apps::{Apps, NameChanges};
use pandastack_databases::ManagedDatabases;
use pandastack_edge::Edge;
use pandastack_event_webhooks::EventWebhooks;
use pandastack_functions::Functions;
use pandastack_sandboxes::hosts::Hosts;
use pandastack_sandboxes::outdated::OutdatedPolicy;
use pandastack_sandboxes::{Background, Sandboxes};
use pandastack_scheduler::Scheduler;
use pandastack_store::Store;
use pandastack_templates::Templates;
use pandastack_types::link::LinkKey;

use crate::audit::AuditLog;
use crate::audit::refusals::RefusalBudget;
use crate::audit::sink::AuditSink;
use crate::auth::Keys;
use crate::fleet::Fleet;
use crate::login::Login;
use crate::metrics::Metrics;
use crate::replicas::{Member, Replicas};

/// The sandbox core, the services, and what every request passes through.
pub(crate) struct Services {
    /// The record of truth.
    pub(crate) store: Arc<dyn Store>,
    /// The hosts and their agents.
    pub(crate) hosts: Arc<Hosts>,
    /// Who may connect as a host, and with which certificate.
    pub(crate) fleet: Arc<Fleet>,
    /// Forwards requests to servers inside sandboxes.
    pub(crate) edge: Arc<Edge>,
    /// Signs what this server and its agents send each other.
    pub(crate) link: LinkKey,
    /// File of that secret; `None` if it was not read from a file.
    pub(crate) secret_file: Option<std::path::PathBuf>,
    /// Changes of what names of apps lead to.
    pub(crate) names: Arc<NameChanges>,
    /// Work beside requests.
    pub(crate) background: Background,
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) keys: Arc<Keys>,
    /// Sign-in of people; `None` without a login provider.
    pub(crate) login: Option<Login>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) audit: Arc<AuditLog>,
    /// Destination of the audit log export.
    pub(crate) audit_sink: Option<AuditSink>,
    /// Policy for outdated frozen states.
    pub(crate) outdated: OutdatedPolicy,
    /// Refused calls that the audit log may still take.
    pub(crate) refusals: RefusalBudget,
    pub(crate) functions: Arc<Functions>,
    pub(crate) scheduler: Arc<Scheduler>,
    pub(crate) apps: Arc<Apps>,
    pub(crate) templates: Arc<Templates>,
    pub(crate) databases: Arc<ManagedDatabases>,
    pub(crate) event_webhooks: Arc<EventWebhooks>,
    /// This server's place among the replicas that share the database.
    pub(crate) replicas: Arc<Replicas>,
}

impl Services {
    /// This server as one of the replicas.
    pub(crate) fn member(&self) -> Member {
        Member {
            replicas: Arc::clone(&self.replicas),
            store: Arc::clone(&self.store),
            sandboxes: Arc::clone(&self.sandboxes),
            hosts: Arc::clone(&self.hosts),
            fleet: Arc::clone(&self.fleet),
            names: Arc::clone(&self.names),
            background: self.background.clone(),
            link: self.link.clone(),
        }
    }
}

/// The state of the server's own routes.
#[derive(Clone)]
pub(crate) struct ServerState(pub(crate) Arc<Services>);

impl FromRef<ServerState> for Arc<Services> {
    fn from_ref(state: &ServerState) -> Self {
        Arc::clone(&state.0)
    }
}

impl FromRef<ServerState> for Arc<Sandboxes> {
    fn from_ref(state: &ServerState) -> Self {
        Arc::clone(&state.0.sandboxes)
    }
}

impl FromRef<ServerState> for Arc<Keys> {
    fn from_ref(state: &ServerState) -> Self {
        Arc::clone(&state.0.keys)
    }
}
