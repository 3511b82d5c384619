//! Shared state of functions: stores, pools of machines, caches and metrics.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pandastack_edge::Edge;
use pandastack_metrics::{Latencies, Page};
use pandastack_rest::Admission;
use pandastack_sandboxes::Background;
use pandastack_sandboxes::machines::Machines;
use pandastack_store::functions::{FunctionRunStore, FunctionStore, RunRecord};
use pandastack_store::write_behind::WriteBehind;
use pandastack_types::FunctionId;
use pandastack_types::api::Run;
use pandastack_webhooks::Webhooks;
use tokio::sync::Notify;

use crate::core::Core;
use crate::function_cache::FunctionCache;
use crate::pool::Pool;
use crate::tail::Tails;

/// The functions of this server.
pub struct Functions {
    pub(crate) core: Core,
    pub(crate) store: Arc<dyn FunctionStore>,
    pub(crate) run_store: Arc<dyn FunctionRunStore>,
    /// Takes dead letters to their URLs.
    pub(crate) webhooks: Arc<Webhooks>,
    /// Checks keys of requests to functions' own URLs.
    pub(crate) admission: Arc<dyn Admission>,
    pools: Mutex<HashMap<(FunctionId, u32), Arc<Pool>>>,
    pub(crate) cache: FunctionCache,
    /// Calls that ended, on their way into the store.
    pub runs: WriteBehind<RunRecord>,
    pub(crate) tails: Tails,
    /// Notified when a deploy ended.
    pub(crate) built: Notify,
    /// Notified when a call was queued.
    pub(crate) queued: Notify,
    /// Time of calls by kind, outcome and start.
    calls: Latencies,
    /// Waits for a machine.
    waits: Latencies,
}

impl Functions {
    /// Functions with these stores, whose machines are reached through the edge.
    pub fn new(
        (store, run_store): (Arc<dyn FunctionStore>, Arc<dyn FunctionRunStore>),
        machines: Arc<dyn Machines>,
        edge: Arc<Edge>,
        background: Background,
        webhooks: Arc<Webhooks>,
        admission: Arc<dyn Admission>,
    ) -> Self {
        Self {
            core: Core { machines, edge, background },
            store,
            run_store,
            webhooks,
            admission,
            pools: Mutex::default(),
            cache: FunctionCache::default(),
            runs: WriteBehind::default(),
            tails: Tails::default(),
            built: Notify::new(),
            queued: Notify::new(),
            calls: Latencies::new(
                "pandastack_function_call_seconds",
                "Time that handlers took, by call.",
                &["kind", "status", "start"],
            ),
            waits: Latencies::new(
                "pandastack_function_wait_seconds",
                "Time until a machine was there, by call.",
                &["start"],
            ),
        }
    }

    /// Checks queued calls again soon.
    pub fn wake_queue(&self) {
        self.queued.notify_one();
    }

    /// Counts a call, or an attempt of one, that ended.
    pub(crate) fn count(&self, run: &Run) {
        let start = if run.cold { "cold" } else { "warm" };
        self.calls.observe(&[run.kind.as_str(), run.status.as_str(), start], run.duration_ms / 1000.0);
        self.waits.observe(&[start], run.wait_ms / 1000.0);
    }

    /// Adds counters to the page of metrics.
    pub fn add_metrics(&self, page: &mut Page) {
        page.latencies(&self.calls);
        page.latencies(&self.waits);
        let counts = self
            .pools()
            .values()
            .map(|pool| pool.counts())
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        page.gauge("pandastack_function_machines", "Machines of functions.", counts.0 as f64);
        page.gauge("pandastack_function_waiting", "Calls that wait for a machine.", counts.1 as f64);
    }

    pub(crate) fn pools(&self) -> MutexGuard<'_, HashMap<(FunctionId, u32), Arc<Pool>>> {
        // Every critical section leaves the map whole.
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Machines and waiting calls of a function.
    pub(crate) fn counts(&self, function: &FunctionId) -> (usize, usize) {
        let pools = self.pools();
        let of_function = pools.iter().filter(|((id, _), _)| id == function);
        of_function.map(|(_, pool)| pool.counts()).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}
