//! The body of a request: counted against a limit, with a read timeout.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::error::{BodyError, BodyStalled, BodyTooLarge};
use crate::limits::BODY_BYTES_MAX;

/// The body of a client's request.
pub enum RequestBody {
    /// No body, as in most requests.
    Empty,
    /// The complete body, which arrived with the head.
    Whole(Bytes),
    /// The body as the client sends it.
    Client {
        /// The client's connection.
        incoming: Incoming,
        /// Remaining bytes.
        left: u64,
        /// Time to wait for the next piece.
        patience: PieceTimeout,
    },
}

/// A limit on the wait for the next piece of a body.
pub struct PieceTimeout {
    /// `None` for as long as it takes.
    wait: Option<Duration>,
    /// Created at the first wait for a piece, then reused: most bodies arrive in one piece.
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl PieceTimeout {
    fn new(wait: Duration) -> Self {
        Self { wait: Some(wait), timer: None, is_waiting: false }
    }

    /// Waits, from the first call after [`Self::renew`] on.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(wait) = self.wait else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(wait)));
        if !std::mem::replace(&mut self.is_waiting, true) {
            timer.as_mut().reset(Instant::now() + wait);
        }
        timer.as_mut().poll(context)
    }

    /// Restarts the wait, because a piece arrived.
    fn renew(&mut self) {
        self.is_waiting = false;
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::Empty } else { Self::Whole(bytes) }
    }
}

impl RequestBody {
    /// Wraps a client's body; the client may be silent for `wait`.
    pub fn of(incoming: Incoming, wait: Duration) -> Self {
        if incoming.is_end_stream() {
            return Self::Empty;
        }
        Self::Client { incoming, left: BODY_BYTES_MAX, patience: PieceTimeout::new(wait) }
    }

    /// Disables the deadline of the client.
    pub(crate) fn wait_for_ever(&mut self) {
        if let Self::Client { patience, .. } = self {
            patience.wait = None;
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let (incoming, left, patience) = match self.get_mut() {
            RequestBody::Empty => return Poll::Ready(None),
            RequestBody::Client { incoming, left, patience } => (incoming, left, patience),
            RequestBody::Whole(bytes) => {
                let bytes = std::mem::take(bytes);
                return Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))));
            }
        };
        let Poll::Ready(frame) = Pin::new(incoming).poll_frame(context) else {
            ready!(patience.poll_end(context));
            return Poll::Ready(Some(Err(BodyStalled.into())));
        };
        patience.renew();
        let Some(frame) = frame.transpose()? else { return Poll::Ready(None) };
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        match left.checked_sub(bytes) {
            Some(rest) => *left = rest,
            None => return Poll::Ready(Some(Err(BodyTooLarge.into()))),
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Empty => true,
            RequestBody::Whole(bytes) => bytes.is_empty(),
            RequestBody::Client { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            RequestBody::Client { incoming, .. } => incoming.size_hint(),
        }
    }
}
