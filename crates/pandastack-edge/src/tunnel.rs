//! Plain bytes both ways: upgraded connections and forwarded ports.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::door::Ticket;

/// Bytes held in each direction of an upgraded connection.
pub(crate) const UPGRADED_BUFFER_BYTES: usize = 8 * 1024;

/// A stream to a guest that keeps its sandbox awake while bytes move, and only then. Who uses it looks at the cut of its door.
pub(crate) struct Lively<S> {
    stream: S,
    ticket: Ticket,
}

impl<S> Lively<S> {
    /// Holds the ticket to the stream's end.
    pub(crate) fn new(stream: S, mut ticket: Ticket) -> Self {
        ticket.answered();
        Self { stream, ticket }
    }
}

/// The same for who knows nothing of doors: it breaks when its door is cut, because the guest stops then, and its address may
/// become another's.
pub struct Stirring<S> {
    stream: Lively<S>,
    /// What breaks it. Two, because its halves may be used by two tasks; made when they are first used.
    cut_reading: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    cut_writing: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl<S> Stirring<S> {
    /// Holds the ticket to the stream's end.
    pub fn new(stream: S, ticket: Ticket) -> Self {
        Self { stream: Lively::new(stream, ticket), cut_reading: None, cut_writing: None }
    }
}

/// An error and not an end: after an end the other direction would go on.
fn poll_cut(
    cut: &mut Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    ticket: &Ticket,
    context: &mut Context<'_>,
) -> Poll<io::Error> {
    let cut = cut.get_or_insert_with(|| Box::pin(ticket.cut().cancelled_owned()));
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

impl<S: AsyncRead + Unpin> AsyncRead for Lively<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        // Nothing more comes of one that ended either.
        let is_over = matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() == before;
        self.ticket.note_read(read.is_pending() || is_over);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Lively<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.ticket.note_write(written.is_pending());
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stirring<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(error) = poll_cut(&mut this.cut_reading, &this.stream.ticket, context) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut this.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stirring<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Poll::Ready(error) = poll_cut(&mut this.cut_writing, &this.stream.ticket, context) {
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
    use crate::door::Door;

    /// What takes this long hangs.
    const PATIENCE: Duration = Duration::from_secs(20);

    fn door() -> Arc<Door> {
        Door::fixed(Ipv4Addr::LOCALHOST.into())
    }

    #[tokio::test]
    async fn a_tunnel_ends_for_both_sides_when_its_door_is_cut() {
        let door = door();
        let (mut client, client_side) = duplex(64);
        let (mut guest, guest_side) = duplex(64);
        let tunnel = Stirring::new(guest_side, door.enter().ok().unwrap());
        let copying = tokio::spawn(copy(client_side, tunnel, UPGRADED_BUFFER_BYTES));
        client.write_all(b"who").await.unwrap();
        let mut read = [0; 3];
        guest.read_exact(&mut read).await.unwrap();
        guest.write_all(b"you").await.unwrap();
        client.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"you");
        door.hold();
        timeout(PATIENCE, door.drain(PATIENCE)).await.expect("nobody waits for what is silent");
        timeout(PATIENCE, copying).await.expect("the end of it").unwrap();
        assert_eq!(client.read(&mut read).await.unwrap(), 0);
        assert_eq!(guest.read(&mut read).await.unwrap(), 0);
        assert_eq!(door.count_under_way(), 0);
    }

    #[tokio::test]
    async fn nothing_is_said_to_a_guest_after_the_cut_but_by_who_takes_leave() {
        let door = door();
        let (_guest, guest_side) = duplex(64);
        let (_other_guest, other_side) = duplex(64);
        let mut tunnel = Stirring::new(guest_side, door.enter().ok().unwrap());
        let mut leaving = Lively::new(other_side, door.enter().ok().unwrap());
        tunnel.write_all(b"before").await.unwrap();
        door.cut.cancel();
        let refused = tunnel.write_all(b"after").await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionAborted);
        assert!(tunnel.read_u8().await.is_err());
        leaving.write_all(b"goodbye").await.unwrap();
    }

    #[tokio::test]
    async fn a_guest_that_takes_nothing_is_no_reason_to_call_a_stream_idle() {
        let door = door();
        let (mut guest, guest_side) = duplex(4);
        let mut tunnel = Stirring::new(guest_side, door.enter().ok().unwrap());
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut byte = [0];
        let mut poll_read = |tunnel: &mut Stirring<DuplexStream>, context: &mut Context<'_>| {
            Pin::new(tunnel).poll_read(context, &mut ReadBuf::new(&mut byte)).is_pending()
        };
        assert!(poll_read(&mut tunnel, &mut context));
        assert!(door.are_all_resting(), "it waits for its guest");
        assert!(Pin::new(&mut tunnel).poll_write(&mut context, b"four").is_ready());
        assert!(door.are_all_resting());
        assert!(Pin::new(&mut tunnel).poll_write(&mut context, b"more").is_pending());
        assert!(!door.are_all_resting(), "it has something to say");
        guest.read_exact(&mut [0; 4]).await.unwrap();
        assert!(Pin::new(&mut tunnel).poll_write(&mut context, b"more").is_ready());
        assert!(poll_read(&mut tunnel, &mut context) && door.are_all_resting());
    }
}
