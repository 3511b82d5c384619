//! The body of a guest's response: streamed, and cut when the guest's grant is.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::error::BodyError;
use crate::access_log::Entry;
use crate::grant::Permit;
use crate::pool::Upstream;

/// The sandbox stopped before its answer was complete.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the sandbox stopped before the response was complete")]
struct Cut;

/// The source of a guest's response.
pub(crate) enum Source {
    /// An exclusive connection, which this body drives.
    Upstream(Box<Upstream>),
    /// A shared HTTP/2 connection, which has a task.
    Shared(Incoming),
    /// Nowhere: it has no body, or that is over.
    Nothing,
}

/// A guest's response body. Returns its connection to the pool at its end.
pub struct GuestBody {
    source: Source,
    port: u16,
    permit: Permit,
    /// Whether the body is an event stream: only the guest knows when more events follow.
    is_events: bool,
    /// Created only when the body has to wait: most arrive in one piece.
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    log: Option<Entry>,
}

impl GuestBody {
    pub(crate) fn new(source: Source, port: u16, permit: Permit, is_events: bool) -> Self {
        Self { source, port, permit, is_events, cut: None, log: None }
    }

    /// Writes this line of the access log when the body ended.
    pub(crate) fn log_at_end(&mut self, entry: Entry) {
        self.log = Some(entry);
    }

    fn end(&mut self) {
        if let Source::Upstream(upstream) = std::mem::replace(&mut self.source, Source::Nothing) {
            self.permit.grant().pools.put(self.port, upstream);
        }
    }

    /// Returns whether the body is an event stream that may last forever, so that its end is not
    /// awaited. A page sent in pieces is awaited, and so is a bidirectional exchange: an incomplete
    /// request, a gRPC call.
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
                this.permit.note_activity();
                this.permit.set_resting(false);
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
                this.permit.set_resting(may_last_for_ever);
                let token = Arc::clone(this.permit.grant());
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
