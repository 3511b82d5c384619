//! When usage is due to be recorded.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pandastack_types::HostId;

/// Interval at which the totals of a host's sandboxes become usage events. Transitions record them
/// too.
const USAGE_EVERY: Duration = Duration::from_secs(60);

/// When each host's usage was last recorded.
#[derive(Default)]
pub(crate) struct UsageClock(Mutex<HashMap<HostId, Instant>>);

impl UsageClock {
    /// Returns whether the usage of a host is due; if so, it counts as recorded now.
    pub(crate) fn is_due(&self, host: &HostId) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.get(host).is_none_or(|at| at.elapsed() >= USAGE_EVERY);
        if due {
            last.insert(host.clone(), Instant::now());
        }
        due
    }
}
