//! Activity of this process: the wake-up signal, runs in progress, their waiters and metrics.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use pandastack_metrics::{Latencies, Page};
use pandastack_store::schedules::{RunRecord, RunState};
use pandastack_types::ScheduleRunId;
use pandastack_types::api::RunOrigin;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// State shared by handlers and the scheduler: a wake-up signal, the runs of this process, and their waiters.
pub(crate) struct Activity {
    /// Rung when there may be something to do sooner.
    pub(crate) changed: Notify,
    /// Ends runs of this process.
    in_flight: Mutex<HashMap<ScheduleRunId, CancellationToken>>,
    /// Waiters for the end of each run.
    waiting: Mutex<HashMap<ScheduleRunId, Vec<oneshot::Sender<()>>>>,
    /// Tasks that run targets and send alerts.
    pub(crate) tasks: TaskTracker,
    /// Time of attempts, by target and outcome.
    attempts: Latencies,
    /// Delays of runs after their time.
    lateness: Latencies,
}

impl Activity {
    /// The state without runs in progress.
    pub(crate) fn new() -> Self {
        Self {
            changed: Notify::new(),
            in_flight: Mutex::default(),
            waiting: Mutex::default(),
            tasks: TaskTracker::new(),
            attempts: Latencies::new(
                "pandastack_schedule_attempt_seconds",
                "Time that attempts of runs took.",
                &["target", "status"],
            ),
            lateness: Latencies::new(
                "pandastack_schedule_late_seconds",
                "How much later than its time a run begins.",
                &[],
            ),
        }
    }

    /// Counts the start of a run that has a scheduled time: not of a run that waited for others,
    /// was missed or was requested.
    pub(crate) fn count_begin(&self, run: &RunRecord, at: Timestamp) {
        if run.attempt == 1
            && run.origin == RunOrigin::Schedule
            && !run.is_catch_up
            && run.outcome.missed == 0
        {
            self.lateness.observe(&[], at.duration_since(run.not_before).as_secs_f64().max(0.0));
        }
    }

    /// Counts an attempt that ended.
    pub(crate) fn count_attempt(&self, target: &str, state: RunState, took_ms: u64) {
        self.attempts.observe(&[target, state.as_str()], took_ms as f64 / 1000.0);
    }

    /// Adds counters to the page of metrics.
    pub(crate) fn add_metrics(&self, page: &mut Page) {
        page.latencies(&self.attempts);
        page.latencies(&self.lateness);
    }

    /// Checks again soon.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Records the start of a run; the token ends it.
    pub(crate) fn begin(&self, id: &ScheduleRunId) -> CancellationToken {
        let stop = CancellationToken::new();
        self.lock_in_flight().insert(id.clone(), stop.clone());
        stop
    }

    /// A run of this process has ended a try.
    pub(crate) fn done(&self, id: &ScheduleRunId) {
        self.lock_in_flight().remove(id);
    }

    /// Ends a run if it belongs to this process, and notifies its waiters.
    pub(crate) fn end(&self, id: &ScheduleRunId) {
        if let Some(stop) = self.lock_in_flight().remove(id) {
            stop.cancel();
        }
        self.notify_waiters(id);
    }

    pub(crate) fn end_all(&self) {
        for (_, stop) in self.lock_in_flight().drain() {
            stop.cancel();
        }
    }

    pub(crate) fn count_in_flight(&self) -> usize {
        self.lock_in_flight().len()
    }

    /// Resolves when the run has ended for good.
    pub(crate) fn wait_for_end(&self, id: &ScheduleRunId) -> oneshot::Receiver<()> {
        let (sender, ended) = oneshot::channel();
        self.lock_waiting().entry(id.clone()).or_default().push(sender);
        ended
    }

    pub(crate) fn notify_waiters(&self, id: &ScheduleRunId) {
        for waiter in self.lock_waiting().remove(id).unwrap_or_default() {
            // The waiter may have gone away.
            let _ = waiter.send(());
        }
    }

    fn lock_in_flight(&self) -> std::sync::MutexGuard<'_, HashMap<ScheduleRunId, CancellationToken>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_waiting(&self) -> std::sync::MutexGuard<'_, HashMap<ScheduleRunId, Vec<oneshot::Sender<()>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
