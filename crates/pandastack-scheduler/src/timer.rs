//! Sleeping until a time of day.
//!
//! A timer on the wall clock itself, which the kernel also ends when that clock is set: a monotonic
//! sleep would wake at the wrong time after a step, and polling would be late.

use std::os::fd::OwnedFd;

use jiff::Timestamp;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// A timer on the wall clock.
pub(crate) struct WallTimer(AsyncFd<OwnedFd>);

impl WallTimer {
    // The safe constructor is deprecated because a foreign type could change its descriptor; an
    // `OwnedFd` cannot.
    #[expect(deprecated, reason = "its replacement is unsafe, and this crate has no unsafe code")]
    pub(crate) fn new() -> std::io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(AsyncFd::new(timerfd_create(TimerfdClockId::Realtime, flags)?)?))
    }

    /// Returns at that time, or when the clock was set.
    pub(crate) async fn sleep_until(&self, at: Timestamp) -> std::io::Result<()> {
        // Zero would disarm it; a time in the past ends it at once.
        let tv_sec = at.as_second().max(1);
        let tv_nsec = i64::from(at.subsec_nanosecond().max(0));
        let spec = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec, tv_nsec },
        };
        timerfd_settime(
            self.0.get_ref(),
            TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET,
            &spec,
        )?;
        loop {
            let mut ready = self.0.readable().await?;
            let mut count = [0_u8; 8];
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut count)?));
            match read {
                // ECANCELED means that the clock was set: the caller must recompute its deadline.
                Ok(Err(error))
                    if error.raw_os_error() == Some(rustix::io::Errno::CANCELED.raw_os_error()) =>
                {
                    return Ok(());
                }
                Ok(result) => return result.map(drop),
                Err(_would_block) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    #[tokio::test]
    async fn the_timer_fires_on_time_and_immediately_for_past_instants() {
        let timer = WallTimer::new().unwrap();
        for wait_ms in [-5_000, 0, 150] {
            let at = Timestamp::now() + SignedDuration::from_millis(wait_ms);
            timer.sleep_until(at).await.unwrap();
            assert!(Timestamp::now() >= at, "{wait_ms}");
        }
    }
}
