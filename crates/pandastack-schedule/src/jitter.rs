//! Spreads runs that are due at the same time.

use std::time::Duration;

use jiff::Timestamp;

/// Delay of a schedule's run after `instant`: always the same for the same schedule and instant, so
/// that a restart does not move it, and evenly spread over schedules.
pub fn jitter(schedule: &str, instant: Timestamp, seconds_max: u64) -> Duration {
    let span_ms = seconds_max.saturating_mul(1000);
    if span_ms == 0 {
        return Duration::ZERO;
    }
    let hash = schedule
        .bytes()
        .chain(instant.as_microsecond().to_le_bytes())
        // FNV-1a: https://datatracker.ietf.org/doc/html/draft-eastlake-fnv
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    Duration::from_millis(mix(hash) % (span_ms + 1))
}

/// FNV's high bits move little with the last bytes; this finishes the job (the last step of SplitMix64).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_deterministic_bounded_and_spread() {
        let at = Timestamp::UNIX_EPOCH;
        assert_eq!(jitter("a", at, 0), Duration::ZERO);
        assert_eq!(jitter("a", at, 60), jitter("a", at, 60));
        let all: Vec<_> = (0..1000).map(|n| jitter(&format!("schedule-{n}"), at, 60)).collect();
        assert!(all.iter().all(|wait| *wait <= Duration::from_secs(60)));
        let early = all.iter().filter(|wait| **wait < Duration::from_secs(30)).count();
        assert!((400..600).contains(&early), "{early} of 1000 in the first half");
    }
}
