//! When a sandbox counts as idle, and what then happens to it.
//!
//! Idle is a sandbox that nobody uses (no exec, stream or file call under way), that has no keep-awake lease, and that
//! exchanges nothing over its network. After its idle timeout it dozes: stopped, in memory. If it is not used for the
//! host's light-sleep time either, it is written to disk.

use std::time::Duration;

use jiff::Timestamp;
use pandastack_types::SandboxState;
use pandastack_types::api::Keep;

use super::Driver;

/// Network bytes between two looks that are not activity: neighbour discovery and the like.
const NOISE_BYTES_MAX: u64 = 512;
/// Shortest time between two looks.
const LOOK_MIN: Duration = Duration::from_millis(100);
/// Longest time between two looks at the byte counters, which nothing announces.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// After a write to disk that failed, so long until the next try.
const RETRY_AFTER: Duration = Duration::from_secs(30);

impl Driver {
    /// How long until [`Driver::on_time`] has something to decide.
    pub(super) fn next_time(&self) -> Option<Duration> {
        if self.record.sleeps_in_memory() {
            let light = self.host.config.light_sleep;
            return Some(light.saturating_sub(self.asleep_since.elapsed()).max(LOOK_MIN));
        }
        let limit = self.idle_limit()?;
        let left = limit.saturating_sub(self.activity.idle()).max(self.lease_left());
        // Often enough that traffic early in the period does not double it.
        Some(left.min((limit / 4).clamp(LOOK_MIN, LOOK_MAX)).max(LOOK_MIN))
    }

    /// Decides whether to doze, or to write a light sleeper to disk.
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
                false => self.doze().await,
            }
        };
        if let Err(error) = outcome {
            tracing::warn!(sandbox = %self.record.spec.id, %error, "an idle sandbox did not go to sleep");
            self.activity.touch();
            self.asleep_since = std::time::Instant::now() + RETRY_AFTER;
        }
    }

    fn idle_limit(&self) -> Option<Duration> {
        let seconds = self.record.spec.idle_timeout_seconds?;
        (self.record.state == SandboxState::Running).then_some(Duration::from_secs(seconds))
    }

    fn lease_left(&self) -> Duration {
        let until = self.record.awake_until.unwrap_or(Timestamp::MIN);
        Duration::try_from(until.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO)
    }

    /// Counts what went over the network since the last look as activity.
    pub(super) fn note_traffic(&mut self) {
        let slot = self.live.as_ref().and_then(|live| live.home.slot);
        let Some(traffic) = slot.map(|slot| self.host.slots.traffic(slot)) else { return };
        let bytes = traffic.sent_bytes + traffic.received_bytes;
        if bytes.abs_diff(self.traffic_bytes) > NOISE_BYTES_MAX {
            self.activity.touch();
        }
        self.traffic_bytes = bytes;
    }
}
