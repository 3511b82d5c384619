//! Worker threads for operations that may wait for a disk.
//!
//! The event loop never blocks; it hands over a job and hears of its completion through an eventfd. Jobs are
//! short (one chunk of a file, not a file), so few threads serve many streams. Threads are made on demand up
//! to a limit and stay: one that hangs in a tenant's own broken file system takes only itself out.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use nix::sys::eventfd::{EfdFlags, EventFd};

/// Most threads.
const THREADS_MAX: usize = 16;
/// Stack of a thread; jobs recurse only over directories, and those iteratively.
const STACK_BYTES: usize = 256 * 1024;

/// Work to run off the event loop.
type Job<T> = Box<dyn FnOnce() -> T + Send>;

/// A pool of threads whose jobs end in a `T`.
pub(crate) struct Workers<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    work: Condvar,
    wake: EventFd,
}

struct State<T> {
    jobs: VecDeque<Job<T>>,
    done: Vec<T>,
    idle: usize,
    threads: usize,
}

impl<T: Send + 'static> Workers<T> {
    /// A pool with its first thread ready, so that it is part of every snapshot.
    pub(crate) fn new() -> io::Result<Self> {
        let state = State { jobs: VecDeque::new(), done: Vec::new(), idle: 0, threads: 0 };
        let wake = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let workers =
            Self { shared: Arc::new(Shared { state: Mutex::new(state), work: Condvar::new(), wake }) };
        workers.add_thread(&mut workers.shared.lock())?;
        Ok(workers)
    }

    /// TemporaryKind readable when a job is done.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// Queues a job. Streams have at most one job each, so the queue is bounded by the calls that are open.
    pub(crate) fn submit(&self, job: impl FnOnce() -> T + Send + 'static) {
        let mut state = self.shared.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle < state.jobs.len() && state.threads < THREADS_MAX {
            // Without another thread the present ones get to it later.
            let _ = self.add_thread(&mut state);
        }
        drop(state);
        self.shared.work.notify_one();
    }

    /// Takes the results completed since the last call.
    pub(crate) fn take_done(&self) -> Vec<T> {
        // An empty read means that an earlier call consumed the wake-up.
        let _ = self.shared.wake.read();
        std::mem::take(&mut self.shared.lock().done)
    }

    fn add_thread(&self, state: &mut State<T>) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new()
            .name("worker".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || shared.work())?;
        state.threads += 1;
        Ok(())
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Jobs run outside the lock, so a panicking one cannot leave the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        crate::protect::raise_worker();
        let mut state = self.lock();
        loop {
            let Some(job) = state.jobs.pop_front() else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let done = job();
            state = self.lock();
            state.done.push(done);
            // Fails only when the counter is full, and then the loop is awake anyway.
            let _ = self.wake.write(1);
        }
    }
}
