//! Holds requests while their target is not ready, and wakes it.
//!
//! ```text
//!   shut --first request--> opening --opened--> open --the thing closes--> shut
//!                              |  failed: everyone who waited gets the reason; the next request tries again
//! ```
//!
//! Must hold: a resource is opened once, however many requests wait for it; an opening continues
//! even if the request that started it was cancelled; at most [`HELD_REQUESTS_MAX`] wait, none
//! longer than [`HELD_WAIT`]. The caller decides what to open, and how.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::limits::{HELD_REQUESTS_MAX, HELD_WAIT};

/// A resource that can be opened and closes by itself.
pub trait Openable: Send + Sync + 'static {
    /// Returns whether requests may start.
    fn is_open(&self) -> bool;
}

/// Reason why a request did not pass the gate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError<E> {
    /// Too many wait already.
    #[error("{HELD_REQUESTS_MAX} requests are already waiting")]
    Full,
    /// The request waited too long.
    #[error("not ready within {} s", HELD_WAIT.as_secs())]
    Late,
    /// The resource could not be opened.
    #[error("{0}")]
    Failed(E),
}

type Outcome<T, E> = Option<Result<Arc<T>, E>>;

enum State<T, E> {
    Shut,
    Opening(watch::Receiver<Outcome<T, E>>),
    Open(Arc<T>),
}

/// A gate in front of one resource.
pub struct Gate<T, E> {
    state: Mutex<State<T, E>>,
    waiting: AtomicUsize,
}

impl<T, E> Default for Gate<T, E> {
    fn default() -> Self {
        Self { state: Mutex::new(State::Shut), waiting: AtomicUsize::new(0) }
    }
}

impl<T: Openable, E: Clone + Send + Sync + 'static> Gate<T, E> {
    fn lock(&self) -> MutexGuard<'_, State<T, E>> {
        // Every critical section is one assignment, so a panic elsewhere leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The resource, if it is open now.
    pub fn opened(&self) -> Option<Arc<T>> {
        match &*self.lock() {
            State::Open(thing) if thing.is_open() => Some(Arc::clone(thing)),
            _ => None,
        }
    }

    /// Takes a resource that was opened elsewhere, unless one is open; returns the one to use.
    /// While one is being opened, waiters get that one.
    pub(crate) fn offer(&self, thing: Arc<T>) -> Arc<T> {
        let mut state = self.lock();
        match &*state {
            State::Open(there) if there.is_open() => return Arc::clone(there),
            State::Opening(_) => {}
            State::Open(_) | State::Shut => *state = State::Open(Arc::clone(&thing)),
        }
        thing
    }

    /// Returns whether the resource is open or being opened.
    pub fn is_in_use(&self) -> bool {
        match &*self.lock() {
            State::Shut => false,
            State::Opening(_) => true,
            State::Open(thing) => thing.is_open(),
        }
    }

    /// Number of waiting requests.
    pub fn count_waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Waits until the resource is open; starts to open it if necessary.
    pub async fn pass<F>(
        self: &Arc<Self>,
        tasks: &TaskTracker,
        open: impl FnOnce() -> F,
    ) -> Result<Arc<T>, GateError<E>>
    where
        F: Future<Output = Result<Arc<T>, E>> + Send + 'static,
    {
        let mut opening = match &*self.lock() {
            State::Open(thing) if thing.is_open() => return Ok(Arc::clone(thing)),
            State::Opening(opening) => Some(opening.clone()),
            _ => None,
        };
        let _place = self.wait_in_line()?;
        let mut outcome = match opening.take() {
            Some(outcome) => outcome,
            None => self.begin(tasks, open),
        };
        let settled = tokio::time::timeout(HELD_WAIT, outcome.wait_for(Option::is_some));
        match settled.await {
            Ok(Ok(outcome)) => match outcome.as_ref() {
                Some(Ok(thing)) => Ok(Arc::clone(thing)),
                Some(Err(error)) => Err(GateError::Failed(error.clone())),
                None => Err(GateError::Late),
            },
            Ok(Err(_)) | Err(_) => Err(GateError::Late),
        }
    }

    /// Starts to open, unless that began since the caller checked.
    fn begin<F>(
        self: &Arc<Self>,
        tasks: &TaskTracker,
        open: impl FnOnce() -> F,
    ) -> watch::Receiver<Outcome<T, E>>
    where
        F: Future<Output = Result<Arc<T>, E>> + Send + 'static,
    {
        let mut state = self.lock();
        match &*state {
            State::Opening(outcome) => return outcome.clone(),
            State::Open(thing) if thing.is_open() => return watch::channel(Some(Ok(Arc::clone(thing)))).1,
            _ => {}
        }
        let (sender, receiver) = watch::channel(None);
        *state = State::Opening(receiver.clone());
        drop(state);
        let (gate, opening) = (Arc::clone(self), open());
        tasks.spawn(async move {
            // A reset guard: an opening that panics or is dropped must not shut the gate for good.
            let mut reset = Reset { gate: &gate, state: Some(State::Shut) };
            let outcome = opening.await;
            if let Ok(thing) = &outcome {
                reset.state = Some(State::Open(Arc::clone(thing)));
            }
            drop(reset);
            sender.send_replace(Some(outcome));
        });
        receiver
    }

    fn wait_in_line(&self) -> Result<WaitSlot<'_>, GateError<E>> {
        if self.waiting.fetch_add(1, Ordering::SeqCst) >= HELD_REQUESTS_MAX {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(GateError::Full);
        }
        Ok(WaitSlot(&self.waiting))
    }
}

struct Reset<'a, T: Openable, E: Clone + Send + Sync + 'static> {
    gate: &'a Gate<T, E>,
    state: Option<State<T, E>>,
}

impl<T: Openable, E: Clone + Send + Sync + 'static> Drop for Reset<'_, T, E> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            *self.gate.lock() = state;
        }
    }
}

/// A slot in the count of waiting requests.
struct WaitSlot<'a>(&'a AtomicUsize);

impl Drop for WaitSlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use futures::future::join_all;
    use tokio::sync::oneshot;

    use super::*;

    struct TestResource(AtomicBool);

    impl Openable for TestResource {
        fn is_open(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }

    fn thing() -> Arc<TestResource> {
        Arc::new(TestResource(AtomicBool::new(true)))
    }

    #[tokio::test]
    async fn concurrent_callers_open_a_gate_once() {
        let (gate, tasks) = (Arc::new(Gate::<TestResource, String>::default()), TaskTracker::new());
        let opened = Arc::new(AtomicUsize::new(0));
        let passes = (0..100).map(|_| {
            gate.pass(&tasks, || {
                let opened = Arc::clone(&opened);
                async move {
                    tokio::task::yield_now().await;
                    opened.fetch_add(1, Ordering::SeqCst);
                    Ok(thing())
                }
            })
        });
        assert!(join_all(passes).await.iter().all(Result::is_ok));
        assert_eq!(opened.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn an_offered_resource_is_used_when_none_is_open() {
        let (gate, tasks) = (Arc::new(Gate::<TestResource, String>::default()), TaskTracker::new());
        let offered = gate.offer(thing());
        let passed = gate.pass(&tasks, || async { Err("not asked".to_owned()) }).await.unwrap();
        assert!(Arc::ptr_eq(&offered, &passed) && Arc::ptr_eq(&offered, &gate.offer(thing())));
        offered.0.store(false, Ordering::SeqCst);

        let (sender, receiver) = oneshot::channel();
        let opening = gate.pass(&tasks, || async { receiver.await.map_err(|_| "gone".to_owned()) });
        let ours = thing();
        let meanwhile = async {
            let beside = gate.offer(thing());
            sender.send(Arc::clone(&ours)).ok().unwrap();
            beside
        };
        let (opened, beside) = tokio::join!(opening, meanwhile);
        assert!(Arc::ptr_eq(&opened.unwrap(), &ours) && !Arc::ptr_eq(&beside, &ours));
    }

    #[tokio::test]
    async fn gates_reopen_closed_resources_and_retry_failures() {
        let (gate, tasks) = (Arc::new(Gate::<TestResource, String>::default()), TaskTracker::new());
        let failed = gate.pass(&tasks, || async { Err("asleep".to_owned()) }).await;
        assert_eq!(failed.err(), Some(GateError::Failed("asleep".to_owned())));
        let first = gate.pass(&tasks, || async { Ok(thing()) }).await.unwrap();
        let same = gate.pass(&tasks, || async { Err("not asked".to_owned()) }).await.unwrap();
        assert!(Arc::ptr_eq(&first, &same));
        first.0.store(false, Ordering::SeqCst);
        let second = gate.pass(&tasks, || async { Ok(thing()) }).await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
    }

    #[tokio::test]
    async fn requests_beyond_the_hold_limit_are_rejected() {
        let (gate, tasks) = (Arc::new(Gate::<TestResource, String>::default()), TaskTracker::new());
        let (open, opening) = oneshot::channel::<()>();
        let first = {
            let (gate, tasks) = (Arc::clone(&gate), tasks.clone());
            tokio::spawn(async move {
                let wait = || async {
                    let _ = opening.await;
                    Ok(thing())
                };
                gate.pass(&tasks, wait).await.map(drop)
            })
        };
        let mut held: Vec<_> =
            (1..HELD_REQUESTS_MAX).map(|_| Box::pin(gate.pass(&tasks, || async { Ok(thing()) }))).collect();
        while !gate.is_in_use() {
            tokio::task::yield_now().await;
        }
        for pass in &mut held {
            assert!(futures::poll!(pass.as_mut()).is_pending());
        }
        let refused = gate.pass(&tasks, || async { Ok(thing()) }).await;
        assert_eq!(refused.err(), Some(GateError::Full));
        open.send(()).unwrap();
        assert!(join_all(held).await.iter().all(Result::is_ok));
        assert!(first.await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn a_gate_opening_survives_its_cancelled_caller() {
        let (gate, tasks) = (Arc::new(Gate::<TestResource, String>::default()), TaskTracker::new());
        let (open, opening) = oneshot::channel::<()>();
        let mut began = Box::pin(gate.pass(&tasks, || async {
            let _ = opening.await;
            Ok(thing())
        }));
        assert!(futures::poll!(began.as_mut()).is_pending());
        drop(began);
        let mut joined = Box::pin(gate.pass(&tasks, || async { Err("a second opening".to_owned()) }));
        assert!(futures::poll!(joined.as_mut()).is_pending());
        open.send(()).unwrap();
        assert!(joined.await.is_ok());
    }
}
