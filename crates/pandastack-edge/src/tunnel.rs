//! Plain bytes both ways: upgraded connections and forwarded ports.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::door::Ticket;

/// Bytes held in each direction of an upgraded connection.
pub(crate) const UPGRADED_BUFFER_BYTES: usize = 8 * 1024;

/// A stream to a guest that keeps its sandbox awake while bytes move, and only then.
pub struct Stirring<S> {
    stream: S,
    ticket: Ticket,
}

impl<S> Stirring<S> {
    /// Holds the ticket to the stream's end.
    pub fn new(stream: S, mut ticket: Ticket) -> Self {
        ticket.answered();
        Self { stream, ticket }
    }
}

/// Copies until both sides ended or one broke.
pub async fn copy(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut guest: impl AsyncRead + AsyncWrite + Unpin,
    buffer_bytes: usize,
) {
    let copied =
        tokio::io::copy_bidirectional_with_sizes(&mut client, &mut guest, buffer_bytes, buffer_bytes).await;
    if let Err(error) = copied {
        tracing::debug!(%error, "a tunnel broke");
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stirring<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.ticket.stir();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stirring<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            self.ticket.stir();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
