//! Relays raw bytes: upgraded connections and forwarded ports.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::grant::Permit;

/// Bytes held in each direction of an upgraded connection.
pub(crate) const UPGRADED_BUFFER_BYTES: usize = 8 * 1024;

/// A stream to a guest that keeps its sandbox awake while bytes move. The user watches [`Permit::cut`].
pub(crate) struct ActivityStream<S> {
    stream: S,
    permit: Permit,
}

impl<S> ActivityStream<S> {
    /// Holds the permit to the stream's end.
    pub(crate) fn new(stream: S, mut permit: Permit) -> Self {
        permit.answered();
        Self { stream, permit }
    }
}

/// A stream to a guest that keeps its sandbox awake while bytes move. It fails when its grant is cut: the guest stops
/// then, and its address may be reused.
pub struct GuestTunnel<S> {
    stream: ActivityStream<S>,
    /// Cancels reading. Two futures, because the halves may be used by two tasks; each is created
    /// on first use.
    cut_reading: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    cut_writing: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl<S> GuestTunnel<S> {
    /// Holds the permit to the stream's end.
    pub fn new(stream: S, permit: Permit) -> Self {
        Self { stream: ActivityStream::new(stream, permit), cut_reading: None, cut_writing: None }
    }
}

/// An error and not an end: after an end the other direction would continue.
fn poll_cut(
    cut: &mut Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    permit: &Permit,
    context: &mut Context<'_>,
) -> Poll<io::Error> {
    let cut = cut.get_or_insert_with(|| Box::pin(permit.cut().cancelled_owned()));
    cut.as_mut()
        .poll(context)
        .map(|()| io::Error::new(io::ErrorKind::ConnectionAborted, "the sandbox stopped"))
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

impl<S: AsyncRead + Unpin> AsyncRead for ActivityStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        // A stream that has ended sends no more either.
        let is_over = matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() == before;
        self.permit.note_read(read.is_pending() || is_over);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ActivityStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.permit.note_write(written.is_pending());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuestTunnel<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(error) = poll_cut(&mut this.cut_reading, &this.stream.permit, context) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuestTunnel<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Poll::Ready(error) = poll_cut(&mut this.cut_writing, &this.stream.permit, context) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut this.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    use super::*;
    use crate::grant::TrafficGrant;

    /// Timeout after which the step counts as hung.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn grant() -> Arc<TrafficGrant> {
        TrafficGrant::fixed(Ipv4Addr::LOCALHOST.into())
    }

    #[tokio::test]
    async fn cutting_a_grant_closes_both_sides_of_a_tunnel() {
        let grant = grant();
        let (mut client, client_side) = duplex(64);
        let (mut guest, guest_side) = duplex(64);
        let tunnel = GuestTunnel::new(guest_side, grant.enter().ok().unwrap());
        let copying = tokio::spawn(copy(client_side, tunnel, UPGRADED_BUFFER_BYTES));
        client.write_all(b"who").await.unwrap();
        let mut read = [0; 3];
        guest.read_exact(&mut read).await.unwrap();
        guest.write_all(b"you").await.unwrap();
        client.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"you");
        grant.hold();
        timeout(PATIENCE, grant.drain(PATIENCE)).await.expect("nobody waits for what is silent");
        timeout(PATIENCE, copying).await.expect("the end of it").unwrap();
        assert_eq!(client.read(&mut read).await.unwrap(), 0);
        assert_eq!(guest.read(&mut read).await.unwrap(), 0);
        assert_eq!(grant.count_in_flight(), 0);
    }

    #[tokio::test]
    async fn only_a_close_frame_is_sent_to_a_guest_after_the_cut() {
        let grant = grant();
        let (_guest, guest_side) = duplex(64);
        let (_other_guest, other_side) = duplex(64);
        let mut tunnel = GuestTunnel::new(guest_side, grant.enter().ok().unwrap());
        let mut leaving = ActivityStream::new(other_side, grant.enter().ok().unwrap());
        tunnel.write_all(b"before").await.unwrap();
        grant.cut.cancel();
        let refused = tunnel.write_all(b"after").await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionAborted);
        assert!(tunnel.read_u8().await.is_err());
        leaving.write_all(b"goodbye").await.unwrap();
    }

    #[tokio::test]
    async fn a_stream_with_blocked_writes_is_not_idle() {
        let grant = grant();
        let (mut guest, guest_side) = duplex(4);
        let mut tunnel = GuestTunnel::new(guest_side, grant.enter().ok().unwrap());
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut byte = [0];
        let mut poll_read = |tunnel: &mut GuestTunnel<DuplexStream>, context: &mut Context<'_>| {
            Pin::new(tunnel).poll_read(context, &mut ReadBuf::new(&mut byte)).is_pending()
        };
        assert!(poll_read(&mut tunnel, &mut context));
        assert!(grant.are_all_resting(), "it waits for its guest");
        assert!(Pin::new(&mut tunnel).poll_write(&mut context, b"four").is_ready());
        assert!(grant.are_all_resting());
        assert!(Pin::new(&mut tunnel).poll_write(&mut context, b"more").is_pending());
        assert!(!grant.are_all_resting(), "it has something to say");
        guest.read_exact(&mut [0; 4]).await.unwrap();
        assert!(Pin::new(&mut tunnel).poll_write(&mut context, b"more").is_ready());
        assert!(poll_read(&mut tunnel, &mut context) && grant.are_all_resting());
    }
}
