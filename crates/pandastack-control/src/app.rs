//! State of the server that handlers and the services share: the sandbox core, and what each service keeps.

use std::ops::Deref;
use std::sync::Arc;

use pandastack_webhooks::Webhooks;
use tokio::sync::broadcast;

use crate::apps::Apps;
use crate::audit::AuditLog;
use crate::auth::KeyCache;
pub(crate) use crate::clock::now;
use crate::databases::PublicAddress;
use crate::databases::backups::Backups;
use crate::databases::ports::Ports;
use crate::databases::revive::Revivals;
use crate::databases::room::Rooms;
use crate::functions::Functions;
use crate::metrics::Metrics;
use crate::rate::{KeyFailures, Rates};
use crate::replicas::Replicas;
use crate::sandboxes::Sandboxes;
use crate::schedules::Schedules;

/// Shared state of the control plane.
pub(crate) struct App {
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// Where clients of databases connect to.
    pub(crate) postgres: Option<PublicAddress>,
    pub(crate) database_ports: Option<Ports>,
    /// Told when names of apps may lead elsewhere.
    pub(crate) names: broadcast::Sender<()>,
    pub(crate) keys: KeyCache,
    pub(crate) rates: Rates,
    pub(crate) key_failures: KeyFailures,
    pub(crate) metrics: Metrics,
    pub(crate) audit: AuditLog,
    pub(crate) functions: Functions,
    /// Makes requests to URLs that users configured.
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) schedules: Arc<Schedules>,
    pub(crate) apps: Apps,
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

impl App {
    /// Names of apps may lead elsewhere: edges ask again, also those of other replicas.
    pub(crate) fn names_changed(&self) {
        self.forget_names();
        let store = Arc::clone(&self.store);
        self.tasks.spawn(async move {
            if let Err(error) = store.tell_names_changed().await {
                tracing::warn!(%error, "other servers may take a name for what it was, until their next look");
            }
        });
    }

    /// What is known of names is asked for again.
    pub(crate) fn forget_names(&self) {
        self.edge.forget_names();
        let _ = self.names.send(());
    }
}
