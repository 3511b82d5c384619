//! An HTTP/1 connection to a guest.
//!
//! ```text
//!   idle --begin--> asked --poll_answer--> answering --poll_frame--> over --is_reusable--> idle
//!                     |                        |
//!                     +---- the request's body is still being sent ----
//! ```
//!
//! Must hold: only the real end of a response counts as its end; a connection is reused only after
//! it sent a whole request, and received a whole response and not a byte more.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{Method, Response};
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

use super::answer_head::{AnswerHead, Framing};
use super::chunks::Chunks;
use super::lines::{Malformed, end_of_head, malformed};
use super::request_head::write_request;
use super::send::Sending;
use crate::body::BodyError;
use crate::headers::Client;
use crate::limits::HEAD_BYTES_MAX;

/// Room for a read: a usual answer with its head. It grows up to [`HEAD_BYTES_MAX`] for an answer that fills it.
const READ_BYTES: usize = 8 * 1024;

/// Reason why a response is missing or incomplete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    /// Before the first byte of an answer. The guest may have closed it without seeing the request.
    #[error("the guest closed the connection before it responded")]
    Closed,
    /// Within the answer.
    #[error("the guest closed the connection during its response")]
    Incomplete,
    /// The answer cannot be read, or can be read in two ways.
    #[error("the guest's response is malformed")]
    Malformed(#[from] Malformed),
    /// The request's body has no end, or is too long.
    #[error("the client disconnected")]
    Client(#[source] BodyError),
}

/// The result of a read.
enum ReadOutcome {
    More,
    Closed,
    Broken,
}

/// A connection. Always boxed: it changes hands several times a request.
pub(crate) struct Upstream<S, B> {
    stream: S,
    /// Read and not used yet.
    input: BytesMut,
    /// Number of bytes of `input` already searched for the end of a head.
    searched: usize,
    read_bytes: usize,
    sending: Sending<B>,
    asked_for_head: bool,
    /// The rest of the answer.
    left: Framing,
    /// Whether a byte of the answer has arrived.
    is_begun: bool,
    /// The guest lets the connection be used again.
    is_kept: bool,
    /// Whether the connection carried an earlier request, so that the guest may have closed it
    /// since.
    pub(crate) is_reused: bool,
}

impl<S, B> Upstream<S, B>
where
    S: AsyncRead + AsyncWrite + Unpin,
    B: Body<Data = Bytes, Error = BodyError> + Unpin,
{
    /// Creates the state of an unused stream.
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            input: BytesMut::new(),
            searched: 0,
            read_bytes: READ_BYTES,
            sending: Sending::new(),
            asked_for_head: false,
            left: Framing::NO_BODY,
            is_begun: false,
            is_kept: true,
            is_reused: false,
        }
    }

    /// Takes a request, which [`Self::poll_answer`] sends.
    pub(crate) fn begin(&mut self, parts: &Parts, client: &Client, body: B) {
        self.asked_for_head = parts.method == Method::HEAD;
        (self.is_begun, self.is_kept) = (false, false);
        let length = Sending::length_of(&body);
        write_request(parts, client, length, self.sending.head());
        self.sending.begin(body, length);
    }

    /// Sends, and reads the head of the answer. The rest of the request's body is sent while the
    /// answer is read.
    pub(crate) fn poll_answer(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<()>, UpstreamError>> {
        if let Poll::Ready(Err(error)) = self.sending.poll(&mut self.stream, context) {
            return Poll::Ready(Err(UpstreamError::Client(error)));
        }
        loop {
            if let Some(head) = self.take_head()? {
                self.is_kept = head.is_kept;
                self.left = head.framing;
                return Poll::Ready(Ok(head.response));
            }
            match ready!(self.poll_fill(context)) {
                ReadOutcome::More => self.is_begun = true,
                _ if self.is_begun => return Poll::Ready(Err(UpstreamError::Incomplete)),
                _ => return Poll::Ready(Err(UpstreamError::Closed)),
            }
        }
    }

    fn take_head(&mut self) -> Result<Option<AnswerHead>, UpstreamError> {
        while let Some(end) = end_of_head(&self.input, self.searched) {
            if end > HEAD_BYTES_MAX {
                break;
            }
            self.searched = 0;
            let head = self.input.split_to(end).freeze();
            if let Some(head) = AnswerHead::parse(&head, self.asked_for_head)? {
                return Ok(Some(head));
            }
        }
        self.searched = self.input.len();
        if self.searched > HEAD_BYTES_MAX {
            return Err(malformed("its head is too long").into());
        }
        Ok(None)
    }

    /// The next piece of the answer's body; `None` at its end.
    pub(crate) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        if let Poll::Ready(Err(error)) = self.sending.poll(&mut self.stream, context) {
            return Poll::Ready(Some(Err(UpstreamError::Client(error))));
        }
        loop {
            if let Some(frame) = self.take_frame().transpose() {
                return Poll::Ready(Some(frame));
            }
            if self.left.is_over() {
                return Poll::Ready(None);
            }
            match (ready!(self.poll_fill(context)), self.left) {
                (ReadOutcome::More, _) => {}
                (ReadOutcome::Closed, Framing::UntilClose) => {
                    self.is_kept = false;
                    self.left = Framing::NO_BODY;
                }
                _ => return Poll::Ready(Some(Err(UpstreamError::Incomplete))),
            }
        }
    }

    fn take_frame(&mut self) -> Result<Option<Frame<Bytes>>, UpstreamError> {
        let taken = match &mut self.left {
            Framing::Chunked(chunks) => return Ok(chunks.take(&mut self.input)?),
            Framing::UntilClose => self.input.len(),
            Framing::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(self.input.len());
                *left -= taken as u64;
                taken
            }
        };
        Ok((taken > 0).then(|| Frame::data(self.input.split_to(taken).freeze())))
    }

    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<ReadOutcome> {
        self.input.reserve(self.read_bytes);
        let room = self.input.capacity() - self.input.len();
        match ready!(poll_read_buf(Pin::new(&mut self.stream), context, &mut self.input)) {
            Ok(0) => Poll::Ready(ReadOutcome::Closed),
            Ok(read) => {
                if read == room {
                    self.read_bytes = HEAD_BYTES_MAX.min(2 * self.read_bytes);
                }
                Poll::Ready(ReadOutcome::More)
            }
            Err(error) => {
                tracing::debug!(%error, "a guest closed the connection");
                Poll::Ready(ReadOutcome::Broken)
            }
        }
    }

    /// The request's body, until its end.
    pub(crate) fn body_mut(&mut self) -> Option<&mut B> {
        self.sending.body_mut()
    }

    /// Returns whether the answer is complete.
    pub(crate) fn is_over(&self) -> bool {
        self.left.is_over()
    }

    /// Length of the rest of the response, as far as it is known.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.left {
            Framing::Length(left) => SizeHint::with_exact(left),
            Framing::Chunked(Chunks::Over) => SizeHint::with_exact(0),
            Framing::Chunked(_) | Framing::UntilClose => SizeHint::default(),
        }
    }

    /// Returns whether the connection can carry another request.
    pub(crate) fn is_reusable(&self) -> bool {
        self.is_kept && self.is_over() && self.sending.is_complete() && self.input.is_empty()
    }

    /// Marks the connection as reused, and frees a large buffer, so that an idle connection holds no
    /// more memory than a fresh one.
    pub(crate) fn prepare_reuse(&mut self) {
        self.is_reused = true;
        if self.read_bytes > READ_BYTES {
            self.read_bytes = READ_BYTES;
            self.input = BytesMut::new();
        }
    }

    /// Returns whether the guest has neither closed the connection nor sent unsolicited bytes.
    pub(crate) fn is_silent(&mut self) -> bool {
        let mut byte = [0];
        let mut byte = ReadBuf::new(&mut byte);
        let mut context = Context::from_waker(Waker::noop());
        Pin::new(&mut self.stream).poll_read(&mut context, &mut byte).is_pending()
    }

    /// The stream, and the bytes that the guest already sent after its head.
    pub(crate) fn into_stream(self) -> (S, Bytes) {
        (self.stream, self.input.freeze())
    }
}

#[cfg(test)]
#[path = "upstream_tests.rs"]
mod tests;
