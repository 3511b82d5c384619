//! Measures how long a connection has waited for the head of its next request.
//!
//! The HTTP library starts and drops a timer for every head. As a timer of the runtime that costs a place in its wheel each
//! time; here it is a number that the connection's own task looks at when its one timer fires.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

/// The clock of one connection.
#[derive(Clone)]
pub(crate) struct HeadClock(Arc<Wait>);

struct Wait {
    began: Instant,
    /// Deadline for the head, in microseconds since `began`; 0 while no head is expected.
    due_us: AtomicU64,
}

impl Wait {
    fn set(&self, deadline: Instant) {
        let us = deadline.saturating_duration_since(self.began).as_micros();
        self.due_us.store(u64::try_from(us).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }
}

impl HeadClock {
    /// Creates the state of a new connection.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Wait { began: Instant::now(), due_us: AtomicU64::new(0) }))
    }

    /// Deadline for the expected head; `None` while no head is expected.
    pub(crate) fn due(&self) -> Option<Instant> {
        match self.0.due_us.load(Ordering::Relaxed) {
            0 => None,
            us => self.0.began.checked_add(Duration::from_micros(us)),
        }
    }
}

impl Timer for HeadClock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        self.0.set(deadline);
        Box::pin(HeadWait(Arc::clone(&self.0)))
    }

    // Do not replace the timer: dropping the old one would stop the clock of the new one.
    fn reset(&self, _sleep: &mut Pin<Box<dyn Sleep>>, deadline: Instant) {
        self.0.set(deadline);
    }
}

/// Exists while a head is waited for.
struct HeadWait(Arc<Wait>);

impl Future for HeadWait {
    type Output = ();

    /// Never fires: the driver of the connection checks the clock.
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Sleep for HeadWait {}

impl Drop for HeadWait {
    fn drop(&mut self) {
        self.0.due_us.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_clock_runs_only_while_a_head_is_awaited() {
        let clock = HeadClock::new();
        assert_eq!(clock.due(), None);
        let mut wait = clock.sleep(Duration::from_secs(9));
        let first = clock.due().expect("it runs");
        assert!(first > Instant::now() + Duration::from_secs(8));
        clock.reset(&mut wait, first + Duration::from_secs(1));
        assert_eq!(clock.due().expect("it still runs"), first + Duration::from_secs(1));
        drop(wait);
        assert_eq!(clock.due(), None);
    }
}
