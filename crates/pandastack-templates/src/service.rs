//! State of the service.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pandastack_sandboxes::Sandboxes;
use pandastack_sandboxes::keyed_mutex::KeyedMutex;
use pandastack_store::templates::TemplateStore;
use pandastack_types::BuildId;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// The templates of a server.
pub struct Templates {
    /// The sandbox core, which runs the machines of builds.
    pub(crate) sandboxes: Arc<Sandboxes>,
    /// Records of templates and builds.
    pub(crate) store: Arc<dyn TemplateStore>,
    /// There may be a build to run.
    pub(crate) work: Notify,
    /// Held while the files of a build are changed.
    pub(crate) uploads: KeyedMutex<BuildId>,
    /// Grows with every change of a build or its log.
    news: watch::Sender<u64>,
    /// Builds that this process runs, each with what stops it.
    running: Mutex<HashMap<BuildId, CancellationToken>>,
}

/// Takes a build off the list of those that run.
pub(crate) struct Running {
    templates: Arc<Templates>,
    id: BuildId,
    pub(crate) stop: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.templates.running().remove(&self.id);
        self.templates.work.notify_one();
        self.templates.tell();
    }
}

impl Templates {
    /// Templates whose machines run in `sandboxes`.
    pub fn new(sandboxes: Arc<Sandboxes>) -> Self {
        let store: Arc<dyn TemplateStore> = sandboxes.store.clone();
        Self {
            sandboxes,
            store,
            work: Notify::new(),
            uploads: KeyedMutex::default(),
            news: watch::Sender::new(0),
            running: Mutex::default(),
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<BuildId, CancellationToken>> {
        // Every critical section leaves the map whole, so a panic elsewhere does not make it wrong.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a build runs here.
    pub(crate) fn begin(self: &Arc<Self>, id: &BuildId) -> Running {
        let stop = self.sandboxes.shutdown.child_token();
        self.running().insert(id.clone(), stop.clone());
        Running { templates: Arc::clone(self), id: id.clone(), stop }
    }

    /// How many builds run here.
    pub(crate) fn count_running(&self) -> usize {
        self.running().len()
    }

    /// Whether a build runs here.
    pub(crate) fn is_running(&self, id: &BuildId) -> bool {
        self.running().contains_key(id)
    }

    /// Stops a build that runs here.
    pub(crate) fn stop(&self, id: &BuildId) {
        if let Some(stop) = self.running().get(id) {
            stop.cancel();
        }
    }

    /// Tells followers that something changed.
    pub(crate) fn tell(&self) {
        self.news.send_modify(|news| *news += 1);
    }

    /// Changes from now on.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }
}
