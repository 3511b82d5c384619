//! How fast a workspace may ask: a bucket each, refilled steadily.
//!
//! Kept in memory: with several replicas each admits its share of what clients send it.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pandastack_types::limits::REQUEST_BURST_SECONDS;
use pandastack_types::{ErrorCode, WorkspaceId};

use crate::error::ApiError;

/// Workspaces remembered at once; beyond it those with a full bucket are forgotten, which changes nothing for them.
const WORKSPACES_MAX: usize = 10_000;

/// The buckets.
pub(crate) struct Rates {
    /// `None` admits everything.
    per_second: Option<NonZeroU32>,
    buckets: Mutex<HashMap<WorkspaceId, Bucket>>,
}

struct Bucket {
    left: f64,
    at: Instant,
}

impl Rates {
    pub(crate) fn new(per_second: Option<NonZeroU32>) -> Self {
        Self { per_second, buckets: Mutex::default() }
    }

    /// Takes one request out of a workspace's bucket, or refuses it.
    pub(crate) fn admit(&self, workspace: &WorkspaceId, now: Instant) -> Result<(), ApiError> {
        let Some(per_second) = self.per_second else { return Ok(()) };
        let rate = f64::from(per_second.get());
        let full = rate * f64::from(REQUEST_BURST_SECONDS);
        let filled = |bucket: &Bucket| {
            full.min(bucket.left + rate * now.saturating_duration_since(bucket.at).as_secs_f64())
        };
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= WORKSPACES_MAX {
            buckets.retain(|_, bucket| filled(bucket) < full);
        }
        let bucket = buckets.entry(workspace.clone()).or_insert(Bucket { left: full, at: now });
        *bucket = Bucket { left: filled(bucket), at: now };
        if bucket.left < 1.0 {
            let what =
                format!("this workspace may make {per_second} requests per second and made more; slow down");
            return Err(ApiError::new(ErrorCode::RateLimited, what));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_passes_then_the_rate_holds() {
        let rates = Rates::new(NonZeroU32::new(10));
        let (one, other) = (WorkspaceId::default_workspace(), "other".parse().unwrap());
        let start = Instant::now();
        let passed = |at| (0..100).filter(|_| rates.admit(&one, at).is_ok()).count();
        assert_eq!(passed(start), 20, "two seconds' worth at once");
        assert_eq!(passed(start), 0);
        assert_eq!(passed(start + Duration::from_millis(500)), 5);
        assert_eq!(passed(start + Duration::from_secs(60)), 20, "no more than the burst is saved up");
        assert!(rates.admit(&other, start).is_ok(), "one workspace does not use up another's");
    }

    #[test]
    fn without_a_rate_everything_passes() {
        let rates = Rates::new(None);
        let now = Instant::now();
        assert!((0..10_000).all(|_| rates.admit(&WorkspaceId::default_workspace(), now).is_ok()));
    }
}
