//! Detects that this process stalled: stopped by a signal, frozen with its control group, or starved.
//!
//! An agent waits [`HOLD_SECONDS`](pandastack_types::grant::HOLD_SECONDS) for an edge that does not answer,
//! and then the guest's address may become another guest's. An edge that runs again after that must not use
//! it.
//!
//! Must hold: a connection is used only if it was opened in the [`Epoch`] of its grant, and within
//! [`STALL_MAX`] of a moment at which this process ran. So it ran when the agent withdrew the grant, and
//! had seconds to read that.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Time between two signs of life.
const TICK: Duration = Duration::from_secs(1);
/// Longest time without one: well below the time that an agent waits.
const STALL_MAX: Duration = Duration::from_secs(8);

static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::start);

/// The last time at which this process ran, and the number of times it stalled.
#[derive(Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// Last sign of life, in milliseconds since the start; 0 before the first.
    ticked_ms: AtomicU64,
    stalls: AtomicU64,
}

/// A period without a stall of the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Epoch {
    clock: &'static Clock,
    stalls: u64,
}

impl Epoch {
    /// The present one.
    pub(crate) fn now() -> Self {
        CLOCK.epoch()
    }

    /// Whether the process has stalled since.
    pub(crate) fn has_ended(&self) -> bool {
        self.clock.has_ended(*self, self.clock.now_ms())
    }
}

impl Clock {
    fn start() -> Self {
        Self { start: Instant::now(), ticked_ms: AtomicU64::new(0), stalls: AtomicU64::new(0) }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    fn epoch(&'static self) -> Epoch {
        Epoch { clock: self, stalls: self.stalls.load(Ordering::SeqCst) }
    }

    /// Whether the clock is late. Without a running ticker, it never is.
    fn is_stalled(&self, now_ms: u64) -> bool {
        let ticked_ms = self.ticked_ms.load(Ordering::SeqCst);
        ticked_ms > 0 && Duration::from_millis(now_ms.saturating_sub(ticked_ms)) > STALL_MAX
    }

    fn has_ended(&self, epoch: Epoch, now_ms: u64) -> bool {
        self.is_stalled(now_ms) || self.stalls.load(Ordering::SeqCst) != epoch.stalls
    }

    /// Records a tick. A stall is counted first: no reader may see the new time with the old count.
    fn tick(&self, now_ms: u64) {
        if self.is_stalled(now_ms) {
            self.stalls.fetch_add(1, Ordering::SeqCst);
            tracing::warn!("this process stood still; asking agents again for every sandbox");
        }
        self.ticked_ms.store(now_ms, Ordering::SeqCst);
    }
}

/// Gives signs of life until `stop`.
pub(crate) async fn keep(stop: CancellationToken) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => CLOCK.tick(CLOCK.now_ms()),
            () = stop.cancelled() => return,
        }
    }
}

/// For tests: an epoch that ends with the second of the returned calls.
#[cfg(test)]
pub(crate) fn ending_epoch() -> (Epoch, impl Fn()) {
    let clock: &'static Clock = Box::leak(Box::new(Clock::start()));
    let epoch = clock.epoch();
    let stall = move || {
        clock.stalls.fetch_add(1, Ordering::SeqCst);
    };
    (epoch, stall)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_ends_only_with_a_stall() {
        let clock: &'static Clock = Box::leak(Box::new(Clock::start()));
        let unkept = clock.epoch();
        assert!(!clock.has_ended(unkept, 1_000_000), "nobody keeps the clock");
        clock.tick(1_000);
        clock.tick(2_000);
        let epoch = clock.epoch();
        assert!(!clock.has_ended(epoch, 2_000 + 8_000));
        assert!(clock.has_ended(epoch, 2_000 + 8_001), "before the first sign of life after the stall");
        clock.tick(30_000);
        assert!(clock.has_ended(epoch, 30_000), "and for good");
        assert!(!clock.has_ended(clock.epoch(), 30_001));
        clock.tick(31_000);
        assert!(clock.has_ended(epoch, 31_000));
    }

    #[test]
    fn the_agent_hold_exceeds_the_maximum_edge_stall() {
        assert!(STALL_MAX + TICK * 2 < Duration::from_secs(pandastack_types::grant::HOLD_SECONDS));
    }
}
