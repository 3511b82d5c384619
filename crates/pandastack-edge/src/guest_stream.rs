//! A connection to a port of a guest, direct or through an agent.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes to and from a port of a guest.
pub enum GuestStream {
    /// Direct.
    Tcp(TcpStream),
    /// Through the agent of another machine.
    Tunnel(Box<TokioIo<Upgraded>>),
}

impl AsyncRead for GuestStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            GuestStream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            GuestStream::Tunnel(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            GuestStream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            GuestStream::Tunnel(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            GuestStream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            GuestStream::Tunnel(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            GuestStream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            GuestStream::Tunnel(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            GuestStream::Tcp(stream) => stream.is_write_vectored(),
            GuestStream::Tunnel(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            GuestStream::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            GuestStream::Tunnel(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }
}
