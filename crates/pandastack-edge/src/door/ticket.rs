//! Permission to have one request, stream or tunnel in flight through a door.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;

use super::Door;

/// Why no ticket was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoTicket {
    /// The door closed; the next one may be opened.
    Closed,
    /// [`REQUESTS_PER_SANDBOX_MAX`] are under way.
    Full,
}

/// Permission to have one request, stream or tunnel in flight.
pub struct Ticket {
    door: Arc<Door>,
    unanswered: bool,
    is_resting: bool,
    /// Of a stream: its guest has nothing to say.
    is_waiting: bool,
    /// Of a stream: its guest does not take what is said to it.
    is_stuck: bool,
}

impl Ticket {
    /// Counted by who makes it.
    pub(super) fn new(door: Arc<Door>, unanswered: bool) -> Self {
        Self { door, unanswered, is_resting: false, is_waiting: false, is_stuck: false }
    }

    /// The door it is for.
    pub fn door(&self) -> &Arc<Door> {
        &self.door
    }

    /// The answer has begun: from now on only moving bytes keep the sandbox awake.
    pub fn answered(&mut self) {
        if std::mem::take(&mut self.unanswered) {
            self.door.unanswered.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// One more, for what goes on after the answer. Also given while the door is held: what began
    /// may go on until it is cut.
    pub(crate) fn another(&self) -> Ticket {
        self.door.under_way.fetch_add(1, Ordering::SeqCst);
        self.door.stir();
        Ticket::new(Arc::clone(&self.door), false)
    }

    /// Notes that bytes move.
    pub fn stir(&self) {
        self.door.stir();
    }

    /// Whether this is a stream that waits for its guest and has nothing else to do. Such a one is
    /// not waited for when its sandbox is about to stop and no byte moves.
    pub(crate) fn set_resting(&mut self, is_resting: bool) {
        if std::mem::replace(&mut self.is_resting, is_resting) == is_resting {
            return;
        }
        if is_resting {
            // Before it is counted: what moved until now must not be taken for stillness.
            self.door.note_moved();
            self.door.resting.fetch_add(1, Ordering::SeqCst);
            self.door.tell_drain();
        } else {
            self.door.resting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A stream was read from, or its guest had nothing to say.
    pub(crate) fn note_read(&mut self, is_pending: bool) {
        self.is_waiting = is_pending;
        self.set_resting(self.is_waiting && !self.is_stuck);
        if !is_pending {
            self.door.stir();
        }
    }

    /// A stream was written to, or its guest took nothing.
    pub(crate) fn note_write(&mut self, is_pending: bool) {
        self.is_stuck = is_pending;
        self.set_resting(self.is_waiting && !self.is_stuck);
        if !is_pending {
            self.door.note_moved();
            self.door.stir();
        }
    }

    /// For streams whose protocol tells when work is under way: while it is, the sandbox stays
    /// awake though no byte moves.
    pub fn set_busy(&mut self, busy: bool) {
        self.door.stir();
        if !busy {
            return self.answered();
        }
        if !std::mem::replace(&mut self.unanswered, true) {
            self.door.unanswered.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Cancelled when the sandbox is about to stop: a stream without work under way should end.
    pub fn closing(&self) -> CancellationToken {
        self.door.closing.clone()
    }

    /// Cancelled when whatever is still under way ends now.
    pub fn cut(&self) -> CancellationToken {
        self.door.cut.clone()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.answered();
        self.set_resting(false);
        self.door.under_way.fetch_sub(1, Ordering::SeqCst);
        self.door.tell_drain();
    }
}
