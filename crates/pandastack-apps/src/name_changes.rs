//! Notifies edges that app names may have new targets.

use std::sync::Arc;

use pandastack_edge::Edge;
use pandastack_sandboxes::Background;
use pandastack_store::replicas::ReplicaStore;
use pandastack_types::chain;
use tokio::sync::broadcast;

/// Changes that a slow edge may be behind before it forgets all names.
const CHANGES_BUFFERED_MAX: usize = 1024;

/// Changes of the targets of app names: machines, or databases.
pub struct NameChanges {
    edge: Arc<Edge>,
    store: Arc<dyn ReplicaStore>,
    background: Background,
    changes: broadcast::Sender<()>,
}

impl NameChanges {
    /// Changes that `edge` follows, and the replicas on the same store.
    pub fn new(edge: Arc<Edge>, store: Arc<dyn ReplicaStore>, background: Background) -> Self {
        Self { edge, store, background, changes: broadcast::Sender::new(CHANGES_BUFFERED_MAX) }
    }

    /// Makes every edge look up names of apps again, also those of other replicas.
    pub fn notify_all(&self) {
        self.forget();
        let store = Arc::clone(&self.store);
        self.background.tasks.spawn(async move {
            if let Err(error) = store.notify_names_changed().await {
                tracing::warn!(
                    error = %chain(&error),
                    "other replicas may use old names of apps until they look them up again"
                );
            }
        });
    }

    /// Forgets what this server cached of names.
    pub fn forget(&self) {
        self.edge.forget_names();
        let _ = self.changes.send(());
    }

    /// Changes from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<()> {
        self.changes.subscribe()
    }
}
