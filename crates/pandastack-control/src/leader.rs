//! Background work of the leader, and removal of its expired data.

use std::sync::Arc;

use pandastack_apps::{deployer, poller, reporter};
use pandastack_databases::backups::keeper;
use pandastack_sandboxes::{outdated, reaper};

use crate::housekeeping::{self, PruneHook};
use crate::replicas::LeaderTask;
use crate::services::Services;
use crate::{audit, tenants};

/// Hooks that remove old rows of the services.
fn prune_hooks(services: &Arc<Services>) -> Arc<[PruneHook]> {
    let functions = Arc::clone(&services.functions);
    let runs: PruneHook = Box::new(move || {
        let functions = Arc::clone(&functions);
        Box::pin(async move { pandastack_functions::prune_runs(&functions).await })
    });
    Arc::new([runs])
}

/// Background tasks of the leader, in start order.
pub(crate) fn leader_tasks(services: &Arc<Services>) -> Vec<LeaderTask> {
    fn task<F: Future<Output = ()> + Send + 'static>(
        services: &Arc<Services>,
        run: fn(Arc<Services>) -> F,
    ) -> LeaderTask {
        let services = Arc::clone(services);
        Box::new(move || Box::pin(run(Arc::clone(&services))))
    }
    vec![
        task(services, |services| pandastack_databases::recover(Arc::clone(&services.databases))),
        task(services, |services| pandastack_databases::revive::run(Arc::clone(&services.databases))),
        task(services, |services| pandastack_databases::disk_guard::run(Arc::clone(&services.databases))),
        task(services, |services| keeper::run(Arc::clone(&services.databases))),
        task(services, |services| pandastack_templates::runner::run(Arc::clone(&services.templates))),
        task(services, |services| deployer::run(Arc::clone(&services.apps))),
        task(services, |services| reporter::run(Arc::clone(&services.apps))),
        task(services, |services| poller::run(Arc::clone(&services.apps))),
        task(services, tenants::run),
        task(services, audit::export::run),
        task(services, |services| {
            outdated::watch(Arc::clone(&services.sandboxes), services.outdated.clone())
        }),
        task(services, |services| reaper::run(Arc::clone(&services.sandboxes))),
        task(services, |services| {
            let stop = services.background.shutdown.clone();
            housekeeping::prune(Arc::clone(&services.store), stop, prune_hooks(&services))
        }),
        task(services, |services| pandastack_event_webhooks::run(Arc::clone(&services.event_webhooks))),
        task(services, |services| pandastack_functions::run(Arc::clone(&services.functions))),
        task(services, |services| pandastack_scheduler::run(Arc::clone(&services.scheduler))),
    ]
}
