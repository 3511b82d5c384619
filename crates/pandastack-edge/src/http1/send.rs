//! Sends a message: its head, then its body in pieces.

use std::io::{IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use hyper::body::Body;
use tokio::io::AsyncWrite;

use crate::body::BodyError;

/// A piece up to this length is copied behind its head: that costs less than a write from several places.
const COPIED_BYTES_MAX: usize = 2 * 1024;

/// Encoding of a body's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// In the head.
    Known(u64),
    /// Chunked, with a length per chunk.
    Chunked,
}

/// A message being sent. Written in order: `head`, `piece`, `tail`.
pub(super) struct Sending<B> {
    /// Bytes before the piece: the message's head, or a chunk's size.
    head: Vec<u8>,
    /// Number of bytes of it that are written.
    head_written: usize,
    /// The current piece of the body.
    piece: Bytes,
    /// Bytes after the piece: the end of a chunk.
    tail: &'static [u8],
    /// The rest of the body, and its length if that was stated.
    body: Option<(B, Length)>,
    /// Whether the stream has flushed everything written: TLS buffers bytes that its socket did not
    /// accept.
    is_flushed: bool,
    /// The other side took no more, or the body broke off.
    is_broken: bool,
}

impl<B: Body<Data = Bytes, Error = BodyError> + Unpin> Sending<B> {
    /// An idle sender.
    pub(super) fn new() -> Self {
        Self {
            head: Vec::new(),
            head_written: 0,
            piece: Bytes::new(),
            tail: b"",
            body: None,
            is_flushed: true,
            is_broken: false,
        }
    }

    /// The encoding of a body's length.
    pub(super) fn length_of(body: &B) -> Length {
        body.size_hint().exact().map_or(Length::Chunked, Length::Known)
    }

    /// Buffer for the next message's head.
    pub(super) fn head(&mut self) -> &mut Vec<u8> {
        &mut self.head
    }

    /// Takes the body that follows the head.
    pub(super) fn begin(&mut self, body: B, length: Length) {
        self.body = (!body.is_end_stream()).then_some((body, length));
    }

    /// The body, until its end.
    pub(super) fn body_mut(&mut self) -> Option<&mut B> {
        self.body.as_mut().map(|(body, _)| body)
    }

    /// Returns whether the other side has received all of the message.
    pub(super) fn is_complete(&self) -> bool {
        self.is_over() && !self.is_broken
    }

    fn is_over(&self) -> bool {
        self.body.is_none() && self.is_written() && self.is_flushed
    }

    fn is_written(&self) -> bool {
        self.head.is_empty() && self.piece.is_empty() && self.tail.is_empty()
    }

    /// Sends as much as there is and the other side takes. Fails only if the body did: a side that
    /// takes no more may still answer.
    pub(super) fn poll<S>(&mut self, stream: &mut S, context: &mut Context<'_>) -> Poll<Result<(), BodyError>>
    where
        S: AsyncWrite + Unpin,
    {
        if self.is_over() {
            return Poll::Ready(Ok(()));
        }
        loop {
            let is_fetched = self.poll_fetch(context).map_err(|error| {
                self.give_up();
                error
            })?;
            if let Err(error) = ready!(self.poll_write(stream, context)) {
                tracing::debug!(%error, "the receiver accepts no more of a message");
                self.give_up();
            }
            ready!(is_fetched);
            if self.is_over() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn give_up(&mut self) {
        *self = Self { is_broken: true, ..Self::new() };
    }

    /// Takes the next piece of the body, unless one still waits to be written or all were taken.
    fn poll_fetch(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let Some((body, length)) = &mut self.body else { return Poll::Ready(Ok(())) };
        if self.head.len() > COPIED_BYTES_MAX || !self.piece.is_empty() || !self.tail.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let frame = match ready!(Pin::new(body).poll_frame(context)) {
            Some(frame) => frame?,
            None => return Poll::Ready(self.end()),
        };
        // Trailers are not forwarded: a server that merges them into the headers could mistake a
        // client's values for ours.
        let Ok(piece) = frame.into_data() else { return Poll::Ready(Ok(())) };
        match length {
            Length::Known(left) => {
                *left = left.checked_sub(piece.len() as u64).ok_or_else(wrong_length)?;
                if *left == 0 {
                    self.body = None;
                }
            }
            // An empty chunk would be the last one.
            Length::Chunked if piece.is_empty() => {}
            Length::Chunked => {
                // Writing to memory cannot fail.
                let _ = write!(self.head, "{:x}\r\n", piece.len());
                self.tail = b"\r\n";
            }
        }
        if piece.len() > COPIED_BYTES_MAX {
            self.piece = piece;
        } else {
            self.head.extend_from_slice(&piece);
            self.head.extend_from_slice(std::mem::take(&mut self.tail));
        }
        Poll::Ready(Ok(()))
    }

    fn end(&mut self) -> Result<(), BodyError> {
        match self.body.take() {
            Some((_, Length::Chunked)) => self.head.extend_from_slice(b"0\r\n\r\n"),
            Some((_, Length::Known(left))) if left > 0 => return Err(wrong_length()),
            _ => {}
        }
        Ok(())
    }

    fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        while !self.is_written() {
            self.is_flushed = false;
            let stream = Pin::new(&mut *stream);
            let written = if self.piece.is_empty() && self.tail.is_empty() {
                stream.poll_write(context, &self.head[self.head_written..])
            } else {
                let slices = [&self.head[self.head_written..], &self.piece, self.tail].map(IoSlice::new);
                stream.poll_write_vectored(context, &slices)
            };
            match ready!(written)? {
                0 => return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into())),
                written => self.advance(written),
            }
        }
        if !self.is_flushed {
            ready!(Pin::new(stream).poll_flush(context))?;
            self.is_flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, written: usize) {
        let of_head = written.min(self.head.len() - self.head_written);
        self.head_written += of_head;
        if self.head_written == self.head.len() {
            self.head.clear();
            self.head_written = 0;
        }
        let of_piece = (written - of_head).min(self.piece.len());
        self.piece.advance(of_piece);
        if self.piece.is_empty() {
            // An empty piece would still hold on to the buffer that it was read into, which then could not be used again.
            self.piece = Bytes::new();
        }
        self.tail = &self.tail[written - of_head - of_piece..];
    }
}

fn wrong_length() -> BodyError {
    "the body does not match its Content-Length".into()
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::body::RequestBody;

    /// Takes everything, and needs two tries to pass it on.
    #[derive(Default)]
    struct BufferedStream {
        taken: Vec<u8>,
        flushes: u32,
    }

    impl AsyncWrite for BufferedStream {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            self.taken.extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            self.flushes += 1;
            if self.flushes == 1 { Poll::Pending } else { Poll::Ready(Ok(())) }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_request_is_complete_only_after_a_flush() {
        let (mut stream, mut sending) = (BufferedStream::default(), Sending::new());
        sending.head().extend_from_slice(b"head ");
        sending.begin(RequestBody::from(Bytes::from_static(b"body")), Length::Known(4));
        let mut context = Context::from_waker(Waker::noop());
        assert!(sending.poll(&mut stream, &mut context).is_pending());
        assert_eq!((stream.taken.as_slice(), sending.is_complete()), (b"head body".as_slice(), false));
        assert!(sending.poll(&mut stream, &mut context).is_ready());
        assert_eq!((stream.flushes, sending.is_complete()), (2, true));
        assert!(sending.poll(&mut stream, &mut context).is_ready());
        assert_eq!(stream.flushes, 2, "nothing new to pass on");
    }
}
