//! Work of this process for apps: running deployments, uploads, deliveries and removals.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pandastack_rest::line_log::LogNews;
use pandastack_store::apps::record::DeploymentRecord;
use pandastack_types::{AppId, DeploymentId};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// State that the parts of this service share while the process runs. Nothing in it is needed after
/// a restart.
pub(crate) struct Activity {
    /// Notified when there may be something to deploy.
    pub(crate) work: Notify,
    /// Signals that the polling interval of a repository changed.
    pub(crate) polls: Notify,
    /// Notified when a deployment's log has new lines.
    pub(crate) logs: LogNews<DeploymentId>,
    /// Incremented with every change of a deployment's state.
    news: watch::Sender<u64>,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Deployments that this process works on.
    running: HashMap<DeploymentId, RunningDeployment>,
    /// Deployments whose log says that they wait for a turn.
    waiting: HashSet<DeploymentId>,
    /// Apps with machines that are given a source and have no deployment yet, once for each.
    uploads: Vec<AppId>,
    /// Apps whose machines were kept for that reason, or could not be deleted; they are cleaned up
    /// afterwards.
    unpruned: HashSet<AppId>,
    /// Apps that are being deleted by this process.
    removing: HashSet<AppId>,
    /// Apps whose earlier versions are being put to sleep.
    retiring: HashSet<AppId>,
    /// Deliveries that are being carried out.
    deliveries: HashSet<(AppId, String)>,
}

struct RunningDeployment {
    app: AppId,
    /// Whether the deployment began with a build.
    builds: bool,
    stop: CancellationToken,
    /// Why it was stopped; the first reason counts.
    reason: Option<Stop>,
    /// Whether the version is about to serve; it is then too late to stop it.
    switching: bool,
}

/// Reason for stopping a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// A user canceled the deployment.
    Canceled,
    /// A newer deployment exists.
    Superseded,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            work: Notify::new(),
            polls: Notify::new(),
            logs: LogNews::default(),
            news: watch::Sender::new(0),
            shared: Mutex::default(),
        }
    }
}

/// Prevents two deletions of an app at the same time.
pub(crate) struct RemovalGuard<'a> {
    activity: &'a Activity,
    app: AppId,
}

impl Drop for RemovalGuard<'_> {
    fn drop(&mut self) {
        self.activity.shared().removing.remove(&self.app);
    }
}

/// Prevents processing a delivery twice at the same time.
pub(crate) struct DeliveryGuard<'a> {
    activity: &'a Activity,
    delivery: (AppId, String),
}

impl Drop for DeliveryGuard<'_> {
    fn drop(&mut self) {
        self.activity.shared().deliveries.remove(&self.delivery);
    }
}

impl Activity {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Every critical section leaves the maps whole, so a panic elsewhere does not make them wrong.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies all followers of a change.
    pub(crate) fn notify(&self) {
        self.news.send_modify(|news| *news += 1);
    }

    /// Changes from now on.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Records that an app is given a source: its machines are not pruned.
    pub(crate) fn begin_upload(&self, app: &AppId) {
        self.shared().uploads.push(app.clone());
    }

    /// Records that one such source has arrived, or will not come.
    pub(crate) fn end_upload(&self, app: &AppId) {
        let mut shared = self.shared();
        if let Some(at) = shared.uploads.iter().position(|one| one == app) {
            shared.uploads.swap_remove(at);
        }
        if shared.unpruned.contains(app) && !shared.uploads.contains(app) {
            self.work.notify_one();
        }
    }

    /// Returns whether an upload holds machines of the app that nothing refers to yet, and if so
    /// defers pruning until it ends.
    pub(crate) fn defer_pruning(&self, app: &AppId) -> bool {
        let mut shared = self.shared();
        let is_uploading = shared.uploads.contains(app);
        if is_uploading {
            shared.unpruned.insert(app.clone());
        }
        is_uploading
    }

    /// Records that an app is still to be pruned.
    pub(crate) fn note_unpruned(&self, app: AppId) {
        self.shared().unpruned.insert(app);
    }

    /// Takes the apps that were not pruned and can be now: no deployment of them runs.
    pub(crate) fn take_unpruned(&self) -> Vec<AppId> {
        let mut shared = self.shared();
        let Shared { running, uploads, unpruned, .. } = &mut *shared;
        let is_busy =
            |app: &AppId| uploads.contains(app) || running.values().any(|running| running.app == *app);
        let free: Vec<_> = unpruned.iter().filter(|app| !is_busy(app)).cloned().collect();
        unpruned.retain(|app| !free.contains(app));
        free
    }

    /// Records that a delivery is being carried out, until dropped. `None` if it is already.
    pub(crate) fn begin_delivery(&self, app: &AppId, delivery: &str) -> Option<DeliveryGuard<'_>> {
        let delivery = (app.clone(), delivery.to_owned());
        let first = self.shared().deliveries.insert(delivery.clone());
        first.then(|| DeliveryGuard { activity: self, delivery })
    }

    /// Records that an app is being deleted, until dropped. `None` if it is already.
    pub(crate) fn begin_removal(&self, app: &AppId) -> Option<RemovalGuard<'_>> {
        let first = self.shared().removing.insert(app.clone());
        first.then(|| RemovalGuard { activity: self, app: app.clone() })
    }

    /// Records that an app's earlier versions are being put to sleep. `false` if they are already.
    pub(crate) fn begin_retiring(&self, app: &AppId) -> bool {
        self.shared().retiring.insert(app.clone())
    }

    /// Records that this has ended.
    pub(crate) fn end_retiring(&self, app: &AppId) {
        self.shared().retiring.remove(app);
    }

    /// Records that a deployment begins; returns what stops it.
    pub(crate) fn begin(&self, one: &DeploymentRecord) -> CancellationToken {
        let stop = CancellationToken::new();
        let (app, builds) = (one.app.clone(), one.builds());
        let running = RunningDeployment { app, builds, stop: stop.clone(), reason: None, switching: false };
        self.shared().running.insert(one.id.clone(), running);
        stop
    }

    /// Records the deployments that wait for their turn. Returns the newly waiting ones.
    pub(crate) fn note_waiting(&self, waiting: &[DeploymentRecord]) -> Vec<DeploymentId> {
        let now: HashSet<_> = waiting.iter().map(|one| one.id.clone()).collect();
        let before = std::mem::replace(&mut self.shared().waiting, now.clone());
        now.difference(&before).cloned().collect()
    }

    /// Records that it has ended and that its log is complete.
    pub(crate) fn end(&self, id: &DeploymentId) {
        self.shared().running.remove(id);
        self.notify();
    }

    /// Why it was stopped.
    pub(crate) fn reason(&self, id: &DeploymentId) -> Option<Stop> {
        self.shared().running.get(id).and_then(|running| running.reason)
    }

    /// Returns whether this process works on the deployment.
    pub(crate) fn is_running(&self, id: &DeploymentId) -> bool {
        self.shared().running.contains_key(id)
    }

    /// Stops a deployment. `false` when it does not run, or is about to serve.
    pub(crate) fn stop(&self, id: &DeploymentId, reason: Stop) -> bool {
        match self.shared().running.get_mut(id) {
            Some(running) if !running.switching => {
                running.reason.get_or_insert(reason);
                running.stop.cancel();
                true
            }
            _ => false,
        }
    }

    /// Marks the point from which the deployment can no longer be stopped. `false` if it was
    /// stopped before.
    pub(crate) fn switch(&self, id: &DeploymentId) -> bool {
        match self.shared().running.get_mut(id) {
            Some(running) if running.reason.is_none() => {
                running.switching = true;
                true
            }
            _ => false,
        }
    }

    /// The deployment of an app that runs now.
    pub(crate) fn running(&self, app: &AppId) -> Option<DeploymentId> {
        self.shared().running.iter().find(|(_, running)| running.app == *app).map(|(id, _)| id.clone())
    }

    /// Number of running deployments that began with a build, or that did not.
    pub(crate) fn count_running(&self, builds: bool) -> usize {
        self.shared().running.values().filter(|running| running.builds == builds).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_pruning_is_retried() {
        let (activity, id) = (Activity::default(), AppId::random());
        activity.begin_upload(&id);
        assert!(activity.defer_pruning(&id));
        assert!(activity.take_unpruned().is_empty(), "a source is on its way to it");
        activity.end_upload(&id);
        assert_eq!(activity.take_unpruned(), std::slice::from_ref(&id));
        assert!(activity.take_unpruned().is_empty());
        activity.note_unpruned(id.clone());
        assert_eq!(activity.take_unpruned(), [id]);
    }

    #[test]
    fn retiring_an_app_version_is_exclusive_per_app() {
        let (activity, id) = (Activity::default(), AppId::random());
        assert!(activity.begin_retiring(&id));
        assert!(!activity.begin_retiring(&id), "who began first is still at it");
        assert!(activity.begin_retiring(&AppId::random()), "another app waits for nobody");
        activity.end_retiring(&id);
        assert!(activity.begin_retiring(&id));
    }
}
