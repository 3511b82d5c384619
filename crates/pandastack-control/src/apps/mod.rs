//! Apps: a source is built in a machine of its own, served from another behind a stable name, and replaced without a
//! failed request.
//!
//! ```text
//!   routes, hooks --> a deployment, queued --> deployer: one at a time per app, the newest wins
//!                                                 |
//!        build:  build machine <- source, install (or restored), build --> artifact (a snapshot)
//!        serve:  machines <- artifact, start, ports, health check
//!        switch: one transaction; edges ask again which machines stand behind the name
//!        tidy:   the last versions stay asleep for a rollback, everything else goes
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `record`, `store` | what is written down, in `pandastack-store` |
//! | `routes`, `settings`, `upload`, `env`, `dotenv`, `domains`, `runtime_logs`, `usage`, `awake`, `hooks`, `view`, `check` | the API |
//! | `databases`, `database_way` | databases of apps, and how their machines reach them |
//! | `pulls`, `previews` | what pull requests say, and what becomes of them |
//! | `preview_repos`, `preview_env` | what is said of the previews of a whole repository |
//! | `deployer`, `deploy` | whose turn it is; the steps of one deployment |
//! | `source`, `says`, `build`, `serve` | those steps, each in machines |
//! | `mend` | as many machines as was said: replaces what was lost, follows a change of their number |
//! | `git`, `deploy_key` | where repositories are, and what proves that an app may read them |
//! | `machine`, `output`, `log`, `room` | calls to a machine, what it says, and what it lacks |
//! | `poller` | looking at repositories whose host tells nothing |
//! | `commit_status`, `reporter` | telling a repository's host how deployments go |
//! | `tidy`, `removal` | which machines and snapshots an app needs; the rest is deleted; and apps themselves |
//! | `names` | what stands behind a host name |
//!
//! Must hold: a deployment that fails or is stopped leaves what serves alone; after a crash at any point a deployment goes
//! on or fails, and never stays where it was; sources never touch a host's file system, only a machine's; a secret is
//! neither an argument of a command nor in a log line of ours.
//!
//! Left to others: making and stopping machines (`ops`, the same that the sandbox API uses), holding requests while one
//! wakes (the edge), telling what kind of app a source is (`pandastack-detect`).

pub(crate) mod awake;
pub(crate) mod build;
pub(crate) mod check;
mod commit_status;
pub(crate) mod database_way;
pub(crate) mod databases;
pub(crate) mod deploy;
mod deploy_key;
pub(crate) mod deployer;
pub(crate) mod domains;
mod dotenv;
pub(crate) mod env;
mod git;
mod health;
pub(crate) mod hooks;
pub(crate) mod log;
mod machine;
mod mend;
pub(crate) mod names;
pub(crate) mod poller;
pub(crate) mod preview_env;
pub(crate) mod preview_repos;
pub(crate) mod previews;
mod pulls;
mod removal;
pub(crate) mod reporter;
mod room;
pub(crate) mod routes;
pub(crate) mod runtime_logs;
mod says;
mod serve;
pub(crate) mod settings;
mod source;
mod tidy;
pub(crate) mod upload;
pub(crate) mod usage;
mod view;

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pandastack_postgres::Inside;
pub(crate) use pandastack_store::apps::{self as store, record};
use pandastack_types::{AppId, DeploymentId, Owner};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use self::record::DeploymentRecord;

/// Where the source of an app is in its machines.
pub(crate) const SOURCE_DIR: &str = "/srv/app";

/// The owner of an app's machines.
pub(crate) fn owner_of(app: &AppId) -> Owner {
    Owner::App(app.clone())
}

/// What the parts of this service share while the process runs. Nothing in it is needed after a restart.
pub(crate) struct Apps {
    /// There may be something to deploy.
    pub(crate) work: Notify,
    /// Somebody said how often a repository is looked at.
    pub(crate) polls: Notify,
    /// Sessions of machines with databases.
    pub(crate) inside: Inside,
    /// Grows with every change of a deployment or its log.
    news: watch::Sender<u64>,
    shared: Mutex<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Deployments that this process works on.
    running: HashMap<DeploymentId, Running>,
    /// Deployments whose log says that they wait for a turn.
    waiting: HashSet<DeploymentId>,
    /// Apps with machines that are given a source and have no deployment yet, once for each.
    uploads: Vec<AppId>,
    /// Apps whose machines were left alone because of that, or could not be deleted: they are tidied up once it is over.
    untidy: HashSet<AppId>,
    /// Apps that are being deleted by this process.
    removing: HashSet<AppId>,
    /// Apps whose earlier versions are being put to sleep.
    retiring: HashSet<AppId>,
    /// Deliveries that are being carried out.
    deliveries: HashSet<(AppId, String)>,
}

struct Running {
    app: AppId,
    /// Whether it began with a build.
    builds: bool,
    stop: CancellationToken,
    /// Why it was stopped; the first reason counts.
    reason: Option<Stop>,
    /// Its version is about to serve: too late to stop it.
    switching: bool,
}

/// Why a deployment is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Somebody asked for it.
    Canceled,
    /// A newer one is there.
    Superseded,
}

impl Default for Apps {
    fn default() -> Self {
        Self {
            work: Notify::new(),
            polls: Notify::new(),
            inside: Inside::default(),
            news: watch::Sender::new(0),
            shared: Mutex::default(),
        }
    }
}

/// Keeps an app from being deleted twice at once.
struct Removing<'a> {
    apps: &'a Apps,
    app: AppId,
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        self.apps.shared().removing.remove(&self.app);
    }
}

/// Keeps a delivery from being carried out twice at once.
struct Taking<'a> {
    apps: &'a Apps,
    delivery: (AppId, String),
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.apps.shared().deliveries.remove(&self.delivery);
    }
}

impl Apps {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Every critical section leaves the maps whole, so a panic elsewhere does not make them wrong.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whoever follows that something changed.
    pub(crate) fn tell(&self) {
        self.news.send_modify(|news| *news += 1);
    }

    /// Changes from now on.
    pub(crate) fn follow(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Notes that an app is given a source: its machines are not tidied away.
    fn begin_upload(&self, app: &AppId) {
        self.shared().uploads.push(app.clone());
    }

    /// Notes that one such source is there, or will not come.
    fn end_upload(&self, app: &AppId) {
        let mut shared = self.shared();
        if let Some(at) = shared.uploads.iter().position(|one| one == app) {
            shared.uploads.swap_remove(at);
        }
        if shared.untidy.contains(app) && !shared.uploads.contains(app) {
            self.work.notify_one();
        }
    }

    /// Whether an app has machines that nothing refers to yet. If so, it is tidied up when it has none any more.
    fn put_off_tidying(&self, app: &AppId) -> bool {
        let mut shared = self.shared();
        let is_uploading = shared.uploads.contains(app);
        if is_uploading {
            shared.untidy.insert(app.clone());
        }
        is_uploading
    }

    /// Notes that an app is still to be tidied up.
    fn note_untidy(&self, app: AppId) {
        self.shared().untidy.insert(app);
    }

    /// Takes the apps that were not tidied up and can be now: no deployment of them runs.
    fn take_untidy(&self) -> Vec<AppId> {
        let mut shared = self.shared();
        let Shared { running, uploads, untidy, .. } = &mut *shared;
        let is_busy =
            |app: &AppId| uploads.contains(app) || running.values().any(|running| running.app == *app);
        let free: Vec<_> = untidy.iter().filter(|app| !is_busy(app)).cloned().collect();
        untidy.retain(|app| !free.contains(app));
        free
    }

    /// Notes that a delivery is being carried out, until dropped. `None` if it is already.
    fn taking(&self, app: &AppId, delivery: &str) -> Option<Taking<'_>> {
        let delivery = (app.clone(), delivery.to_owned());
        let first = self.shared().deliveries.insert(delivery.clone());
        first.then(|| Taking { apps: self, delivery })
    }

    /// Notes that an app is being deleted, until dropped. `None` if it is already.
    fn removing(&self, app: &AppId) -> Option<Removing<'_>> {
        let first = self.shared().removing.insert(app.clone());
        first.then(|| Removing { apps: self, app: app.clone() })
    }

    /// Notes that an app's earlier versions are being put to sleep. `false` if they are already.
    fn begin_retiring(&self, app: &AppId) -> bool {
        self.shared().retiring.insert(app.clone())
    }

    /// Notes that this is over.
    fn end_retiring(&self, app: &AppId) {
        self.shared().retiring.remove(app);
    }

    /// Notes that a deployment begins; answers what stops it.
    fn begin(&self, one: &DeploymentRecord) -> CancellationToken {
        let stop = CancellationToken::new();
        let (app, builds) = (one.app.clone(), one.builds());
        let running = Running { app, builds, stop: stop.clone(), reason: None, switching: false };
        self.shared().running.insert(one.id.clone(), running);
        stop
    }

    /// Notes which deployments wait for a turn. Answers those that did not before.
    fn note_waiting(&self, waiting: &[DeploymentRecord]) -> Vec<DeploymentId> {
        let now: HashSet<_> = waiting.iter().map(|one| one.id.clone()).collect();
        let before = std::mem::replace(&mut self.shared().waiting, now.clone());
        now.difference(&before).cloned().collect()
    }

    /// Notes that it is over, and all of its log is written.
    fn end(&self, id: &DeploymentId) {
        self.shared().running.remove(id);
        self.tell();
    }

    /// Why it was stopped.
    fn reason(&self, id: &DeploymentId) -> Option<Stop> {
        self.shared().running.get(id).and_then(|running| running.reason)
    }

    /// Whether this process works on it.
    fn is_running(&self, id: &DeploymentId) -> bool {
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

    /// From here on it can be stopped no more. `false` if it was stopped before.
    fn switch(&self, id: &DeploymentId) -> bool {
        match self.shared().running.get_mut(id) {
            Some(running) if running.reason.is_none() => {
                running.switching = true;
                true
            }
            _ => false,
        }
    }

    /// The deployment of an app that runs now.
    fn running(&self, app: &AppId) -> Option<DeploymentId> {
        self.shared().running.iter().find(|(_, running)| running.app == *app).map(|(id, _)| id.clone())
    }

    /// How many deployments run that began with a build, or that did not.
    fn count_running(&self, builds: bool) -> usize {
        self.shared().running.values().filter(|running| running.builds == builds).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_tidied_up_is_taken_again() {
        let (apps, id) = (Apps::default(), AppId::random());
        apps.begin_upload(&id);
        assert!(apps.put_off_tidying(&id));
        assert!(apps.take_untidy().is_empty(), "a source is on its way to it");
        apps.end_upload(&id);
        assert_eq!(apps.take_untidy(), std::slice::from_ref(&id));
        assert!(apps.take_untidy().is_empty());
        apps.note_untidy(id.clone());
        assert_eq!(apps.take_untidy(), [id]);
    }

    #[test]
    fn earlier_versions_of_an_app_are_put_to_sleep_by_one_at_a_time() {
        let (apps, id) = (Apps::default(), AppId::random());
        assert!(apps.begin_retiring(&id));
        assert!(!apps.begin_retiring(&id), "who began first is still at it");
        assert!(apps.begin_retiring(&AppId::random()), "another app waits for nobody");
        apps.end_retiring(&id);
        assert!(apps.begin_retiring(&id));
    }
}
