//! Idle detection, and what happens to an idle sandbox.
//!
//! A sandbox is idle when it has no exec, stream or file call in progress and no keep-awake lease,
//! and exchanges next to nothing over its network. After its idle timeout it sleeps in memory:
//! stopped, but quick to resume. After the host's light-sleep time without use, it is written to
//! disk. A sandbox without a timeout is checked too: its activity decides when it is checkpointed.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use pandastack_types::api::Keep;
use pandastack_types::{SandboxState, chain};

use super::driver::Driver;
use crate::error::Result;

/// Network bytes between two looks that are not activity, however soon after each other: neighbour
/// discovery and the like.
const NOISE_BYTES_MAX: u64 = 512;
/// Additional bytes per second between checks, for keepalives of open connections. The archiver of
/// a database's log exchanges some 260 bytes with its server every 10 s, headers included, and must
/// not keep it awake.
const NOISE_BYTES_PER_SECOND: u64 = 30;
/// Shortest time between two looks.
const CHECK_MIN: Duration = Duration::from_millis(100);
/// Longest interval between reads of the byte counters; no event reports a change.
const CHECK_MAX: Duration = Duration::from_secs(30);
/// Time without use after which a sandbox may be put to sleep early, when the host is short of memory.
const RELIEF_IDLE_MIN: Duration = Duration::from_secs(10);
/// After a write to disk that failed, so long until the next try.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Time until the next check of a running sandbox that may be put to sleep in `left`.
fn next_check(limit: Option<Duration>, left: Duration, since_last: Duration) -> Duration {
    // Often enough that traffic early in the period does not double it.
    let every = limit.map_or(CHECK_MAX, |limit| (limit / 4).clamp(CHECK_MIN, CHECK_MAX));
    left.min(every.saturating_sub(since_last)).max(CHECK_MIN)
}

/// Network bytes that do not count as activity, for the time since the last check. A sleeping
/// sandbox is not checked, and exchanges nothing while asleep.
fn noise_bytes_max(since_last: Duration) -> u64 {
    NOISE_BYTES_MAX + NOISE_BYTES_PER_SECOND * since_last.min(CHECK_MAX).as_secs()
}

impl Driver {
    /// Time until [`Driver::on_time`] has something to decide.
    pub(super) fn next_time(&self) -> Option<Duration> {
        if self.record.sleeps_in_memory() {
            let light = self.host.config.light_sleep;
            return Some(light.saturating_sub(self.asleep_since.elapsed()).max(CHECK_MIN));
        }
        if self.record.state != SandboxState::Running {
            return None;
        }
        let limit = self.idle_limit();
        let left = limit
            .map_or(Duration::MAX, |limit| limit.saturating_sub(self.activity.idle()).max(self.lease_left()));
        Some(next_check(limit, left, self.looked.at.elapsed()))
    }

    /// Decides whether to sleep in memory, or to write a sandbox asleep in memory to disk.
    pub(super) async fn on_time(&mut self) {
        let outcome = if self.record.sleeps_in_memory() {
            if self.asleep_since.elapsed() < self.host.config.light_sleep {
                return;
            }
            self.hibernate(Keep::Memory).await
        } else {
            self.note_traffic();
            let Some(limit) = self.idle_limit() else { return };
            if self.activity.idle() < limit || !self.lease_left().is_zero() {
                return;
            }
            match self.host.config.light_sleep.is_zero() {
                true => self.hibernate(Keep::Memory).await,
                false => self.sleep_in_memory().await,
            }
        };
        if let Err(error) = outcome {
            tracing::warn!(
                sandbox = %self.record.spec.id, error = %chain(&error),
                "an idle sandbox did not go to sleep"
            );
            self.activity.touch();
            self.asleep_since = Instant::now() + RETRY_AFTER;
        }
    }

    /// Goes to sleep on disk because the host is short of memory, if that interrupts no work: it
    /// already sleeps in memory, or has been idle for a while, has an idle timeout and no lease.
    /// Returns whether it did.
    pub(super) async fn relieve(&mut self) -> Result<bool> {
        if self.record.state == SandboxState::Running {
            self.note_traffic();
        }
        let is_idle = self.idle_limit().is_some()
            && self.activity.idle() >= RELIEF_IDLE_MIN
            && self.lease_left().is_zero();
        let failed_lately = self.asleep_since > Instant::now();
        if failed_lately || (!is_idle && !self.record.sleeps_in_memory()) {
            return Ok(false);
        }
        let done = self.hibernate(Keep::Memory).await;
        if done.is_err() {
            self.activity.touch();
            self.asleep_since = Instant::now() + RETRY_AFTER;
        }
        done.map(|()| true)
    }

    fn idle_limit(&self) -> Option<Duration> {
        let seconds = self.record.spec.idle_timeout_seconds?;
        (self.record.state == SandboxState::Running).then_some(Duration::from_secs(seconds))
    }

    fn lease_left(&self) -> Duration {
        let until = self.record.awake_until.unwrap_or(Timestamp::MIN);
        Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO)
    }

    /// Counts network traffic since the last check as activity.
    pub(super) fn note_traffic(&mut self) {
        let noise_bytes_max = noise_bytes_max(self.looked.at.elapsed());
        self.looked.at = Instant::now();
        let slot = self.live.as_ref().and_then(|live| live.resources.slot);
        let Some(traffic) = slot.map(|slot| self.host.slots.traffic(slot)) else { return };
        let bytes = traffic.sent_bytes + traffic.received_bytes;
        if bytes.abs_diff(self.looked.bytes) > noise_bytes_max {
            self.activity.touch();
        }
        self.looked.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(limit_seconds: Option<u64>, left_seconds: u64, since_last_seconds: u64, expected: Duration) {
        let [left, since_last] = [left_seconds, since_last_seconds].map(Duration::from_secs);
        let limit = limit_seconds.map(Duration::from_secs);
        assert_eq!(next_check(limit, left, since_last), expected, "{limit:?} {left:?} {since_last:?}");
    }

    #[test]
    fn sandboxes_that_never_sleep_are_checked_for_traffic_too() {
        check(None, u64::MAX, 0, CHECK_MAX);
        check(None, u64::MAX, 20, Duration::from_secs(10));
    }

    #[test]
    fn requests_do_not_postpone_the_next_idle_check() {
        check(Some(40), 35, 4, Duration::from_secs(6));
        check(Some(40), 35, 50, CHECK_MIN);
    }

    #[test]
    fn the_next_idle_check_is_not_later_than_the_idle_timeout() {
        check(Some(40), 3, 0, Duration::from_secs(3));
        check(Some(4000), 4000, 0, CHECK_MAX);
        check(Some(0), 0, 0, CHECK_MIN);
    }

    #[test]
    fn the_idle_noise_bound_just_exceeds_wal_follower_traffic() {
        /// A status, its answer and an acknowledgement, with the headers of each.
        const ROUND_BYTES: u64 = 105 + 89 + 66;
        const ROUND_SECONDS: u64 = 10;
        for limit_seconds in [1, 5, 30, 40, 60, 120, 300, 3600] {
            let between = next_check(Some(Duration::from_secs(limit_seconds)), Duration::MAX, Duration::ZERO);
            let rounds = between.as_secs() / ROUND_SECONDS + 1;
            let bound = noise_bytes_max(between);
            assert!(rounds * ROUND_BYTES < bound, "{limit_seconds} s: {rounds} rounds, {bound} bytes");
            assert!(bound < rounds * ROUND_BYTES + 512, "{limit_seconds} s: {rounds} rounds, {bound} bytes");
        }
        assert_eq!(noise_bytes_max(Duration::from_secs(3600)), noise_bytes_max(CHECK_MAX));
    }
}
