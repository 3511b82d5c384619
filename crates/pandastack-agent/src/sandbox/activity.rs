//! When a sandbox was last used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Last use of a sandbox, and how many uses are in progress.
#[derive(Debug)]
pub(crate) struct Activity {
    origin: Instant,
    last_ms: AtomicU64,
    in_flight: AtomicUsize,
}

/// One use in progress.
#[derive(Debug)]
pub(crate) struct ActivityGuard(Arc<Activity>);

impl Activity {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { origin: Instant::now(), last_ms: AtomicU64::new(0), in_flight: AtomicUsize::new(0) })
    }

    pub(crate) fn begin(self: &Arc<Self>) -> ActivityGuard {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        ActivityGuard(self.clone())
    }

    /// Time since the last use ended; zero while one is in progress.
    pub(crate) fn idle(&self) -> Duration {
        if self.in_flight.load(Ordering::SeqCst) > 0 {
            return Duration::ZERO;
        }
        let last = Duration::from_millis(self.last_ms.load(Ordering::SeqCst));
        self.origin.elapsed().saturating_sub(last)
    }

    /// Records activity now.
    pub(crate) fn touch(&self) {
        self.last_ms.fetch_max(self.origin.elapsed().as_millis() as u64, Ordering::SeqCst);
    }
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.0.touch();
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A sample of the byte counters.
pub(super) struct TrafficSample {
    pub(super) bytes: u64,
    pub(super) at: Instant,
}

impl TrafficSample {
    pub(super) fn new() -> Self {
        Self { bytes: 0, at: Instant::now() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_in_use_is_not_idle() {
        let activity = Activity::new();
        let guard = activity.begin();
        assert_eq!(activity.idle(), Duration::ZERO);
        drop(guard);
        assert!(activity.idle() < Duration::from_secs(5));
        assert_eq!(activity.in_flight.load(Ordering::SeqCst), 0);
    }
}
