//! A client's socket, with the time since which the client has read nothing.
//!
//! The socket is below TLS, where bytes leave: one write above TLS may reach a client in many pieces.
//! Senders of answers check the clock. Upgraded connections do not, because their two ends may take
//! their time.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::limits::{KEEPALIVE_COUNT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL};

/// Time since which a client has not read.
pub(crate) struct WriteClock {
    began: Instant,
    /// Milliseconds since `began` when the client stopped reading; 0 while it reads.
    stuck_ms: AtomicU64,
}

impl WriteClock {
    fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), stuck_ms: AtomicU64::new(0) })
    }

    /// Time since which a write is blocked; `None` while none is.
    pub(crate) fn stuck_since(&self) -> Option<Instant> {
        match self.stuck_ms.load(Ordering::Relaxed) {
            0 => None,
            ms => self.began.checked_add(Duration::from_millis(ms)),
        }
    }

    fn note<T>(&self, written: &Poll<T>) {
        let is_stuck = self.stuck_ms.load(Ordering::Relaxed) != 0;
        if written.is_pending() == is_stuck {
            return;
        }
        let ms = || u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        self.stuck_ms.store(if is_stuck { 0 } else { ms() }, Ordering::Relaxed);
    }
}

/// A client's socket.
pub(crate) struct ClientStream {
    stream: TcpStream,
    writes: Arc<WriteClock>,
}

impl ClientStream {
    /// Creates the state of a new connection.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, writes: WriteClock::new() }
    }

    /// The clock of this stream's writes.
    pub(crate) fn clock(&self) -> Arc<WriteClock> {
        Arc::clone(&self.writes)
    }
}

/// Disables Nagle's algorithm, so that small answers do not wait for delayed acknowledgements, and
/// enables keepalive, so that a vanished client is noticed even on a silent stream: a WebSocket, an
/// event stream, a wait for an answer.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?)
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.writes.note(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.writes.note(&written);
        written
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A client, and its connection here.
    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn client_connections_use_tcp_keepalive() {
        let (_client, stream) = connected().await;
        tune(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE_IDLE);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), KEEPALIVE_INTERVAL);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), KEEPALIVE_COUNT);
    }

    #[tokio::test]
    async fn the_stall_clock_runs_while_the_client_reads_nothing() {
        let (mut client, stream) = connected().await;
        let mut stream = ClientStream::new(stream);
        let clock = stream.clock();
        let piece = vec![7_u8; 64 * 1024];
        stream.write_all(&piece).await.unwrap();
        assert_eq!(clock.stuck_since(), None);
        let mut written = piece.len();
        let fill = |context: &mut Context<'_>| match Pin::new(&mut stream).poll_write(context, &piece) {
            Poll::Ready(more) => {
                written += more.unwrap();
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            }
            Poll::Pending => Poll::Ready(()),
        };
        poll_fn(fill).await;
        let since = clock.stuck_since().expect("nothing more is taken");
        assert!(since <= Instant::now() + Duration::from_millis(1), "to the millisecond");
        let mut read = vec![0; written];
        client.read_exact(&mut read).await.unwrap();
        stream.write_all(&piece).await.unwrap();
        assert_eq!(clock.stuck_since(), None);
    }
}
