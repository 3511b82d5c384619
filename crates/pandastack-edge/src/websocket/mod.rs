//! WebSockets over upgraded connections: bytes both ways, and a close frame to either side when a grant is cut.
//!
//! ```text
//!   passing --cut--> the guest's frame in progress ends --> close frames --> the answers to them --> closed
//!                        | FRAME_WAIT                        GOODBYE_WAIT, CLOSE_WAIT |
//!                        +--------------------- none can be said ---------------------+
//! ```
//!
//! Must hold: the bytes that pass are not changed; a close frame of ours never stands within a frame of another, and never
//! follows a close frame. A side to which none can be said is closed without.

mod flow;
mod frames;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::limits::{CLOSE_WAIT, FRAME_WAIT, GOODBYE_WAIT};
use flow::{CloseNotice, Flow};

/// "Going away" (RFC 6455, 7.4.1), with a reason that browsers show to their page: 25 bytes.
const CLOSE_TO_CLIENT: &[u8] = b"\x88\x1b\x03\xe9going away; connect again";
/// The same status code without a reason, to be masked.
const GOING_AWAY: [u8; 2] = 1001_u16.to_be_bytes();

/// A relayed WebSocket. `guest` is kept until the last byte to it is sent, and so is the permit
/// that keeps its sandbox awake.
pub(crate) struct Relay<C, G> {
    client: C,
    guest: G,
    to_client: Flow,
    to_guest: Flow,
}

impl<C, G> Relay<C, G>
where
    C: AsyncRead + AsyncWrite + Unpin,
    G: AsyncRead + AsyncWrite + Unpin,
{
    /// Relays between two streams. `said` holds the bytes that the guest has already sent to the
    /// client after the heads.
    pub(crate) fn new(client: C, guest: G, said: &[u8]) -> Self {
        let mut to_client = Flow::new();
        to_client.note(said);
        Self { client, guest, to_client, to_guest: Flow::new() }
    }

    /// Passes bytes until both sides ended or one broke, or closes the connections when `cut` is cancelled.
    pub(crate) async fn run(mut self, cut: &CancellationToken) {
        tokio::select! {
            passed = poll_fn(|context| self.poll_pass(context)) => {
                if let Err(error) = passed {
                    tracing::debug!(%error, "a WebSocket broke");
                }
            }
            // Boxed: otherwise every WebSocket would hold space for its timers.
            () = cut.cancelled() => Box::pin(self.part()).await,
        }
    }

    fn poll_pass(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let to_client = self.to_client.poll_pass(context, &mut self.guest, &mut self.client)?;
        let to_guest = self.to_guest.poll_pass(context, &mut self.client, &mut self.guest)?;
        if to_client.is_ready() && to_guest.is_ready() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    async fn part(self) {
        let Self { mut client, mut guest, mut to_client, mut to_guest } = self;
        let ended = poll_fn(|context| to_client.poll_end_frame(context, &mut guest, &mut client));
        // The flows record whether the frame ended.
        let _ = timeout(FRAME_WAIT, ended).await;
        let (client_parting, guest_parting) = (to_client.parting(), to_guest.parting());
        let close_to_guest = close_to_guest();
        tokio::join!(
            leave(client, client_parting, CLOSE_TO_CLIENT, &mut to_guest, CLOSE_WAIT),
            leave(guest, guest_parting, &close_to_guest, &mut to_client, GOODBYE_WAIT),
        );
    }
}

/// Sends a close frame to one side, and closes its connection once it replies or times out. Keeps
/// reading until then, because closing a connection with unread bytes resets it, and a reset
/// overtakes sent bytes.
async fn leave(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    parting: CloseNotice,
    close: &[u8],
    from: &mut Flow,
    wait: Duration,
) {
    let said = async {
        match parting {
            CloseNotice::Nothing => return Ok(()),
            CloseNotice::Close => stream.write_all(close).await?,
            CloseNotice::Wait => {}
        }
        stream.flush().await?;
        from.drop_until_close(&mut stream).await?;
        stream.shutdown().await
    };
    if let Ok(Err(error)) = timeout(wait, said).await {
        tracing::debug!(%error, "a WebSocket broke while closing");
    }
}

/// A close frame as a client sends it: masked, with an unpredictable key (RFC 6455, 5.3).
fn close_to_guest() -> [u8; 8] {
    let [a, b, c, d, ..] = uuid::Uuid::new_v4().into_bytes();
    [0x88, 0x82, a, b, c, d, GOING_AWAY[0] ^ a, GOING_AWAY[1] ^ b]
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;

    use super::*;

    const HELLO: &[u8] = b"\x81\x05hello";
    /// A client's frame; its key is all zeros.
    const ASKED: &[u8] = b"\x81\x83\0\0\0\0who";
    /// Timeout after which the step counts as hung.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A WebSocket's two ends, and the relay between them.
    struct World {
        client: DuplexStream,
        guest: DuplexStream,
        cut: CancellationToken,
        relay: JoinHandle<()>,
    }

    impl World {
        fn start() -> Self {
            let (client, client_side) = duplex(64);
            let (guest, guest_side) = duplex(64);
            let cut = CancellationToken::new();
            let token = cut.clone();
            let relay =
                tokio::spawn(async move { Relay::new(client_side, guest_side, b"").run(&token).await });
            Self { client, guest, cut, relay }
        }

        /// Passes bytes from the guest to the client.
        async fn say(&mut self, bytes: &[u8]) {
            self.guest.write_all(bytes).await.unwrap();
            expect(&mut self.client, bytes).await;
        }

        /// Passes bytes from the client to the guest.
        async fn ask(&mut self, bytes: &[u8]) {
            self.client.write_all(bytes).await.unwrap();
            expect(&mut self.guest, bytes).await;
        }

        async fn end(self) {
            timeout(PATIENCE, self.relay).await.expect("the end").unwrap();
        }
    }

    async fn expect(stream: &mut DuplexStream, bytes: &[u8]) {
        let mut read = vec![0; bytes.len()];
        timeout(PATIENCE, stream.read_exact(&mut read)).await.expect("bytes in time").unwrap();
        assert_eq!(read, bytes);
    }

    async fn rest(stream: &mut DuplexStream) -> Vec<u8> {
        let mut read = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut read)).await.expect("an end in time").unwrap();
        read
    }

    /// The code of a close frame from a client.
    fn masked_code(frame: &[u8]) -> u16 {
        assert_eq!((frame.len(), &frame[..2]), (8, &[0x88, 0x82][..]), "{frame:?}");
        u16::from_be_bytes([frame[6] ^ frame[2], frame[7] ^ frame[3]])
    }

    #[test]
    fn close_frames_are_well_formed() {
        assert_eq!(usize::from(CLOSE_TO_CLIENT[1]), CLOSE_TO_CLIENT.len() - 2);
        assert_eq!(CLOSE_TO_CLIENT[2..4], GOING_AWAY);
        assert_eq!(masked_code(&close_to_guest()), 1001);
    }

    #[tokio::test]
    async fn both_sides_get_a_close_frame_when_a_grant_is_cut() {
        let mut world = World::start();
        world.say(HELLO).await;
        world.ask(ASKED).await;
        world.cut.cancel();
        expect(&mut world.client, CLOSE_TO_CLIENT).await;
        let mut told = [0; 8];
        world.guest.read_exact(&mut told).await.unwrap();
        assert_eq!(masked_code(&told), 1001);
        let began = Instant::now();
        world.client.write_all(&close_to_guest()).await.unwrap();
        world.guest.write_all(b"\x88\x02\x03\xe9").await.unwrap();
        assert!(rest(&mut world.client).await.is_empty(), "the guest's answer is not passed on");
        assert!(rest(&mut world.guest).await.is_empty());
        world.end().await;
        assert!(began.elapsed() < CLOSE_WAIT, "nobody waits for what came");
    }

    #[tokio::test]
    async fn a_frame_in_flight_completes_before_the_close_frame() {
        let mut world = World::start();
        world.say(&HELLO[..3]).await;
        world.ask(&ASKED[..7]).await;
        world.cut.cancel();
        tokio::task::yield_now().await;
        // The end of the frame arrives together with the start of another, which is not forwarded.
        world.guest.write_all(&[&HELLO[3..], HELLO].concat()).await.unwrap();
        expect(&mut world.client, &HELLO[3..]).await;
        assert_eq!(rest(&mut world.client).await, CLOSE_TO_CLIENT);
        assert!(rest(&mut world.guest).await.is_empty(), "nothing can be said within the client's frame");
        world.end().await;
    }

    #[tokio::test]
    async fn an_unfinished_frame_times_out_without_a_close_frame() {
        let mut world = World::start();
        world.say(&HELLO[..3]).await;
        let began = Instant::now();
        world.cut.cancel();
        assert!(rest(&mut world.client).await.is_empty());
        assert!(began.elapsed() >= FRAME_WAIT && began.elapsed() < CLOSE_WAIT);
        world.end().await;
    }

    #[tokio::test]
    async fn at_most_one_close_frame_is_sent() {
        let mut world = World::start();
        world.say(b"\x88\x02\x03\xe8").await;
        world.ask(&close_to_guest()).await;
        world.cut.cancel();
        assert!(rest(&mut world.client).await.is_empty());
        assert!(rest(&mut world.guest).await.is_empty());
        world.end().await;
    }

    #[tokio::test]
    async fn an_unanswered_close_frame_times_out() {
        let mut world = World::start();
        let began = Instant::now();
        world.cut.cancel();
        expect(&mut world.client, CLOSE_TO_CLIENT).await;
        // Bytes already in flight do not count as a reply.
        world.client.write_all(ASKED).await.unwrap();
        assert!(rest(&mut world.client).await.is_empty());
        assert!(began.elapsed() >= CLOSE_WAIT);
        world.end().await;
    }

    #[tokio::test]
    async fn frames_sent_with_the_response_head_are_counted() {
        let (mut client, client_side) = duplex(64);
        let (_guest, guest_side) = duplex(64);
        let relay = Relay::new(client_side, guest_side, &HELLO[..4]);
        let cut = CancellationToken::new();
        cut.cancel();
        relay.run(&cut).await;
        assert!(rest(&mut client).await.is_empty(), "it is within a frame");
    }

    #[tokio::test]
    async fn bytes_are_relayed_until_both_sides_end() {
        let mut world = World::start();
        let long = [&[0x82, 126, 0x4e, 0x20][..], &[7; 20_000]].concat();
        let mut sent = tokio::io::split(world.guest);
        let bytes = long.clone();
        let sending = tokio::spawn(async move { sent.1.write_all(&bytes).await.map(|()| sent) });
        expect(&mut world.client, &long).await;
        let (mut from, mut to) = sending.await.unwrap().unwrap();
        to.shutdown().await.unwrap();
        assert!(rest(&mut world.client).await.is_empty());
        world.client.write_all(ASKED).await.unwrap();
        world.client.shutdown().await.unwrap();
        let mut read = Vec::new();
        from.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, ASKED, "the other direction went on");
        timeout(PATIENCE, world.relay).await.expect("the end").unwrap();
    }
}
