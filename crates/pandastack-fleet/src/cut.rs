//! A connection between hosts that ends when its host is removed, whatever runs over it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::membership::Admitted;

/// A connection: plain, or TLS with a host that is a member or has yet to join.
pub struct LinkStream {
    io: Io,
    member: Option<Member>,
}

enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

struct Member {
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    is_cut: bool,
    /// Held, not read.
    _admitted: Admitted,
}

impl LinkStream {
    pub(crate) fn plain(stream: TcpStream) -> Self {
        Self { io: Io::Plain(stream), member: None }
    }

    pub(crate) fn tls(stream: impl Into<TlsStream<TcpStream>>, admitted: Option<Admitted>) -> Self {
        let member = admitted.map(|admitted| Member {
            cut: Box::pin(admitted.cut().cancelled_owned()),
            is_cut: false,
            _admitted: admitted,
        });
        Self { io: Io::Tls(Box::new(stream.into())), member }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(member) = &mut self.member else { return Ok(()) };
        member.is_cut = member.is_cut || member.cut.as_mut().poll(cx).is_ready();
        if !member.is_cut {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the host was removed from this installation"))
    }
}

impl AsyncRead for LinkStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for LinkStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Io::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
