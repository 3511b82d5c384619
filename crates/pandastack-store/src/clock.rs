//! The wall clock, for everything that is recorded or waits for a date.
//!
//! A simulation runs servers for years in a second: on threads that entered a [`Clock`], the time
//! is as far ahead of the host's as that clock was moved. Signatures between control and agents are
//! not made with it: the other side has a clock of its own. Timers that wait for a span and not for
//! a date are tokio's and stay real.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::Notify;

thread_local! {
    static ENTERED: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

/// A clock that a simulation moves. Clones are the same clock.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<ClockOffset>);

#[derive(Debug, Default)]
struct ClockOffset {
    us: AtomicI64,
    moved: Notify,
}

impl Clock {
    /// Makes this thread use this clock.
    pub fn enter(&self) {
        ENTERED.set(Some(self.clone()));
    }

    /// Moves it, and wakes what waits for a date.
    pub fn advance(&self, by: Duration) {
        self.0.us.fetch_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX), Ordering::Relaxed);
        self.0.moved.notify_one();
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        let host = Timestamp::now();
        host.checked_add(SignedDuration::from_micros(self.0.us.load(Ordering::Relaxed))).unwrap_or(host)
    }
}

/// The time, as precise as the store keeps it.
pub fn now() -> Timestamp {
    let now = ENTERED.with_borrow(|clock| clock.as_ref().map_or_else(Timestamp::now, Clock::now));
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

/// Waits until this thread's clock is moved; a change of the host's clock is not noticed.
pub async fn moved() {
    match ENTERED.with_borrow(Clone::clone) {
        Some(clock) => clock.0.moved.notified().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_virtual_clock_advances_only_for_threads_that_entered_it() {
        let clock = Clock::default();
        clock.advance(Duration::from_secs(3600));
        let entered = clock.clone();
        let ahead = std::thread::spawn(move || {
            entered.enter();
            now()
        });
        let ahead = ahead.join().unwrap().duration_since(now()).as_secs();
        assert!((3590..=3600).contains(&ahead), "{ahead}");
    }
}
