//! The state of a pool and the thread that does its slow work.
//!
//! Every index that is not free is in `occupied`, so concurrent work cannot make an index twice.
//! While ready slots are missing, slots to destroy may pile up a little, since a create may be
//! waiting.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pandastack_types::chain;
use tokio::sync::Semaphore;

use crate::config::{Plan, SlotIndex};
use crate::error::{NetError, Result};
use crate::host;
use crate::namespace::NetNs;
use crate::slot::{self, ReadySlot};

/// Released slots that may wait for destruction while ready slots are missing. Beyond it,
/// destroying takes precedence.
const DOOMED_BACKLOG_MAX: usize = 64;

/// Most slots destroyed together.
const DESTROY_BATCH_MAX: usize = 64;

/// Pause after a failed make or destroy, doubled each time up to the maximum.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) plan: Plan,
    pub(crate) host: NetNs,
    pub(crate) ready_target: usize,
    pub(crate) state: Mutex<State>,
    pub(crate) work: Condvar,
    pub(crate) ready: Semaphore,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Every index that is not free, in any state.
    pub(crate) occupied: BTreeSet<SlotIndex>,
    pub(crate) ready: VecDeque<ReadySlot>,
    pub(crate) in_use: BTreeSet<SlotIndex>,
    pub(crate) found: BTreeSet<SlotIndex>,
    pub(crate) doomed: VecDeque<SlotIndex>,
    /// Slots that the maker is destroying.
    pub(crate) destroying: usize,
    /// Start of the next search for a free index: an index is reused only after all others.
    pub(crate) cursor: usize,
    pub(crate) failure: Option<String>,
    pub(crate) closing: bool,
}

impl Shared {
    /// A panic elsewhere cannot leave the state half-changed: every critical section is a few infallible moves.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.ready.close();
        self.work.notify_all();
    }

    pub(crate) fn check_not_exhausted(&self) -> Result<()> {
        let capacity = self.plan.capacity();
        let state = self.lock();
        if state.in_use.len() + state.found.len() < capacity {
            Ok(())
        } else {
            Err(NetError::Exhausted { capacity })
        }
    }

    pub(crate) fn not_ready(&self, waited: Duration) -> NetError {
        let cause = self.lock().failure.clone();
        NetError::NotReady {
            waited_ms: waited.as_millis() as u64,
            cause: cause.unwrap_or_else(|| "slots are used faster than this host creates them".to_owned()),
        }
    }

    pub(crate) fn lease_ready(&self) -> Option<ReadySlot> {
        let mut state = self.lock();
        let ready = state.ready.pop_front()?;
        state.in_use.insert(ready.index);
        self.work.notify_one();
        Some(ready)
    }

    /// The maker thread. Ends when the pool closes.
    pub(crate) fn make_and_destroy(&self) {
        let mut pause = RETRY_PAUSE_MIN;
        while let Some(job) = self.next_job() {
            let outcome = match &job {
                Job::Make(index) => self.make(*index),
                Job::Destroy(indexes) => self.destroy(indexes),
            };
            match outcome {
                Ok(()) => pause = RETRY_PAUSE_MIN,
                Err(error) => {
                    tracing::warn!(
                        ?job, error = %chain(&error),
                        "a network slot operation failed; retrying"
                    );
                    self.pause_after(error, pause);
                    pause = (pause * 2).min(RETRY_PAUSE_MAX);
                }
            }
        }
    }

    /// Waits for something to do; `None` when the pool closes.
    fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.closing {
                return None;
            }
            let wanted = state.ready.len() < self.ready_target;
            if wanted
                && state.doomed.len() <= DOOMED_BACKLOG_MAX
                && let Some(index) = state.claim_free(self.plan.capacity())
            {
                return Some(Job::Make(index));
            }
            if !state.doomed.is_empty() {
                let batch = state.doomed.len().min(DESTROY_BATCH_MAX);
                state.destroying = batch;
                return Some(Job::Destroy(state.doomed.drain(..batch).collect()));
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn make(&self, index: SlotIndex) -> Result<()> {
        let made = slot::make(&self.plan, &self.host, index);
        let mut state = self.lock();
        match made {
            Ok(ready) => {
                state.ready.push_back(ready);
                state.failure = None;
                self.ready.add_permits(1);
                Ok(())
            }
            Err(error) => {
                state.occupied.remove(&index);
                Err(error)
            }
        }
    }

    fn destroy(&self, indexes: &[SlotIndex]) -> Result<()> {
        let destroyed = slot::destroy(&self.plan, indexes);
        let mut state = self.lock();
        state.destroying = 0;
        match destroyed {
            Ok(()) => state.occupied.retain(|index| !indexes.contains(index)),
            // Still occupied, so that the remains are not leased.
            Err(_) => state.doomed.extend(indexes),
        }
        destroyed
    }

    fn pause_after(&self, error: NetError, pause: Duration) {
        let mut state = self.lock();
        state.failure = Some(chain(&error));
        let closing = |state: &mut State| !state.closing;
        drop(self.work.wait_timeout_while(state, pause, closing));
    }

    pub(crate) fn remove_everything(&self) -> Result<()> {
        let occupied =
            std::mem::replace(&mut *self.lock(), State { closing: true, ..State::default() }).occupied;
        self.host.run(|| {
            // Continues after a failure, to leave as little as possible behind; reports the first
            // failure.
            let mut outcome = Ok(());
            for batch in Vec::from_iter(occupied).chunks(DESTROY_BATCH_MAX) {
                outcome = outcome.and(slot::destroy(&self.plan, batch));
            }
            outcome.and(host::restore(&self.plan))
        })
    }
}

impl State {
    fn claim_free(&mut self, capacity: usize) -> Option<SlotIndex> {
        let position = (0..capacity)
            .map(|step| (self.cursor + step) % capacity)
            .find(|position| !self.occupied.contains(&SlotIndex(*position as u16)))?;
        self.cursor = (position + 1) % capacity;
        let index = SlotIndex(position as u16);
        self.occupied.insert(index);
        Some(index)
    }
}

#[derive(Debug)]
enum Job {
    Make(SlotIndex),
    Destroy(Vec<SlotIndex>),
}
