//! Schedules: cron, intervals and one-off times that call HTTP, run commands, move sandboxes, invoke functions or run SQL.
//!
//! ```text
//!   routes --> ops --> store <-- scheduler.step(now) --> runner --> http | command | sandbox | services
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

use pandastack_types::ScheduleRunId;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::app::{App, now};
use http_target::HttpClient;
use runner::Targets;
use scheduler::Scheduler;

/// What handlers and the scheduler share: a bell, the runs of this process, and who waits for them.
pub(crate) struct Schedules {
    /// Rung when there may be something to do sooner.
    changed: Notify,
    /// Ends runs of this process.
    under_way: Mutex<HashMap<ScheduleRunId, CancellationToken>>,
    /// Who wants to know when a run has ended.
    waiting: Mutex<HashMap<ScheduleRunId, Vec<oneshot::Sender<()>>>>,
    http: HttpClient,
    /// Tasks that run targets and send alerts.
    tasks: TaskTracker,
}

impl Schedules {
    /// `allow_private`: targets may be on loopback and private networks.
    pub(crate) fn new(allow_private: bool) -> Self {
        Self {
            changed: Notify::new(),
            under_way: Mutex::default(),
            waiting: Mutex::default(),
            http: HttpClient::new(allow_private),
            tasks: TaskTracker::new(),
        }
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
