//! State of the server that handlers and the services share: the sandbox core, and what each service keeps.

use std::ops::Deref;
use std::sync::Arc;

use pandastack_apps::Apps;
use pandastack_webhooks::Webhooks;

use crate::audit::AuditLog;
use crate::auth::Keys;
use crate::databases::PublicAddress;
use crate::databases::backups::Backups;
use crate::databases::ports::Ports;
use crate::databases::revive::Revivals;
use crate::databases::room::Rooms;
use crate::functions::Functions;
use crate::metrics::Metrics;
use crate::replicas::Replicas;
use crate::sandboxes::Sandboxes;
use crate::schedules::Schedules;

/// Shared state of the control plane.
pub(crate) struct App {
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// Where clients of databases connect to.
    pub(crate) postgres: Option<PublicAddress>,
    pub(crate) database_ports: Option<Ports>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) metrics: Metrics,
    pub(crate) audit: AuditLog,
    pub(crate) functions: Functions,
    /// Makes requests to URLs that users configured.
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) schedules: Arc<Schedules>,
    pub(crate) apps: Arc<Apps>,
    pub(crate) revivals: Revivals,
    pub(crate) rooms: Rooms,
    pub(crate) backups: Backups,
    /// This server among those that share the database.
    pub(crate) replicas: Arc<Replicas>,
}

impl Deref for App {
    type Target = Sandboxes;

    fn deref(&self) -> &Sandboxes {
        &self.sandboxes
    }
}
