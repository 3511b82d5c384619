//! Delays between attempts.

use std::time::Duration;

/// Longest wait between two tries.
pub const BACKOFF_SECONDS_MAX: u64 = 3600;

/// The wait after a failed try, the first being 1: the first delay, doubled each time, up to [`BACKOFF_SECONDS_MAX`].
pub fn backoff(first_seconds: u64, attempt: u32) -> Duration {
    let doubled = 1_u64.checked_shl(attempt.saturating_sub(1)).unwrap_or(u64::MAX);
    Duration::from_secs(first_seconds.saturating_mul(doubled).min(BACKOFF_SECONDS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_maximum() {
        for (first, attempt, seconds) in [
            (10, 1, 10),
            (10, 2, 20),
            (10, 5, 160),
            (10, 10, BACKOFF_SECONDS_MAX),
            (1, 64, BACKOFF_SECONDS_MAX),
            (1, u32::MAX, BACKOFF_SECONDS_MAX),
            (u64::MAX, 3, BACKOFF_SECONDS_MAX),
            (0, 9, 0),
        ] {
            assert_eq!(backoff(first, attempt), Duration::from_secs(seconds), "{first} {attempt}");
        }
    }
}
