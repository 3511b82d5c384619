//! Shared state of the schedules API and the dispatch loop.

use std::sync::Arc;

use pandastack_metrics::Page;
use pandastack_sandboxes::Sandboxes;
use pandastack_store::apps::AppStore;
use pandastack_store::schedules::{RunStore, ScheduleStore};
use pandastack_webhooks::Webhooks;

use crate::activity::Activity;
use crate::services::Services;

/// The schedules of this server.
pub struct Scheduler {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) store: Arc<dyn ScheduleStore>,
    pub(crate) run_store: Arc<dyn RunStore>,
    /// Apps that schedules call.
    pub(crate) apps: Arc<dyn AppStore>,
    /// Calls URLs and sends alerts.
    pub(crate) webhooks: Arc<Webhooks>,
    /// Functions and databases as targets.
    pub(crate) services: Arc<dyn Services>,
    pub(crate) activity: Arc<Activity>,
    /// Names this process in the runs that it works on.
    pub(crate) instance: String,
}

impl Scheduler {
    /// Schedules whose runs are marked with `instance` while this process works on them.
    pub fn new(
        sandboxes: Arc<Sandboxes>,
        webhooks: Arc<Webhooks>,
        services: Arc<dyn Services>,
        instance: String,
    ) -> Self {
        Self {
            store: Arc::clone(&sandboxes.store) as Arc<dyn ScheduleStore>,
            run_store: Arc::clone(&sandboxes.store) as Arc<dyn RunStore>,
            apps: Arc::clone(&sandboxes.store) as Arc<dyn AppStore>,
            sandboxes,
            webhooks,
            services,
            activity: Arc::new(Activity::new()),
            instance,
        }
    }

    /// Looks at what is due again soon.
    pub fn wake(&self) {
        self.activity.wake();
    }

    /// Adds what is counted to the page of metrics.
    pub fn add_metrics(&self, page: &mut Page) {
        self.activity.add_metrics(page);
    }
}
