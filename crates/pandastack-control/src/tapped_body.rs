//! A request body whose frames pass through a function.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// One poll of a body: a frame, an error, or its end.
pub(crate) type PollResult = Option<Result<Frame<Bytes>, axum::Error>>;

/// A body that shows what it yields to `tap`, which may replace it. The flag says whether the body has ended.
pub(crate) struct TappedBody<F> {
    body: Body,
    tap: F,
}

impl<F: FnMut(PollResult, bool) -> PollResult + Send + Unpin + 'static> TappedBody<F> {
    /// A body around another one.
    pub(crate) fn around(body: Body, tap: F) -> Body {
        Body::new(Self { body, tap })
    }
}

impl<F: FnMut(PollResult, bool) -> PollResult + Unpin> HttpBody for TappedBody<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PollResult> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let ended = frame.is_none() || self.body.is_end_stream();
        Poll::Ready((self.tap)(frame, ended))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
