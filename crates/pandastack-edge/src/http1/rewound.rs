//! A stream with some bytes already read.

use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that starts with bytes that were already read from it.
pub(crate) struct RewoundStream<S> {
    read: Bytes,
    stream: S,
}

impl<S> RewoundStream<S> {
    pub(super) fn new(read: Bytes, stream: S) -> Self {
        Self { read, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RewoundStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let taken = self.read.len().min(buffer.remaining());
        buffer.put_slice(&self.read[..taken]);
        self.read.advance(taken);
        if self.read.is_empty() {
            self.read = Bytes::new();
            // Include bytes that arrived since, as a single read would: a server that considers a
            // body unread closes the connection. The next read reports an end or an error.
            let _ = Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RewoundStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn one_read_returns_rewound_and_new_bytes() {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(b" and since").await.unwrap();
        let mut rewound = RewoundStream::new(Bytes::from_static(b"before"), server);
        let mut bytes = [0; 4];
        assert_eq!(rewound.read(&mut bytes).await.unwrap(), 4);
        let mut rest = [0; 64];
        let read = rewound.read(&mut rest).await.unwrap();
        assert_eq!(&rest[..read], b"re and since");
        drop(client);
        assert_eq!(rewound.read(&mut rest).await.unwrap(), 0);
    }
}
