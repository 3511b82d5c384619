//! Retries a session while its server starts, stops, or recovers from a crash.
//!
//! A server reports this before it does any work, so its client need not know. No event signals that it
//! accepts sessions again, so the login is retried on new connections from
//! [`Databases::connect`](crate::Databases::connect), which waits for machines.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::limits::{NOT_YET_PAUSE, NOT_YET_WAIT};

/// Tests do not wait that long.
pub(crate) const WAIT: Duration = if cfg!(test) { Duration::from_secs(5) } else { NOT_YET_WAIT };

/// SQLSTATEs of a server that accepts no sessions at the moment: it is stopping, one of its
/// processes crashed, or it is not ready.
const NOT_YET: [&str; 3] = ["57P01", "57P02", "57P03"];

/// Returns whether a login that failed with this SQLSTATE may succeed a moment later.
pub(crate) fn is_not_yet(code: &str) -> bool {
    NOT_YET.contains(&code)
}

/// Deadline until which one client is held for it.
#[derive(Debug)]
pub(crate) struct RetryDeadline(Instant);

impl RetryDeadline {
    pub(crate) fn new() -> Self {
        Self(Instant::now() + WAIT)
    }

    /// Waits a moment; `false` if the client waited long enough.
    pub(crate) async fn is_left(&self) -> bool {
        let is_left = Instant::now() < self.0;
        if is_left {
            sleep(NOT_YET_PAUSE).await;
        }
        is_left
    }
}
