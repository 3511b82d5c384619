//! Measures the frequency of the processor's time stamp counter.
//!
//! A guest sees the host's counter and keeps time by it. Left to itself its kernel learns the rate at boot by comparing it
//! with an emulated timer, and on a busy host that timer is served late: rates were seen that are wrong by a factor of
//! thirteen, frozen into the template and with it into every clock of every sandbox. So the host measures, and tells.

use std::time::{Duration, Instant};

/// Time between the two readings of both clocks. Their error of some hundred nanoseconds is then a
/// few parts per million.
const WINDOW: Duration = Duration::from_millis(100);
/// Attempts per reading; the least interrupted one counts.
const TRIES: usize = 32;

/// Kernel argument for the counter's rate; `None` if the machine has no counter.
pub(crate) fn kernel_arg() -> Option<String> {
    let (from, to) = (sample_clock()?, {
        #[expect(clippy::disallowed_methods, reason = "measures over a fixed time")]
        std::thread::sleep(WINDOW);
        sample_clock()?
    });
    Some(format!("tsc_early_khz={}", rate_khz(from, to)?))
}

/// The counter and the clock at one moment.
type ClockSample = (u64, Instant);

fn sample_clock() -> Option<ClockSample> {
    let tries = (0..TRIES).filter_map(|_| {
        let before = counter()?;
        let now = Instant::now();
        let after = counter()?;
        Some((after.checked_sub(before)?, (before + (after - before) / 2, now)))
    });
    tries.min_by_key(|(width, _)| *width).map(|(_, sample)| sample)
}

fn rate_khz(from: ClockSample, to: ClockSample) -> Option<u64> {
    let ticks = u128::from(to.0.checked_sub(from.0)?);
    let nanos = to.1.checked_duration_since(from.1)?.as_nanos();
    let khz = ticks.checked_mul(1_000_000)?.checked_div(nanos)?;
    u64::try_from(khz).ok().filter(|khz| *khz > 0)
}

#[cfg(target_arch = "x86_64")]
fn counter() -> Option<u64> {
    // SAFETY: every x86-64 processor has the counter, and Linux lets every process read it.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_ticks_per_millisecond() {
        let now = Instant::now();
        let later = now + Duration::from_millis(100);
        assert_eq!(rate_khz((1_000, now), (200_001_000, later)), Some(2_000_000));
        assert_eq!(rate_khz((2, now), (1, later)), None, "a counter that went back says nothing");
        assert_eq!(rate_khz((1, now), (2, now)), None);
    }

    #[test]
    fn two_measurements_agree() {
        let rate = || {
            let arg = kernel_arg().unwrap();
            arg.strip_prefix("tsc_early_khz=").unwrap().parse::<f64>().unwrap()
        };
        let (one, other) = (rate(), rate());
        assert!((one / other - 1.0).abs() < 0.001, "{one} and {other} kHz");
    }
}
