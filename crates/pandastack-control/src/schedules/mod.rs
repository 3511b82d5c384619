//! Schedules: cron, intervals and one-off times that call HTTP and apps, run commands, move sandboxes, invoke functions or run SQL.
//!
//! ```text
//!   routes --> ops --> store <-- scheduler.step(now) --> runner --> http | app | command | sandbox | services
//!                        ^            |
//!                 wake --+            +-- sleeps on the wall clock until the next thing to do (timer)
//! ```
//!
//! Owns: what is due when, who runs it, how often it is tried, and the record of it. `pandastack_schedule` decides when;
//! the store sees to it that each instant is decided once.
//!
//! Must hold: nothing is remembered here that is not in the store, so a `kill -9` at any point loses no run: what had
//! begun is tried again as its next attempt. A schedule drives sandboxes through the same operations as the public API.
//!
//! Left to others: functions and databases, which [`services`] calls.

mod alert;
mod app_target;
mod http_target;
mod ops;
pub(crate) mod routes;
mod runner;
mod scheduler;
mod services;
mod spec;
mod timer;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use pandastack_types::ScheduleRunId;
use pandastack_types::api::RunOrigin;
use pandastack_webhooks::Webhooks;
use runner::Targets;
use scheduler::Scheduler;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::App;
use crate::clock::now;
use crate::store::schedules::{RunRecord, RunState, ScheduleRecord};
use pandastack_rest::metrics::Family;

/// What handlers and the scheduler share: a bell, the runs of this process, and who waits for them.
pub(crate) struct Schedules {
    /// Rung when there may be something to do sooner.
    changed: Notify,
    /// Ends runs of this process.
    under_way: Mutex<HashMap<ScheduleRunId, CancellationToken>>,
    /// Who wants to know when a run has ended.
    waiting: Mutex<HashMap<ScheduleRunId, Vec<oneshot::Sender<()>>>>,
    webhooks: Arc<Webhooks>,
    /// Tasks that run targets and send alerts.
    tasks: TaskTracker,
    /// Time of attempts, by target and outcome.
    attempts: Family,
    /// How late runs begin.
    lateness: Family,
}

impl Schedules {
    /// Alerts go out through `webhooks`.
    pub(crate) fn new(webhooks: Arc<Webhooks>) -> Self {
        Self {
            changed: Notify::new(),
            under_way: Mutex::default(),
            waiting: Mutex::default(),
            webhooks,
            tasks: TaskTracker::new(),
            attempts: Family::new("pandastack_schedule_attempt_seconds", "Time that attempts of runs took."),
            lateness: Family::new(
                "pandastack_schedule_late_seconds",
                "How much later than its time a run begins.",
            ),
        }
    }

    /// Counts a run that begins, if it has a time to begin at: not one that waited for others, was missed or asked for.
    fn count_begin(&self, run: &RunRecord, at: Timestamp) {
        if run.attempt == 1
            && run.origin == RunOrigin::Schedule
            && !run.is_catch_up
            && run.outcome.missed == 0
        {
            self.lateness.observe(String::new(), at.duration_since(run.not_before).as_secs_f64().max(0.0));
        }
    }

    /// Counts an attempt that ended.
    fn count_attempt(&self, schedule: &ScheduleRecord, state: RunState, took_ms: u64) {
        let (target, state) = (spec::target_kind(&schedule.spec.target), state.as_str());
        let labels = format!("target=\"{target}\",status=\"{state}\"");
        self.attempts.observe(labels, took_ms as f64 / 1000.0);
    }

    /// Writes what is counted to the page of metrics.
    pub(crate) fn render(&self, page: &mut String) {
        self.attempts.render(page);
        self.lateness.render(page);
    }

    /// Looks again soon.
    fn wake(&self) {
        self.changed.notify_one();
    }

    /// Notes a run that begins; the token ends it.
    fn begin(&self, id: &ScheduleRunId) -> CancellationToken {
        let stop = CancellationToken::new();
        self.lock_under_way().insert(id.clone(), stop.clone());
        stop
    }

    /// A run of this process has ended a try.
    fn done(&self, id: &ScheduleRunId) {
        self.lock_under_way().remove(id);
    }

    /// Ends a run if it is of this process, and tells who waits for it.
    fn end(&self, id: &ScheduleRunId) {
        if let Some(stop) = self.lock_under_way().remove(id) {
            stop.cancel();
        }
        self.tell(id);
    }

    fn end_all(&self) {
        for (_, stop) in self.lock_under_way().drain() {
            stop.cancel();
        }
    }

    fn count_under_way(&self) -> usize {
        self.lock_under_way().len()
    }

    /// Resolves when the run has ended for good.
    fn ended(&self, id: &ScheduleRunId) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        self.lock_waiting().entry(id.clone()).or_default().push(tell);
        told
    }

    fn tell(&self, id: &ScheduleRunId) {
        for waiter in self.lock_waiting().remove(id).unwrap_or_default() {
            // Whoever waited may have gone away.
            let _ = waiter.send(());
        }
    }

    fn lock_under_way(&self) -> std::sync::MutexGuard<'_, HashMap<ScheduleRunId, CancellationToken>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_waiting(&self) -> std::sync::MutexGuard<'_, HashMap<ScheduleRunId, Vec<oneshot::Sender<()>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fires schedules until shutdown.
pub(crate) async fn run(app: Arc<App>) {
    let scheduler = Arc::new(Scheduler {
        store: Arc::clone(&app.store),
        runner: Arc::new(Targets(Arc::clone(&app))),
        shared: Arc::clone(&app.schedules),
        instance: app.replicas.instance.clone(),
        clock: Arc::new(now),
    });
    scheduler::run(scheduler, &app.shutdown).await;
}
