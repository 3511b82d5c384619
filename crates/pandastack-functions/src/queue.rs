//! `Event` calls: stored, run when due, retried on failure, and finally dead-lettered.
//!
//! ```text
//!   queued (due) --> running (no due time) --> success
//!      ^                   |
//!      +--- later ---------+--> given up: a dead letter, kept with its event
//!      +--- redriven ------------- |  told of (`dead_letters`), as due as a call is, then at rest
//! ```
//!
//! Invariants: a call is stored before its id is returned; an attempt is counted in the store
//! before it starts, so an attempt during which the server dies counts, and the next server
//! continues with the next attempt under the same id. So a call is made at least once and at most
//! `retries + 1` times. A call refused for lack of capacity (429) is postponed without counting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use pandastack_store::StoreError;
use pandastack_store::clock::now;
use pandastack_store::functions::{FunctionRecord, RunRecord};
use pandastack_store::record::after_seconds;
use pandastack_types::api::{FunctionRunStatus, FunctionSettings, Run, RunKind};
use pandastack_types::limits::{FUNCTION_AGE_SECONDS_DEFAULT, FUNCTION_RETRIES_DEFAULT};
use pandastack_types::{Error, ErrorCode, FunctionId, Result, chain};
use tokio::sync::Semaphore;

use crate::functions::Functions;
use crate::invoke::{self, InvokeRequest};
use crate::{dead_letters, settings, versions};

/// Queued calls that are made at once, of all functions.
const IN_FLIGHT_MAX: usize = 256;
/// Queued calls of one function that are made at once, however many machines it may have: a flood of one leaves room for
/// the others.
const OF_ONE_MAX: usize = 64;
/// Due calls that are read at once.
const PAGE: u32 = 64;
/// First wait before a retry; it doubles with each.
const BACKOFF: Duration = Duration::from_secs(1);
/// Longest wait before a retry.
const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Delay of a call that found no free slot.
const NO_ROOM: Duration = Duration::from_secs(1);
/// Longest sleep: the wall clock may be set while the timer runs.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Delay after a store error.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Puts a call into the queue.
pub(crate) async fn put(
    functions: &Functions,
    function: &FunctionRecord,
    request: InvokeRequest,
) -> Result<Run> {
    let event = request.event.to_vec();
    let record = RunRecord::queued(function, request.id, request.version, event, request.requested_at);
    functions.run_store.enqueue_run(&record).await?;
    functions.queued.notify_one();
    Ok(record.run)
}

/// Resumes calls that an earlier server process left.
pub(crate) async fn recover(functions: &Functions) -> Result<()> {
    for mut record in functions.run_store.runs_interrupted().await? {
        if record.run.dead_letter {
            // The receiver may have been notified already.
            record.due_at = Some(now());
            functions.run_store.put_runs(&[record]).await?;
            continue;
        }
        let function = functions.store.function(None, &record.run.function_id).await?;
        "the server stopped during this attempt".clone_into(record.run.error.get_or_insert_default());
        settle_failed(&function, &mut record, 0);
        functions.run_store.put_runs(&[record]).await?;
    }
    Ok(())
}

/// Queued calls in flight, by function.
#[derive(Default)]
struct InFlightCalls(Mutex<HashMap<FunctionId, (usize, usize)>>);

impl InFlightCalls {
    fn lock(&self) -> MutexGuard<'_, HashMap<FunctionId, (usize, usize)>> {
        // Every critical section leaves the map whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more call of a function with a limit of `most`.
    fn begin(&self, function: &FunctionId, most: usize) {
        let mut counts = self.lock();
        let (count, limit) = counts.entry(function.clone()).or_default();
        (*count, *limit) = (*count + 1, most);
    }

    fn end(&self, function: &FunctionId) {
        let mut counts = self.lock();
        if let Some((count, _)) = counts.get_mut(function) {
            *count = count.saturating_sub(1);
        }
        counts.retain(|_, (count, _)| *count > 0);
    }

    fn is_full(&self, function: &FunctionId) -> bool {
        self.lock().get(function).is_some_and(|(count, most)| count >= most)
    }

    /// Functions that have reached their limit.
    fn full(&self) -> Vec<FunctionId> {
        self.lock().iter().filter(|(_, (count, most))| count >= most).map(|(id, _)| id.clone()).collect()
    }
}

/// Runs queued calls as they become due, until shutdown.
pub(crate) async fn run(functions: &Arc<Functions>) {
    let (room, in_flight) = (Arc::new(Semaphore::new(IN_FLIGHT_MAX)), Arc::new(InFlightCalls::default()));
    loop {
        let wait = match begin_due(functions, &room, &in_flight).await {
            Ok(wait) => wait,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot read the queue of calls; retrying");
                TRY_AGAIN
            }
        };
        tokio::select! {
            () = functions.core.background.shutdown.cancelled() => return,
            () = functions.queued.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Starts calls that are due, as far as capacity allows; returns the time until the next check.
async fn begin_due(
    functions: &Arc<Functions>,
    room: &Arc<Semaphore>,
    in_flight: &Arc<InFlightCalls>,
) -> Result<Duration> {
    loop {
        let due = functions.run_store.runs_due(now(), PAGE, &in_flight.full()).await?;
        if due.is_empty() {
            break;
        }
        for record in due {
            if in_flight.is_full(&record.run.function_id) {
                continue;
            }
            // Wait for a permit: a call that ends frees one.
            let Ok(permit) = Arc::clone(room).acquire_owned().await else { return Ok(SLEEP_MAX) };
            let (record, most) = begin(functions, record).await?;
            let function = record.run.function_id.clone();
            in_flight.begin(&function, most);
            let (owner, in_flight) = (Arc::clone(functions), Arc::clone(in_flight));
            functions.core.background.tasks.spawn(async move {
                attempt(&owner, record).await;
                in_flight.end(&function);
                drop(permit);
                owner.queued.notify_one();
            });
        }
    }
    // A call that waits for another call of its function starts when that one ends, which wakes
    // this task.
    let next = functions.run_store.next_run_due(&in_flight.full()).await?;
    let wait = next.map(|at| Duration::try_from(at.duration_since(now())).unwrap_or(Duration::ZERO));
    Ok(wait.unwrap_or(SLEEP_MAX).min(SLEEP_MAX))
}

/// Counts the attempt before it starts; also returns the function's limit of calls in flight.
async fn begin(functions: &Functions, mut record: RunRecord) -> Result<(RunRecord, usize)> {
    let settings = match functions.store.function(None, &record.run.function_id).await {
        Ok(function) => function.spec.settings,
        Err(StoreError::NotFound { .. }) => FunctionSettings::default(),
        Err(error) => return Err(error.into()),
    };
    let places =
        settings::limits(&settings).max_instances.saturating_mul(settings.concurrency.unwrap_or(1) as usize);
    record.due_at = None;
    if record.run.dead_letter {
        record.run.notices += 1;
    } else {
        record.run.attempt += 1;
        record.run.status = FunctionRunStatus::Running;
        record.run.next_attempt_at = None;
    }
    functions.run_store.put_runs(std::slice::from_ref(&record)).await?;
    Ok((record, places.clamp(1, OF_ONE_MAX)))
}

async fn attempt(functions: &Arc<Functions>, mut record: RunRecord) {
    let id = record.run.id.clone();
    let seen_to = match record.run.dead_letter {
        true => dead_letters::notify(functions, &mut record).await,
        false => try_once(functions, &mut record).await,
    };
    if let Err(error) = seen_to {
        tracing::warn!(run = %id, error = %chain(&error), "cannot process a queued call");
    }
    while let Err(error) = functions.run_store.put_runs(std::slice::from_ref(&record)).await {
        tracing::error!(
            run = %id, error = %chain(&error),
            "cannot record the result of a queued call; retrying"
        );
        tokio::select! {
            () = functions.core.background.shutdown.cancelled() => return,
            () = tokio::time::sleep(TRY_AGAIN) => {}
        }
    }
}

async fn try_once(functions: &Arc<Functions>, record: &mut RunRecord) -> Result<()> {
    let function = match functions.store.function(None, &record.run.function_id).await {
        Ok(function) => function,
        Err(error) => {
            record.queued = false;
            return Err(error.into());
        }
    };
    let request = InvokeRequest {
        id: record.run.id.clone(),
        kind: RunKind::Async,
        version: record.run.version,
        attempt: record.run.attempt,
        event: Bytes::from(record.event.clone().unwrap_or_default()),
        http: false,
        requested_at: record.run.started_at,
    };
    match invoke::call(functions, &function, request).await {
        Ok(answered) => {
            let (attempt, before_ms) = (record.run.attempt, record.run.billed_ms);
            record.used_ms = Some(answered.run.billed_ms);
            record.run = Run { attempt, ..answered.run };
            record.run.billed_ms = record.run.billed_ms.saturating_add(before_ms);
            if record.run.status == FunctionRunStatus::Success {
                record.queued = false;
                record.event = None;
            } else {
                settle_failed(&function, record, jitter_percent());
            }
        }
        Err(error) if is_capacity_error(&error) => put_off(record),
        Err(error) => {
            record.run.error = Some(error.message);
            settle_failed(&function, record, jitter_percent());
        }
    }
    Ok(())
}

fn is_capacity_error(error: &Error) -> bool {
    matches!(error.code, ErrorCode::RateLimited | ErrorCode::NoCapacity | ErrorCode::HostUnreachable)
}

/// Returns a call that was not made to the queue: the attempt does not count.
fn put_off(record: &mut RunRecord) {
    record.run.attempt = record.run.attempt.saturating_sub(1);
    record.run.status = FunctionRunStatus::Queued;
    let at = now().checked_add(NO_ROOM).unwrap_or(Timestamp::MAX);
    record.due_at = Some(at);
    record.run.next_attempt_at = Some(at);
}

/// Schedules another attempt, or ends the call.
fn settle_failed(function: &FunctionRecord, record: &mut RunRecord, jitter: u32) {
    let retries = function.spec.settings.retries.unwrap_or(FUNCTION_RETRIES_DEFAULT);
    let age = function.spec.settings.max_age_seconds.unwrap_or(FUNCTION_AGE_SECONDS_DEFAULT);
    let wait = backoff(record.run.attempt, jitter);
    let next = now().checked_add(SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX)).ok();
    let too_old = after_seconds(record.run.started_at, age);
    match next.filter(|next| record.run.attempt <= retries && too_old.is_none_or(|end| *next < end)) {
        Some(next) => {
            record.run.status = FunctionRunStatus::Queued;
            record.run.ended_at = None;
            record.run.next_attempt_at = Some(next);
            record.due_at = Some(next);
        }
        None => dead_letters::mark(&function.spec.settings, record),
    }
}

/// Delay before the attempt after this one: doubled each time, plus up to half as much, so that
/// calls that failed together do not return together.
pub(crate) fn backoff(attempt: u32, jitter_percent: u32) -> Duration {
    let doubled = BACKOFF.saturating_mul(1 << attempt.saturating_sub(1).min(16)).min(BACKOFF_MAX);
    doubled + doubled * jitter_percent.min(100) / 200
}

pub(crate) fn jitter_percent() -> u32 {
    versions::random_percent().min(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_function_leaves_room_for_others() {
        let in_flight = InFlightCalls::default();
        let [flood, other] = [FunctionId::random(), FunctionId::random()];
        for _ in 0..3 {
            assert!(!in_flight.is_full(&flood));
            in_flight.begin(&flood, 3);
        }
        assert!(in_flight.is_full(&flood) && !in_flight.is_full(&other));
        assert_eq!(in_flight.full(), std::slice::from_ref(&flood));
        in_flight.end(&flood);
        assert!(in_flight.full().is_empty());
        for _ in 0..3 {
            in_flight.end(&flood);
        }
        assert!(in_flight.lock().is_empty(), "what ended is not remembered");
    }

    #[test]
    fn retry_delays_double_up_to_their_maximum() {
        let seconds = |attempt| backoff(attempt, 0).as_secs();
        assert_eq!([1, 2, 3, 4].map(seconds), [1, 2, 4, 8]);
        assert_eq!(seconds(100), BACKOFF_MAX.as_secs());
        assert_eq!(backoff(1, 100), Duration::from_millis(1500));
    }
}
