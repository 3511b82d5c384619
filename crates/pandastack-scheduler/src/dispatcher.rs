//! The loop that fires schedules and starts runs.
//!
//! [`Dispatcher::step`] does the work that is due at a time and returns the time of the next check;
//! it reads no clock, so tests drive it on a virtual one. It takes no other input: each step
//! handles everything due, so a missed or repeated wake-up does no harm, and several schedulers on
//! one store decide each instant once.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pandastack_schedule::{MissedPolicy, Timing, backoff, due, jitter};
use pandastack_store as store;
use pandastack_store::clock::now;
use pandastack_store::schedules::{
    DueRuns, RunEnd, RunOutcome, RunRecord, RunState, RunStore, ScheduleRecord, ScheduleStore,
};
use pandastack_types::api::{MissedRuns, RunOrigin};
use pandastack_types::limits::RUNS_AT_ONCE_MAX;
use pandastack_types::{ScheduleRunId, chain};
use pandastack_webhooks::Webhooks;
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::attempt::Runner;
use crate::timer::WallTimer;
use crate::{alert, spec};

/// Schedules decided in one transaction.
const FIRED_AT_ONCE: u32 = 256;
/// Pause after a failure of the store.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// Longest sleep. Correctness does not depend on it; it bounds the delay after a lost wake-up.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// Fires schedules of one store.
pub(crate) struct Dispatcher {
    pub(crate) store: Arc<dyn ScheduleStore>,
    pub(crate) run_store: Arc<dyn RunStore>,
    pub(crate) runner: Arc<dyn Runner>,
    pub(crate) activity: Arc<Activity>,
    /// Sends alerts.
    pub(crate) webhooks: Arc<Webhooks>,
    /// Names this process in the runs that it works on.
    pub(crate) instance: String,
    /// The time, for when runs end.
    pub(crate) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

/// Runs until shutdown.
pub(crate) async fn run(dispatcher: Arc<Dispatcher>, shutdown: &CancellationToken) {
    let timer = match WallTimer::new() {
        Ok(timer) => timer,
        Err(error) => {
            tracing::error!(
                error = %chain(&error),
                "cannot create a wall clock timer; schedules do not run until the server is restarted"
            );
            return;
        }
    };
    while let Err(error) = dispatcher.take_over(now()).await {
        tracing::warn!(error = %chain(&error), "cannot read schedules; retrying");
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(STORE_RETRY) => {}
        }
    }
    loop {
        let wake_at = match dispatcher.step(now()).await {
            Ok(next) => next.unwrap_or(Timestamp::MAX).min(later(now(), SLEEP_MAX)),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot process schedules; retrying soon");
                later(now(), STORE_RETRY)
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = dispatcher.activity.changed.notified() => {}
            slept = timer.sleep_until(wake_at) => {
                if let Err(error) = slept {
                    tracing::error!(error = %chain(&error), "the wall clock's timer failed");
                }
            }
        }
    }
    // Attempts in progress end with this process; the next one retries them.
    dispatcher.activity.end_all();
    dispatcher.activity.tasks.close();
    dispatcher.activity.tasks.wait().await;
}

impl Dispatcher {
    /// Takes over the runs of an earlier process, and recomputes the next times of cron schedules:
    /// time zones change.
    pub(crate) async fn take_over(&self, now: Timestamp) -> store::Result<()> {
        let interrupted = self.run_store.take_over_runs(&self.instance, now).await?;
        if interrupted > 0 {
            tracing::info!(interrupted, "a restart interrupted runs of schedules");
        }
        for mut schedule in self.store.schedules_pending().await? {
            let next =
                spec::timing(&schedule.spec).ok().and_then(|timing| timing.next_after(schedule.cursor));
            if next != schedule.next_run_at {
                schedule.next_run_at = next;
                self.store.replace_schedule(&schedule).await?;
            }
        }
        Ok(())
    }

    /// Does the work that is due now; returns the time of the next work.
    pub(crate) async fn step(self: &Arc<Self>, now: Timestamp) -> store::Result<Option<Timestamp>> {
        loop {
            let due = self.store.schedules_due(now, FIRED_AT_ONCE).await?;
            let firings: Vec<_> = due.iter().map(|schedule| decide(schedule, now)).collect();
            if !firings.is_empty() {
                self.store.fire(&firings).await?;
            }
            let began = self.begin_runs(now).await?;
            // A concurrent decision changed the record: it is read again until nothing is due.
            if firings.is_empty() && !began {
                break;
            }
        }
        alert::send_due(self, now).await?;
        // A run without a free slot starts when another ends, which wakes this task.
        self.store.next_schedule_work(self.free_slots() > 0).await
    }

    fn free_slots(&self) -> u32 {
        u32::try_from(RUNS_AT_ONCE_MAX.saturating_sub(self.activity.count_in_flight())).unwrap_or(0)
    }

    /// Starts runs that may; whether any run changed.
    async fn begin_runs(self: &Arc<Self>, now: Timestamp) -> store::Result<bool> {
        let room = self.free_slots();
        if room == 0 {
            return Ok(false);
        }
        let claimed = self.run_store.claim_runs(&self.instance, now, room).await?;
        let changed = !claimed.started.is_empty() || !claimed.ended.is_empty();
        for id in &claimed.ended {
            self.activity.end(id);
        }
        for (schedule, run) in claimed.started {
            self.activity.count_begin(&run, (self.clock)());
            let stop = self.activity.begin(&run.id);
            let owner = Arc::clone(self);
            self.activity.tasks.spawn(async move { owner.work(schedule, run, stop).await });
        }
        Ok(changed)
    }

    /// One attempt of a run, and its result.
    async fn work(&self, schedule: ScheduleRecord, run: RunRecord, stop: CancellationToken) {
        let attempt = self.runner.attempt(&schedule, &run, &stop).await;
        if stop.is_cancelled() {
            // Replaced, cancelled, deleted or cut off: the record has the outcome, and this result
            // is discarded.
            return;
        }
        self.activity.count_attempt(
            spec::target_kind(&schedule.spec.target),
            attempt.state,
            attempt.outcome.duration_ms,
        );
        let at = (self.clock)();
        let retry_at = match attempt.state {
            RunState::Success => None,
            _ => retry_at(&schedule, &run, at),
        };
        let end = RunEnd {
            run: run.id.clone(),
            instance: self.instance.clone(),
            state: attempt.state,
            outcome: attempt.outcome,
            retry_at,
            at,
        };
        self.record_end(&end).await;
        self.activity.done(&run.id);
        if end.retry_at.is_none() {
            self.activity.notify_waiters(&run.id);
        }
        self.activity.wake();
    }

    /// Stores the end of a run, retrying until it succeeds: otherwise the run would stay in progress
    /// forever.
    async fn record_end(&self, end: &RunEnd) {
        while let Err(error) = self.run_store.end_run(end).await {
            tracing::warn!(run = %end.run, error = %chain(&error), "cannot record the end of a run yet");
            tokio::time::sleep(STORE_RETRY).await;
        }
    }
}

/// Decides the runs of a schedule that is due.
fn decide(schedule: &ScheduleRecord, now: Timestamp) -> DueRuns {
    let Schedule { timing, policy } = match schedule_rules(schedule) {
        Some(rules) => rules,
        // Checked when it was made; only a zone that was taken out of the database can do this.
        None => return ending(schedule, now),
    };
    let Some(found) = due(&timing, schedule.cursor, now, policy) else {
        // The clock went back after it was read, or the zone changed: check again later.
        let next_run_at = timing.next_after(schedule.cursor.max(now));
        return DueRuns { cursor: schedule.cursor, next_run_at, ..ending(schedule, now) };
    };
    let is_catch_up = found.runs.len() > 1;
    let mut runs: Vec<_> =
        found.runs.iter().map(|instant| new_run(schedule, *instant, is_catch_up, now)).collect();
    match runs.first_mut() {
        Some(first) => first.outcome.missed = found.missed,
        None => runs.push(missed_run(schedule, found.newest, found.missed, now)),
    }
    DueRuns {
        schedule: schedule.id.clone(),
        revision: schedule.revision,
        cursor: found.newest,
        next_run_at: found.next,
        runs,
    }
}

struct Schedule {
    timing: Timing,
    policy: MissedPolicy,
}

fn schedule_rules(schedule: &ScheduleRecord) -> Option<Schedule> {
    let timing = spec::timing(&schedule.spec).ok()?;
    let options = &schedule.spec.options;
    let policy = match options.missed.unwrap_or_default() {
        MissedRuns::Skip => {
            let seconds =
                options.starting_deadline_seconds.unwrap_or(spec::STARTING_DEADLINE_SECONDS_DEFAULT);
            MissedPolicy::Skip { deadline: Duration::from_secs(seconds) }
        }
        MissedRuns::RunOnce => MissedPolicy::RunOnce,
        MissedRuns::RunAll => {
            MissedPolicy::RunAll { max: options.missed_max.unwrap_or(spec::MISSED_RUNS_DEFAULT) }
        }
    };
    Some(Schedule { timing, policy })
}

fn ending(schedule: &ScheduleRecord, now: Timestamp) -> DueRuns {
    DueRuns {
        schedule: schedule.id.clone(),
        revision: schedule.revision,
        cursor: now,
        next_run_at: None,
        runs: Vec::new(),
    }
}

fn new_run(schedule: &ScheduleRecord, instant: Timestamp, is_catch_up: bool, now: Timestamp) -> RunRecord {
    let wait = jitter(schedule.id.as_str(), instant, schedule.spec.options.jitter_seconds.unwrap_or(0));
    RunRecord {
        id: ScheduleRunId::random(),
        schedule: schedule.id.clone(),
        workspace: schedule.workspace.clone(),
        origin: RunOrigin::Schedule,
        scheduled_for: instant,
        state: RunState::Queued,
        not_before: later(instant, wait),
        attempt: 0,
        interruptions: 0,
        is_catch_up,
        created_at: now,
        started_at: None,
        ended_at: None,
        outcome: RunOutcome::default(),
    }
}

/// A run that a client asks for.
pub(crate) fn manual_run(schedule: &ScheduleRecord, now: Timestamp) -> RunRecord {
    RunRecord { origin: RunOrigin::Manual, not_before: now, ..new_run(schedule, now, false, now) }
}

/// History entry for instants that are not caught up.
fn missed_run(schedule: &ScheduleRecord, newest: Timestamp, missed: u32, now: Timestamp) -> RunRecord {
    let error = format!("{missed} runs were missed while no scheduler was running");
    RunRecord {
        state: RunState::Skipped,
        ended_at: Some(now),
        outcome: RunOutcome { missed, error: Some(error), ..RunOutcome::default() },
        ..new_run(schedule, newest, false, now)
    }
}

/// When a failed run is retried. A run that a client requested is not: the client sees the failure
/// and decides. Attempts that ended with their server do not count.
fn retry_at(schedule: &ScheduleRecord, run: &RunRecord, at: Timestamp) -> Option<Timestamp> {
    let options = &schedule.spec.options;
    let failed = run.attempt.saturating_sub(run.interruptions).max(1);
    if run.origin == RunOrigin::Manual || failed > options.retries.unwrap_or(0) {
        return None;
    }
    let first = options.retry_delay_seconds.unwrap_or(spec::RETRY_DELAY_SECONDS_DEFAULT);
    Some(later(at, backoff(first, failed)))
}

/// Adds a wait to a time, up to the largest time.
pub(crate) fn later(at: Timestamp, wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}
