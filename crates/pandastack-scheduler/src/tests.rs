//! Tests of the scheduler on a virtual clock, with scripted targets and the real store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use pandastack_store::TokenStore;
use pandastack_store::schedules::{
    RunOutcome, RunRecord, RunState, RunStore, ScheduleRecord, ScheduleSpec, ScheduleStore,
};
use pandastack_store::sql::SqlStore;
use pandastack_types::api::{
    HttpTarget, MissedRuns, Overlap, ScheduleAlert, ScheduleOptions, ScheduleTarget, ScheduleTiming,
};
use pandastack_types::limits::RUN_INTERRUPTIONS_MAX;
use pandastack_types::link::LinkKey;
use pandastack_types::{ScheduleId, ScheduleRunId, WorkspaceId};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::activity::Activity;
use crate::attempt::{Attempt, Runner};
use crate::dispatcher::Dispatcher;
use crate::spec;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(30);

fn ws() -> WorkspaceId {
    WorkspaceId::default_workspace()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Targets that record calls, and on request wait for permission or fail a number of times.
#[derive(Default)]
struct Fake {
    calls: Mutex<Vec<(ScheduleId, Timestamp, u32)>>,
    failures: AtomicUsize,
    leave: Option<Semaphore>,
}

#[async_trait]
impl Runner for Fake {
    async fn attempt(&self, schedule: &ScheduleRecord, run: &RunRecord, stop: &CancellationToken) -> Attempt {
        self.calls.lock().unwrap().push((schedule.id.clone(), run.scheduled_for, run.attempt));
        if let Some(leave) = &self.leave {
            tokio::select! {
                permit = leave.acquire() => permit.unwrap().forget(),
                () = stop.cancelled() => {}
            }
        }
        let fails =
            self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        let state = if fails.is_ok() { RunState::Error } else { RunState::Success };
        Attempt { state, outcome: RunOutcome::default() }
    }
}

struct World {
    _dir: tempfile::TempDir,
    store: Arc<SqlStore>,
    clock: Arc<AtomicI64>,
    fake: Arc<Fake>,
}

impl World {
    async fn new(start: &str, fake: Fake) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let secret = LinkKey::new(&[7; 32]).unwrap();
        let store = SqlStore::sqlite(&dir.path().join("control.db"), &secret).await.unwrap();
        store.ensure_workspace(&ws(), at(start)).await.unwrap();
        let clock = Arc::new(AtomicI64::new(at(start).as_microsecond()));
        Self { _dir: dir, store: Arc::new(store), clock, fake: Arc::new(fake) }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_microsecond(self.clock.load(Ordering::SeqCst)).unwrap()
    }

    fn set(&self, to: Timestamp) {
        self.clock.store(to.as_microsecond(), Ordering::SeqCst);
    }

    fn scheduler(&self, instance: &str) -> Arc<Dispatcher> {
        let clock = Arc::clone(&self.clock);
        Arc::new(Dispatcher {
            store: Arc::clone(&self.store) as Arc<dyn ScheduleStore>,
            run_store: Arc::clone(&self.store) as Arc<dyn RunStore>,
            runner: Arc::clone(&self.fake) as Arc<dyn Runner>,
            activity: Arc::new(Activity::new()),
            webhooks: Arc::new(pandastack_webhooks::Webhooks::new(true, Default::default())),
            instance: instance.to_owned(),
            clock: Arc::new(move || Timestamp::from_microsecond(clock.load(Ordering::SeqCst)).unwrap()),
        })
    }

    async fn schedule(&self, every_seconds: u64, options: ScheduleOptions) -> ScheduleRecord {
        let now = self.now();
        let timing = ScheduleTiming { every_seconds: Some(every_seconds), ..ScheduleTiming::default() };
        let target = HttpTarget { url: "http://x/".into(), method: None, headers: [].into(), body: None };
        let record = record_at(now, timing, ScheduleTarget::Http(target), options);
        self.store.insert_schedule(&record).await.unwrap();
        record
    }

    /// Runs oldest first.
    async fn runs(&self, schedule: &ScheduleRecord) -> Vec<RunRecord> {
        let mut runs = self.store.runs(&ws(), &schedule.id, None, 100_000).await.unwrap();
        runs.sort_by_key(|run| run.scheduled_for);
        runs
    }

    async fn states(&self, schedule: &ScheduleRecord) -> Vec<RunState> {
        self.runs(schedule).await.into_iter().map(|run| run.state).collect()
    }

    /// Steps through all due work until a time, letting every run end.
    async fn go_until(&self, scheduler: &Arc<Dispatcher>, end: Timestamp) {
        loop {
            let next = scheduler.step(self.now()).await.unwrap();
            if idle(scheduler).await {
                continue;
            }
            match next.filter(|next| *next <= end) {
                Some(next) => self.set(next.max(self.now())),
                None => return self.set(end),
            }
        }
    }
}

/// Waits until no run is in progress; whether there was one.
async fn idle(scheduler: &Arc<Dispatcher>) -> bool {
    let mut waited = false;
    while scheduler.activity.count_in_flight() > 0 {
        waited = true;
        tokio::time::timeout(PATIENCE, scheduler.activity.changed.notified()).await.unwrap();
    }
    waited
}

/// Waits until that many attempts have begun.
async fn calls(fake: &Fake, count: usize) {
    let reached = async {
        while fake.calls.lock().unwrap().len() < count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, reached).await.unwrap();
}

fn minutes(count: i64) -> SignedDuration {
    SignedDuration::from_mins(count)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_schedulers_fire_ten_thousand_instants_once_each() {
    let world = World::new("2027-01-01T00:00:00Z", Fake::default()).await;
    let start = world.now();
    let mut schedules = Vec::new();
    for _ in 0..50 {
        schedules.push(world.schedule(60, ScheduleOptions::default()).await);
    }
    let (one, two) = (world.scheduler("one"), world.scheduler("two"));
    for minute in 1..=200 {
        world.set(start + minutes(minute));
        let (a, b) = tokio::join!(one.step(world.now()), two.step(world.now()));
        a.unwrap();
        b.unwrap();
        idle(&one).await;
        idle(&two).await;
    }
    let mut seen = HashMap::new();
    for call in world.fake.calls.lock().unwrap().iter() {
        *seen.entry(call.clone()).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), 10_000);
    assert!(seen.iter().all(|((_, _, attempt), count)| *attempt == 1 && *count == 1));
    for schedule in &schedules {
        let runs = world.runs(schedule).await;
        assert_eq!(runs.len(), 200);
        assert!(runs.iter().all(|run| run.state == RunState::Success), "{:?}", world.states(schedule).await);
    }
}

#[tokio::test]
async fn missed_runs_after_an_outage_follow_the_policy() {
    for (missed, missed_max, states, passed_over) in [
        (MissedRuns::RunOnce, None, vec![RunState::Success], 9),
        (MissedRuns::Skip, None, vec![RunState::Skipped], 10),
        (MissedRuns::RunAll, Some(4), vec![RunState::Success; 4], 6),
        (MissedRuns::RunAll, Some(100), vec![RunState::Success; 10], 0),
    ] {
        let world = World::new("2027-01-01T00:00:00Z", Fake::default()).await;
        let options = ScheduleOptions { missed: Some(missed), missed_max, ..ScheduleOptions::default() };
        let schedule = world.schedule(600, options).await;
        world.set(world.now() + minutes(105));
        let scheduler = world.scheduler("after");
        scheduler.take_over(world.now()).await.unwrap();
        world.go_until(&scheduler, world.now()).await;
        assert_eq!(world.states(&schedule).await, states, "{missed:?}");
        assert_eq!(world.runs(&schedule).await[0].outcome.missed, passed_over, "{missed:?}");
        let order: Vec<_> = world.fake.calls.lock().unwrap().iter().map(|call| call.1).collect();
        assert!(order.is_sorted(), "{order:?}");
        let next = world.store.schedule(&ws(), &schedule.id).await.unwrap().next_run_at;
        assert_eq!(next, Some(at("2027-01-01T01:50:00Z")));
    }
}

#[tokio::test]
async fn a_backward_clock_step_fires_no_schedule_twice() {
    let world = World::new("2027-01-01T00:00:00Z", Fake::default()).await;
    let schedule = world.schedule(60, ScheduleOptions::default()).await;
    let scheduler = world.scheduler("a");
    world.go_until(&scheduler, at("2027-01-01T00:10:00Z")).await;
    assert_eq!(world.runs(&schedule).await.len(), 10);
    world.set(at("2027-01-01T00:02:00Z"));
    world.go_until(&scheduler, at("2027-01-01T00:10:30Z")).await;
    assert_eq!(world.runs(&schedule).await.len(), 10);
    world.go_until(&scheduler, at("2027-01-01T00:12:00Z")).await;
    assert_eq!(world.runs(&schedule).await.len(), 12);
}

/// Two instants, the first of whose runs is still in progress at the second: their states then, and after both may end.
#[track_caller]
fn overlap_case(overlap: Overlap) -> ([RunState; 2], [RunState; 2]) {
    use RunState::{Cancelled, Running, Skipped, Success, Waiting};
    match overlap {
        Overlap::Skip => ([Running, Skipped], [Success, Skipped]),
        Overlap::Queue => ([Running, Waiting], [Success, Success]),
        Overlap::Replace => ([Cancelled, Running], [Cancelled, Success]),
        Overlap::Allow => ([Running, Running], [Success, Success]),
    }
}

#[tokio::test]
async fn overlapping_runs_follow_the_overlap_policy() {
    for overlap in [Overlap::Skip, Overlap::Queue, Overlap::Replace, Overlap::Allow] {
        let fake = Fake { leave: Some(Semaphore::new(0)), ..Fake::default() };
        let world = World::new("2027-01-01T00:00:00Z", fake).await;
        let options = ScheduleOptions { overlap: Some(overlap), ..ScheduleOptions::default() };
        let schedule = world.schedule(60, options).await;
        let scheduler = world.scheduler("a");
        for minute in 1..=2 {
            world.set(at("2027-01-01T00:00:00Z") + minutes(minute));
            scheduler.step(world.now()).await.unwrap();
        }
        let (during, after) = overlap_case(overlap);
        assert_eq!(world.states(&schedule).await, during, "{overlap:?}");
        // A run that was replaced before it began to wait takes no leave of the others.
        calls(
            &world.fake,
            during
                .iter()
                .filter(|state| **state != RunState::Skipped && **state != RunState::Waiting)
                .count(),
        )
        .await;
        world.fake.leave.as_ref().unwrap().add_permits(10);
        let end = world.now();
        world.go_until(&scheduler, end).await;
        assert_eq!(world.states(&schedule).await, after, "{overlap:?}");
    }
}

#[tokio::test]
async fn failed_runs_are_retried_with_backoff_then_the_schedule_is_paused() {
    let fake = Fake { failures: AtomicUsize::new(2), ..Fake::default() };
    let world = World::new("2027-01-01T00:00:00Z", fake).await;
    let options = ScheduleOptions {
        retries: Some(2),
        retry_delay_seconds: Some(10),
        pause_after_failures: Some(3),
        ..ScheduleOptions::default()
    };
    let schedule = world.schedule(3600, options).await;
    let scheduler = world.scheduler("a");
    world.go_until(&scheduler, at("2027-01-01T01:30:00Z")).await;
    let runs = world.runs(&schedule).await;
    assert_eq!((runs.len(), runs[0].state, runs[0].attempt), (1, RunState::Success, 3));
    // Due at 1:00:00, tried again after 10 and 20 seconds.
    assert_eq!(runs[0].started_at, Some(at("2027-01-01T01:00:30Z")));
    world.fake.failures.store(1000, Ordering::SeqCst);
    world.go_until(&scheduler, at("2027-01-01T03:30:00Z")).await;
    let record = world.store.schedule(&ws(), &schedule.id).await.unwrap();
    assert_eq!((record.failures, record.paused), (2, false));
    world.go_until(&scheduler, at("2027-01-01T09:30:00Z")).await;
    let record = world.store.schedule(&ws(), &schedule.id).await.unwrap();
    assert_eq!((record.failures, record.paused, record.next_run_at), (3, true, None));
    assert!(record.spec.paused_reason.is_some());
    assert_eq!(world.runs(&schedule).await.len(), 4);
}

#[tokio::test]
async fn an_interrupted_run_is_retried_up_to_a_limit() {
    let fake = Fake { leave: Some(Semaphore::new(0)), ..Fake::default() };
    let world = World::new("2027-01-01T00:00:00Z", fake).await;
    let schedule = world.schedule(60, ScheduleOptions::default()).await;
    world.set(at("2027-01-01T00:01:00Z"));
    for life in 0..=RUN_INTERRUPTIONS_MAX {
        let scheduler = world.scheduler(&format!("life-{life}"));
        scheduler.take_over(world.now()).await.unwrap();
        scheduler.step(world.now()).await.unwrap();
        calls(&world.fake, life as usize + 1).await;
        let runs = world.runs(&schedule).await;
        assert_eq!((runs.len(), runs[0].state, runs[0].attempt), (1, RunState::Running, life + 1));
        scheduler.activity.end_all();
    }
    world.scheduler("last").take_over(world.now()).await.unwrap();
    let runs = world.runs(&schedule).await;
    assert_eq!((runs.len(), runs[0].state), (1, RunState::Error));
    assert!(runs[0].outcome.error.as_ref().unwrap().contains("restarted"));
}

#[tokio::test]
async fn an_alert_is_due_once_after_consecutive_failures() {
    let world = World::new("2027-01-01T00:00:00Z", Fake::default()).await;
    let alert = Some(ScheduleAlert { url: "http://127.0.0.1:9/".into(), after_failures: 2 });
    let mut record = world.schedule(60, ScheduleOptions { alert, ..ScheduleOptions::default() }).await;
    let mut due = Vec::new();
    for state in [RunState::Error, RunState::Success, RunState::Timeout, RunState::Error, RunState::Error] {
        record.note_end(&ScheduleRunId::random(), state, world.now());
        due.push(record.alert.take().is_some());
    }
    assert_eq!(due, [false, false, false, true, false]);
}

fn record_at(
    now: Timestamp,
    timing: ScheduleTiming,
    target: ScheduleTarget,
    options: ScheduleOptions,
) -> ScheduleRecord {
    let options = spec::overlay(options, spec::defaults(&target));
    let spec = ScheduleSpec { timing, anchor: now, target, options, paused_reason: None };
    ScheduleRecord {
        id: ScheduleId::random(),
        workspace: ws(),
        name: "s".into(),
        next_run_at: spec::timing(&spec).unwrap().next_after(now),
        spec,
        paused: false,
        cursor: now,
        revision: 0,
        failures: 0,
        last_run_at: None,
        alert: None,
        created_at: now,
        updated_at: now,
    }
}
