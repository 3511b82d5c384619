//! Bodies as they pass through: never collected, counted where there is a limit, cut when a door closes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::access_log::Entry;
use crate::door::Ticket;
use crate::limits::BODY_BYTES_MAX;
use crate::pool::Upstream;

/// Error of any body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The client sent more than allowed.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the body is larger than {BODY_BYTES_MAX} bytes")]
pub struct BodyTooLarge;

/// The client stopped in the middle.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the client stopped sending the body")]
pub struct BodyStalled;

/// The sandbox stopped before its answer was complete.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the sandbox stopped before the response was complete")]
struct Cut;

/// What a client sends.
pub enum RequestBody {
    /// Nothing: most requests.
    Empty,
    /// All of it, which came with the head.
    Whole(Bytes),
    /// As it comes.
    Client {
        /// From the client's connection.
        incoming: Incoming,
        /// Bytes that may still come.
        left: u64,
        /// For the next of them.
        patience: Patience,
    },
}

/// How long is waited for the next piece of a body.
pub struct Patience {
    /// `None` for as long as it takes.
    wait: Option<Duration>,
    /// Made when a piece is first waited for, and used again: most bodies come in one.
    timer: Option<Pin<Box<Sleep>>>,
    is_waiting: bool,
}

impl Patience {
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

    /// Something came.
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
    /// Wraps what a client sends, which may be silent for `wait`.
    pub fn of(incoming: Incoming, wait: Duration) -> Self {
        if incoming.is_end_stream() {
            return Self::Empty;
        }
        Self::Client { incoming, left: BODY_BYTES_MAX, patience: Patience::new(wait) }
    }

    /// From now on the client may take its time.
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

/// What a client gets.
pub enum ResponseBody {
    /// An answer of ours.
    Own(Full<Bytes>),
    /// An answer of the API.
    Api(axum::body::Body),
    /// An answer of a guest.
    Guest(Box<GuestBody>),
}

impl ResponseBody {
    /// Nothing.
    pub fn empty() -> Self {
        Self::Own(Full::default())
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            ResponseBody::Own(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
            ResponseBody::Api(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            ResponseBody::Guest(body) => Pin::new(&mut **body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Own(body) => body.is_end_stream(),
            ResponseBody::Api(body) => body.is_end_stream(),
            ResponseBody::Guest(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Own(body) => body.size_hint(),
            ResponseBody::Api(body) => body.size_hint(),
            ResponseBody::Guest(body) => body.size_hint(),
        }
    }
}

/// Where a guest's answer comes from.
pub(crate) enum Source {
    /// A connection that carries nothing else meanwhile, which this body drives.
    Upstream(Box<Upstream>),
    /// A shared HTTP/2 connection, which has a task.
    Shared(Incoming),
    /// Nowhere: it has no body, or that is over.
    Nothing,
}

/// A guest's answer. Gives the connection it comes from back at its end.
pub struct GuestBody {
    source: Source,
    port: u16,
    ticket: Ticket,
    /// An event stream: nothing but the guest knows when more of it comes.
    is_events: bool,
    /// Made only when the body has to wait: most come in one piece.
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    log: Option<Entry>,
}

impl GuestBody {
    pub(crate) fn new(source: Source, port: u16, ticket: Ticket, is_events: bool) -> Self {
        Self { source, port, ticket, is_events, cut: None, log: None }
    }

    /// Writes this line of the access log when the body ended.
    pub(crate) fn log_at_end(&mut self, entry: Entry) {
        self.log = Some(entry);
    }

    fn end(&mut self) {
        if let Source::Upstream(upstream) = std::mem::replace(&mut self.source, Source::Nothing) {
            self.ticket.door().pools.put(self.port, upstream);
        }
    }

    /// Whether nobody waits for its end. A page that is made in pieces goes on, and so does a conversation: a request of which not
    /// all was sent, a gRPC call.
    fn may_last_for_ever(&mut self) -> bool {
        match &mut self.source {
            Source::Upstream(upstream) => self.is_events && upstream.body_mut().is_none(),
            Source::Shared(_) | Source::Nothing => false,
        }
    }

    fn poll_source(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.source {
            Source::Upstream(upstream) => upstream.poll_frame(context).map_err(Into::into),
            Source::Shared(incoming) => Pin::new(incoming).poll_frame(context).map_err(Into::into),
            Source::Nothing => Poll::Ready(None),
        }
    }
}

impl Body for GuestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        match this.poll_source(context) {
            Poll::Ready(Some(Ok(frame))) => {
                this.ticket.stir();
                this.ticket.set_resting(false);
                if let Some(log) = &mut this.log {
                    log.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                }
                if this.is_end_stream() {
                    this.end();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
            Poll::Ready(None) => {
                this.end();
                Poll::Ready(None)
            }
            Poll::Pending => {
                let may_last_for_ever = this.may_last_for_ever();
                this.ticket.set_resting(may_last_for_ever);
                let token = Arc::clone(this.ticket.door());
                let cut = this.cut.get_or_insert_with(|| Box::pin(token.cut.clone().cancelled_owned()));
                ready!(cut.as_mut().poll(context));
                Poll::Ready(Some(Err(Cut.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Upstream(upstream) => upstream.is_over(),
            Source::Shared(incoming) => incoming.is_end_stream(),
            Source::Nothing => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Upstream(upstream) => upstream.size_hint(),
            Source::Shared(incoming) => incoming.size_hint(),
            Source::Nothing => SizeHint::with_exact(0),
        }
    }
}

impl Drop for GuestBody {
    fn drop(&mut self) {
        // A body that the server never polled because it is empty ends here.
        if self.is_end_stream() {
            self.end();
        }
    }
}
