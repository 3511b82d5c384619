//! Runs the dispatch loop with this server's clock, stores and targets.

use std::sync::Arc;

use pandastack_store::clock::now;

use crate::dispatcher::{self, Dispatcher};
use crate::runner::Targets;
use crate::scheduler::Scheduler;

/// Fires schedules until shutdown.
pub async fn run(scheduler: Arc<Scheduler>) {
    let dispatcher = Arc::new(Dispatcher {
        store: Arc::clone(&scheduler.store),
        run_store: Arc::clone(&scheduler.run_store),
        runner: Arc::new(Targets(Arc::clone(&scheduler))),
        activity: Arc::clone(&scheduler.activity),
        webhooks: Arc::clone(&scheduler.webhooks),
        instance: scheduler.instance.clone(),
        clock: Arc::new(now),
    });
    dispatcher::run(dispatcher, &scheduler.background.shutdown).await;
}
