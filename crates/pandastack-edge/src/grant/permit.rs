//! Permission to have one request, stream or tunnel in flight through a grant.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;

use super::TrafficGrant;

/// Reason why no permit was issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PermitError {
    /// The grant closed; the next one may be opened.
    #[error("the traffic grant is closed")]
    Closed,
    /// [`REQUESTS_PER_SANDBOX_MAX`] are in progress.
    #[error("too many requests to this sandbox are in flight")]
    Full,
}

/// Permission to have one request, stream or tunnel in flight.
pub struct Permit {
    grant: Arc<TrafficGrant>,
    unanswered: bool,
    is_resting: bool,
    /// Whether the stream waits for its guest.
    is_waiting: bool,
    /// Whether the guest of this stream has stopped reading.
    is_stuck: bool,
}

impl Permit {
    /// Creates a permit; the caller counts it.
    pub(super) fn new(grant: Arc<TrafficGrant>, unanswered: bool) -> Self {
        Self { grant, unanswered, is_resting: false, is_waiting: false, is_stuck: false }
    }

    /// The permit's grant.
    pub fn grant(&self) -> &Arc<TrafficGrant> {
        &self.grant
    }

    /// The response has started: from now on only transferred bytes keep the sandbox awake.
    pub fn answered(&mut self) {
        if std::mem::take(&mut self.unanswered) {
            self.grant.unanswered.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Issues another permit, for work that continues after the response. Works even while the
    /// grant is held: started work may continue until it is cut.
    pub(crate) fn duplicate(&self) -> Permit {
        self.grant.in_flight.fetch_add(1, Ordering::SeqCst);
        self.grant.note_activity();
        Permit::new(Arc::clone(&self.grant), false)
    }

    /// Records activity.
    pub fn note_activity(&self) {
        self.grant.note_activity();
    }

    /// Marks the stream as resting: it only waits for its guest. A stop does not wait for a resting
    /// stream on which no byte moves.
    pub(crate) fn set_resting(&mut self, is_resting: bool) {
        if std::mem::replace(&mut self.is_resting, is_resting) == is_resting {
            return;
        }
        if is_resting {
            // Before it counts as resting: traffic up to now must not look like inactivity.
            self.grant.note_moved();
            self.grant.resting.fetch_add(1, Ordering::SeqCst);
            self.grant.notify_drained();
        } else {
            self.grant.resting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Records that a stream was read from, or that its guest had no data.
    pub(crate) fn note_read(&mut self, is_pending: bool) {
        self.is_waiting = is_pending;
        self.set_resting(self.is_waiting && !self.is_stuck);
        if !is_pending {
            self.grant.note_activity();
        }
    }

    /// A stream was written to, or its guest took nothing.
    pub(crate) fn note_write(&mut self, is_pending: bool) {
        self.is_stuck = is_pending;
        self.set_resting(self.is_waiting && !self.is_stuck);
        if !is_pending {
            self.grant.note_moved();
            self.grant.note_activity();
        }
    }

    /// For streams whose protocol reports work in progress: during it, the sandbox stays awake even
    /// without traffic.
    pub fn set_busy(&mut self, busy: bool) {
        self.grant.note_activity();
        if !busy {
            return self.answered();
        }
        if !std::mem::replace(&mut self.unanswered, true) {
            self.grant.unanswered.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Cancelled when the sandbox is about to stop: a stream without work in progress should end.
    pub fn closing(&self) -> CancellationToken {
        self.grant.closing.clone()
    }

    /// Cancelled to end everything still in progress.
    pub fn cut(&self) -> CancellationToken {
        self.grant.cut.clone()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.answered();
        self.set_resting(false);
        self.grant.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.grant.notify_drained();
    }
}
