//! A client's connection, for as long as it carries plain requests.
//!
//! ```text
//!   waiting --plain request--> asked --begin, sent--> waiting
//!      |                         |
//!      +------ anything else ----+--> the rest of the connection is the library's
//! ```
//!
//! Must hold: the connection is handed to the library only between two messages, together with
//! every byte that was read but not answered, so the library sees no trace of earlier requests.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{Method, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::poll_read_buf;

use super::lines::end_of_head;
use super::plain_head::PlainHead;
use super::rewound::RewoundStream;
use super::send::Sending;
use super::write_answer::{Date, body_of, write_answer};
use crate::body::ResponseBody;
use crate::limits::HEAD_BYTES_MAX;

/// Room for a read, made when less than [`ROOM_BYTES_MIN`] is left.
const READ_BYTES: usize = 8 * 1024;
/// Free bytes of the buffer below which a new one is allocated. While a request is in flight its
/// head keeps the buffer alive, and allocating one for every read is expensive.
const ROOM_BYTES_MIN: usize = 1024;

/// A plain request.
pub(crate) struct PlainRequest {
    pub(crate) parts: Parts,
    pub(crate) body: Bytes,
    /// Whether the client closes after the answer.
    is_last: bool,
    /// The head as it came.
    head: Bytes,
}

impl PlainRequest {
    /// Form that the answer must have.
    pub(crate) fn form(&self) -> ResponseForm {
        ResponseForm { asked_for_head: self.parts.method == Method::HEAD, is_last: self.is_last }
    }
}

/// Properties that determine the form of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseForm {
    pub(super) asked_for_head: bool,
    /// No request is taken after the answer.
    pub(crate) is_last: bool,
}

/// The next event on a client's connection.
#[expect(
    clippy::large_enum_variant,
    reason = "taken apart at once; a box would be an allocation per request"
)]
pub(crate) enum NextRequest {
    /// A plain request.
    Plain(PlainRequest),
    /// A request that is not plain; it has not been consumed.
    Other,
    /// The end.
    Closed,
}

/// A client's connection.
pub(crate) struct Downstream<S> {
    stream: S,
    /// Read and not used yet.
    input: BytesMut,
    /// Number of bytes of `input` already searched for the end of a head.
    searched: usize,
    sending: Sending<ResponseBody>,
    date: Date,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Downstream<S> {
    /// Creates the state of an unused connection.
    pub(crate) fn new(stream: S) -> Self {
        let (input, sending) = (BytesMut::new(), Sending::new());
        Self { stream, input, searched: 0, sending, date: Date::default() }
    }

    /// Returns whether no byte of a request has arrived.
    pub(crate) fn is_idle(&self) -> bool {
        self.input.is_empty()
    }

    /// The next request.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<NextRequest> {
        loop {
            if let Some(end) = end_of_head(&self.input, self.searched) {
                return Poll::Ready(self.take_request(end));
            }
            self.searched = self.input.len();
            let may_be_plain = self.input.first().is_none_or(u8::is_ascii_uppercase);
            if !may_be_plain || self.input.len() > HEAD_BYTES_MAX {
                return Poll::Ready(NextRequest::Other);
            }
            if !ready!(self.poll_fill(context)) {
                return Poll::Ready(NextRequest::Closed);
            }
        }
    }

    fn take_request(&mut self, end: usize) -> NextRequest {
        self.searched = 0;
        if end > HEAD_BYTES_MAX {
            return NextRequest::Other;
        }
        let head = self.input.split_to(end).freeze();
        match PlainHead::parse(&head) {
            Some(PlainHead { parts, length, is_last }) if length <= self.input.len() => {
                let body = if length == 0 { Bytes::new() } else { self.input.split_to(length).freeze() };
                NextRequest::Plain(PlainRequest { parts, body, is_last, head })
            }
            _ => {
                self.put_back(&[&head]);
                NextRequest::Other
            }
        }
    }

    fn put_back(&mut self, pieces: &[&[u8]]) {
        let mut input = BytesMut::from(&pieces.concat()[..]);
        input.extend_from_slice(&self.input);
        self.input = input;
    }

    /// Returns whether any bytes arrived.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if self.input.capacity() - self.input.len() < ROOM_BYTES_MIN {
            self.input.reserve(READ_BYTES);
        }
        match ready!(poll_read_buf(Pin::new(&mut self.stream), context, &mut self.input)) {
            Ok(read) => Poll::Ready(read > 0),
            Err(error) => {
                tracing::debug!(%error, "a client closed the connection");
                Poll::Ready(false)
            }
        }
    }

    /// Resolves when the client has disconnected. The client can send more before it has its answer, up to
    /// a limit.
    fn poll_disconnected(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.input.len() < HEAD_BYTES_MAX {
            if !ready!(self.poll_fill(context)) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Returns the result of `work`; `None` if the client disconnects first.
    pub(crate) async fn unless_disconnected<W: Future>(
        &mut self,
        mut work: Pin<&mut W>,
    ) -> Option<W::Output> {
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => self.poll_disconnected(context).map(|()| None),
        })
        .await
    }

    /// Takes an answer, which [`Self::poll_sent`] sends.
    pub(crate) fn begin(&mut self, response: Response<ResponseBody>, form: ResponseForm) {
        let (head, body) = response.into_parts();
        let (body, length) = body_of(&head, body, form);
        write_answer(&head, length, form, &mut self.date, self.sending.head());
        if let Some(body) = body {
            let length = Sending::length_of(&body);
            self.sending.begin(body, length);
        }
    }

    /// Sends; whether the client got all of it.
    pub(crate) fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        match self.sending.poll(&mut self.stream, context) {
            Poll::Ready(sent) => Poll::Ready(sent.is_ok() && self.sending.is_complete()),
            Poll::Pending => self.poll_disconnected(context).map(|()| false),
        }
    }

    /// Ends the connection in an orderly way.
    pub(crate) fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // A client that is gone needs no shutdown.
        Pin::new(&mut self.stream).poll_shutdown(context).map(drop)
    }

    /// Returns the connection for use elsewhere, with the unanswered request.
    pub(crate) fn give_up(mut self, asked: Option<PlainRequest>) -> RewoundStream<S> {
        if let Some(PlainRequest { head, body, .. }) = asked {
            self.put_back(&[&head, &body]);
        }
        RewoundStream::new(self.input.freeze(), self.stream)
    }
}
