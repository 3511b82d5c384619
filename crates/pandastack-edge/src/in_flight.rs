//! Requests in flight on one client connection, and the time since which none is.
//!
//! On HTTP/1 the wait for a head shows the same ([`crate::head_clock`]); on HTTP/2 only this does.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use hyper::body::{Body, Frame, SizeHint};

/// Requests in flight on a connection.
pub(crate) struct InFlight(Mutex<Count>);

struct Count {
    requests: usize,
    /// Time at which the last request ended, or the connection began.
    ended: Instant,
}

impl InFlight {
    /// Creates the state of a new connection.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Count { requests: 0, ended: Instant::now() })))
    }

    /// Counts a request until the returned value is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> InFlightRequest {
        self.lock().requests += 1;
        InFlightRequest(Arc::clone(self))
    }

    /// Time since which no request is in flight; `None` while one is.
    pub(crate) fn quiet_since(&self) -> Option<Instant> {
        let count = self.lock();
        (count.requests == 0).then_some(count.ended)
    }

    /// Every critical section is one or two assignments, so a panic elsewhere leaves the count whole.
    fn lock(&self) -> MutexGuard<'_, Count> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight.
pub(crate) struct InFlightRequest(Arc<InFlight>);

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let mut count = self.0.lock();
        count.requests -= 1;
        count.ended = Instant::now();
    }
}

/// The body of an answer: its request is in flight until it is dropped.
pub(crate) struct CountedBody<B> {
    body: B,
    _request: InFlightRequest,
}

impl<B> CountedBody<B> {
    /// The answer to this request.
    pub(crate) fn new(body: B, request: InFlightRequest) -> Self {
        Self { body, _request: request }
    }
}

impl<B: Body + Unpin> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_quiet_after_its_last_response_ends() {
        let in_flight = InFlight::new();
        let began = in_flight.quiet_since().expect("nothing was asked yet");
        let (first, second) = (in_flight.enter(), in_flight.enter());
        let answer = CountedBody::new(crate::ResponseBody::empty(), first);
        drop(second);
        assert_eq!(in_flight.quiet_since(), None, "an answer is still read");
        drop(answer);
        assert!(in_flight.quiet_since().expect("all are answered") >= began);
    }
}
