//! Shared state of the schedules API and the dispatch loop.

use std::sync::Arc;

use pandastack_edge::Edge;
use pandastack_metrics::Page;
use pandastack_sandboxes::Background;
use pandastack_sandboxes::machines::Machines;
use pandastack_store::schedules::{RunStore, ScheduleStore};
use pandastack_webhooks::Webhooks;

use crate::activity::Activity;
use crate::services::Services;

/// The schedules of this server.
pub struct Scheduler {
    /// Sandboxes that schedules move and run commands in.
    pub(crate) machines: Arc<dyn Machines>,
    /// Leads to apps that schedules call.
    pub(crate) edge: Arc<Edge>,
    pub(crate) background: Background,
    pub(crate) store: Arc<dyn ScheduleStore>,
    pub(crate) run_store: Arc<dyn RunStore>,
    /// Calls URLs and sends alerts.
    pub(crate) webhooks: Arc<Webhooks>,
    /// Apps, functions, databases and templates as targets.
    pub(crate) services: Arc<dyn Services>,
    pub(crate) activity: Arc<Activity>,
    /// Names this process in the runs that it works on.
    pub(crate) instance: String,
}

impl Scheduler {
    /// Schedules whose runs are marked with `instance` while this process works on them.
    pub fn new(
        (store, run_store): (Arc<dyn ScheduleStore>, Arc<dyn RunStore>),
        machines: Arc<dyn Machines>,
        edge: Arc<Edge>,
        background: Background,
        webhooks: Arc<Webhooks>,
        services: Arc<dyn Services>,
        instance: String,
    ) -> Self {
        let activity = Arc::new(Activity::new());
        Self { machines, edge, background, store, run_store, webhooks, services, activity, instance }
    }

    /// Triggers a check for due runs soon.
    pub fn wake(&self) {
        self.activity.wake();
    }

    /// Adds counters to the page of metrics.
    pub fn add_metrics(&self, page: &mut Page) {
        self.activity.add_metrics(page);
    }
}
