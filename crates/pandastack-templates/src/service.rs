//! State of the template service.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pandastack_rest::line_log::LogNews;
use pandastack_sandboxes::Background;
use pandastack_sandboxes::keyed_mutex::KeyedMutex;
use pandastack_sandboxes::machines::Machines;
use pandastack_sandboxes::platform_templates::PlatformTemplates;
use pandastack_store::template_readers::TemplateReaderStore;
use pandastack_store::templates::{BuildRecord, TemplateStore};
use pandastack_types::{BuildId, Error, Result, WorkspaceId};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Longest time for a build to end after a stop request.
const STOP_WAIT: Duration = Duration::from_secs(60);

/// The templates of a server.
pub struct Templates {
    /// Machines of builds, and snapshots.
    pub(crate) machines: Arc<dyn Machines>,
    /// Templates that come with the platform.
    pub(crate) platform: Arc<dyn PlatformTemplates>,
    pub(crate) background: Background,
    /// Records of templates and builds.
    pub(crate) store: Arc<dyn TemplateStore>,
    /// Records of which other workspaces may use a template.
    pub(crate) readers: Arc<dyn TemplateReaderStore>,
    /// Notified when there may be a build to run.
    pub(crate) work: Notify,
    /// Held while the files of a build are changed.
    pub(crate) uploads: KeyedMutex<BuildId>,
    /// Notified when a build's log has new lines.
    pub(crate) logs: LogNews<BuildId>,
    /// Incremented with every change of a build's state.
    news: watch::Sender<u64>,
    /// Builds that this process runs, each with its cancellation token.
    running: Mutex<HashMap<BuildId, RunningBuild>>,
    /// Number of the turn that each workspace had last.
    turns: Mutex<HashMap<WorkspaceId, u64>>,
}

struct RunningBuild {
    workspace: WorkspaceId,
    stop: CancellationToken,
}

/// The exclusive right to run or end a build. Dropping it removes the build from the list of
/// running builds.
pub(crate) struct BuildLock {
    templates: Arc<Templates>,
    id: BuildId,
    pub(crate) stop: CancellationToken,
}

impl Drop for BuildLock {
    fn drop(&mut self) {
        self.templates.running().remove(&self.id);
        self.templates.work.notify_one();
        self.templates.notify();
    }
}

impl Templates {
    /// Templates of workspaces, beside those of the platform.
    pub fn new(
        store: Arc<dyn TemplateStore>,
        readers: Arc<dyn TemplateReaderStore>,
        machines: Arc<dyn Machines>,
        platform: Arc<dyn PlatformTemplates>,
        background: Background,
    ) -> Self {
        Self {
            machines,
            platform,
            background,
            store,
            readers,
            work: Notify::new(),
            uploads: KeyedMutex::default(),
            logs: LogNews::default(),
            news: watch::Sender::new(0),
            running: Mutex::default(),
            turns: Mutex::default(),
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<BuildId, RunningBuild>> {
        // Every critical section leaves the map whole, so a panic elsewhere does not make it wrong.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a build runs here, or is ended here; `None` if it is already.
    pub(crate) fn begin(self: &Arc<Self>, build: &BuildRecord) -> Option<BuildLock> {
        let mut running = self.running();
        if running.contains_key(&build.id) {
            return None;
        }
        let stop = self.background.shutdown.child_token();
        let one = RunningBuild { workspace: build.workspace.clone(), stop: stop.clone() };
        running.insert(build.id.clone(), one);
        Some(BuildLock { templates: Arc::clone(self), id: build.id.clone(), stop })
    }

    /// Number of builds of each workspace that run here.
    pub(crate) fn count_running(&self) -> HashMap<WorkspaceId, usize> {
        let mut counts = HashMap::new();
        for one in self.running().values() {
            *counts.entry(one.workspace.clone()).or_default() += 1;
        }
        counts
    }

    /// Number of the turn that each workspace had last.
    pub(crate) fn last_starts(&self) -> MutexGuard<'_, HashMap<WorkspaceId, u64>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a build runs here.
    pub(crate) fn is_running(&self, id: &BuildId) -> bool {
        self.running().contains_key(id)
    }

    /// Stops a build that runs here.
    pub(crate) fn stop(&self, id: &BuildId) {
        if let Some(one) = self.running().get(id) {
            one.stop.cancel();
        }
    }

    /// Waits until a build that was stopped has ended here.
    pub(crate) async fn wait_until_ended(&self, id: &BuildId) -> Result<()> {
        let mut news = self.follow();
        let ended = async { while self.is_running(id) && news.changed().await.is_ok() {} };
        tokio::time::timeout(STOP_WAIT, ended)
            .await
            .map_err(|_| Error::conflict(format!("template build `{id}` has not ended yet")))
    }

    /// Notifies followers of a change.
    pub(crate) fn notify(&self) {
        self.news.send_modify(|news| *news += 1);
    }

    /// Changes from now on.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }
}
