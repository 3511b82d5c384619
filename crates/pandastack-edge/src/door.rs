//! An open way to one sandbox: its address, its connections, and what is under way on them.
//!
//! Must hold: a [`Ticket`] exists only while the guest runs, because the agent stops a guest only after this side said
//! that no ticket is left ([`pandastack_types::door`]). Taking one costs two atomic additions, so a request to a sandbox
//! that is awake asks nobody. Before a stop, requests and answers that go on have the drain's time to end; streams on which
//! nothing happens make nobody wait.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use pandastack_agent_client::{AgentClient, AgentError, CallOptions};
use pandastack_types::agent_api::DoorQuery;
use pandastack_types::agent_api::endpoints::OpenDoor;
use pandastack_types::{SandboxId, door};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::gate::Opened;
use crate::limits::{HELD_WAIT, IDLE_AFTER, PARTING_WAIT, REQUESTS_PER_SANDBOX_MAX, STILL_AFTER};
use crate::pool::Pools;

/// How bytes reach the guest.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "one per sandbox, never moved on the way of a request")]
pub enum Way {
    /// Its address is reachable from here.
    Direct(IpAddr),
    /// Through its agent, which is on another machine.
    Agent {
        /// The agent.
        client: AgentClient,
        /// The sandbox.
        sandbox: SandboxId,
        /// The life of it that is meant.
        incarnation: u64,
    },
}

/// An open way to a sandbox.
pub struct Door {
    pub(crate) way: Way,
    pub(crate) pools: Pools,
    /// Tickets out.
    under_way: AtomicUsize,
    /// Tickets whose answer has not begun.
    unanswered: AtomicUsize,
    /// Tickets of streams that wait for their guest, which may never say more.
    resting: AtomicUsize,
    born: Instant,
    /// When bytes last moved on one of those, in milliseconds since `born`.
    moved_ms: AtomicU64,
    /// Something happened since the agent was last told.
    moved: AtomicBool,
    /// The agent was told that nothing happens.
    idle: AtomicBool,
    stirred: Notify,
    held: AtomicBool,
    /// A ticket ended or began to rest, while the door is held.
    drained: Notify,
    /// Tells streams that have nothing under way to end.
    closing: CancellationToken,
    /// Ends whatever is still under way.
    pub(crate) cut: CancellationToken,
}

impl Opened for Door {
    fn is_open(&self) -> bool {
        !self.held.load(Ordering::SeqCst)
    }
}

/// Why no ticket was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoTicket {
    /// The door closed; the next one may be opened.
    Closed,
    /// [`REQUESTS_PER_SANDBOX_MAX`] are under way.
    Full,
}

impl Door {
    /// A door that no agent watches over, for upstreams that never sleep.
    pub fn fixed(address: IpAddr) -> Arc<Self> {
        Arc::new(Self::new(Way::Direct(address)))
    }

    fn new(way: Way) -> Self {
        Self {
            way,
            pools: Pools::default(),
            under_way: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
            resting: AtomicUsize::new(0),
            born: Instant::now(),
            moved_ms: AtomicU64::new(0),
            moved: AtomicBool::new(true),
            idle: AtomicBool::new(false),
            stirred: Notify::new(),
            held: AtomicBool::new(false),
            drained: Notify::new(),
            closing: CancellationToken::new(),
            cut: CancellationToken::new(),
        }
    }

    /// Asks the agent for a door, which wakes a sleeper. The agent is listened to until either side closes.
    pub async fn open(
        client: AgentClient,
        sandbox: SandboxId,
        incarnation: u64,
        wake: bool,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Result<Arc<Self>, AgentError> {
        let call = OpenDoor::new(sandbox.clone(), DoorQuery { wake: Some(wake) });
        let options = CallOptions::on_sandbox(incarnation, HELD_WAIT);
        let (headers, stream) = client.upgrade(call, options).await?;
        let address = headers.get(door::ADDRESS_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        let way = match address {
            Some(address) if client.is_local() => Way::Direct(address),
            _ => Way::Agent { client, sandbox, incarnation },
        };
        let opened = Arc::new(Self::new(way));
        tasks.spawn(follow(Arc::clone(&opened), stream, shutdown.clone()));
        Ok(opened)
    }

    /// A ticket for one request, stream or tunnel.
    pub fn enter(self: &Arc<Self>) -> Result<Ticket, NoTicket> {
        // Counted before the look, so that a drain that begins in between waits for this one.
        let before = self.under_way.fetch_add(1, Ordering::SeqCst);
        self.unanswered.fetch_add(1, Ordering::SeqCst);
        let ticket = Ticket::new(Arc::clone(self), true);
        if self.held.load(Ordering::SeqCst) {
            return Err(NoTicket::Closed);
        }
        if before >= REQUESTS_PER_SANDBOX_MAX {
            return Err(NoTicket::Full);
        }
        self.stir();
        Ok(ticket)
    }

    /// Tickets out.
    pub(crate) fn count_under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Notes that bytes move.
    fn stir(&self) {
        if !self.moved.load(Ordering::Relaxed) {
            self.moved.store(true, Ordering::Relaxed);
        }
        if self.idle.load(Ordering::SeqCst) && self.idle.swap(false, Ordering::SeqCst) {
            self.stirred.notify_one();
        }
    }

    /// Begins nothing more.
    pub fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
        self.closing.cancel();
        if self.under_way.load(Ordering::SeqCst) == 0 {
            self.drained.notify_one();
        }
    }

    /// Waits until nothing goes on any more, for at most `wait`; then cuts what is still under way, and lets it take its leave of the
    /// guest.
    pub async fn drain(&self, wait: Duration) {
        if tokio::time::timeout(wait, self.settled()).await.is_err() {
            tracing::info!("requests did not end before their sandbox stopped; they are cut");
        }
        self.cut.cancel();
        // Long enough for a word to the guest. What holds its ticket longer waits for its client, or streams without a pause.
        let _ = tokio::time::timeout(PARTING_WAIT, self.emptied()).await;
        self.pools.clear();
    }

    async fn emptied(&self) {
        while self.under_way.load(Ordering::SeqCst) > 0 {
            self.drained.notified().await;
        }
    }

    /// Waits until no ticket is left, or only those of streams on which nothing happens.
    async fn settled(&self) {
        while !self.has_settled() {
            tokio::select! {
                () = self.drained.notified() => {}
                () = tokio::time::sleep_until(self.still_at()), if self.are_all_resting() => {}
            }
        }
    }

    fn has_settled(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) == 0
            || (self.are_all_resting() && self.still_at() <= Instant::now())
    }

    /// Whether every ticket is of a stream that waits for its guest. All are counted before those that rest, so that one which goes on
    /// in between makes a difference.
    pub(crate) fn are_all_resting(&self) -> bool {
        let under_way = self.under_way.load(Ordering::SeqCst);
        under_way <= self.resting.load(Ordering::SeqCst)
    }

    /// When nothing happens on streams that rest, unless something does until then.
    fn still_at(&self) -> Instant {
        self.born + Duration::from_millis(self.moved_ms.load(Ordering::SeqCst)) + STILL_AFTER
    }

    fn note_moved(&self) {
        let ms = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(ms, Ordering::SeqCst);
    }

    fn tell_drain(&self) {
        if self.held.load(Ordering::SeqCst) {
            self.drained.notify_one();
        }
    }

    /// Whether nothing happened since the last call.
    fn is_quiet(&self) -> bool {
        !self.moved.swap(false, Ordering::SeqCst) && self.unanswered.load(Ordering::SeqCst) == 0
    }
}

/// Leave to have one request, stream or tunnel under way.
pub struct Ticket {
    door: Arc<Door>,
    unanswered: bool,
    is_resting: bool,
    /// Of a stream: its guest has nothing to say.
    is_waiting: bool,
    /// Of a stream: its guest does not take what is said to it.
    is_stuck: bool,
}

impl Ticket {
    /// Counted by who makes it.
    fn new(door: Arc<Door>, unanswered: bool) -> Self {
        Self { door, unanswered, is_resting: false, is_waiting: false, is_stuck: false }
    }

    /// The door it is for.
    pub fn door(&self) -> &Arc<Door> {
        &self.door
    }

    /// The answer has begun: from now on only moving bytes keep the sandbox awake.
    pub fn answered(&mut self) {
        if std::mem::take(&mut self.unanswered) {
            self.door.unanswered.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// One more, for what goes on after the answer. Also given while the door is held: what began may go on until it is cut.
    pub(crate) fn another(&self) -> Ticket {
        self.door.under_way.fetch_add(1, Ordering::SeqCst);
        self.door.stir();
        Ticket::new(Arc::clone(&self.door), false)
    }

    /// Notes that bytes move.
    pub fn stir(&self) {
        self.door.stir();
    }

    /// Whether this is a stream that waits for its guest and has nothing else to do. Such a one is not waited for when its sandbox is
    /// about to stop and no byte moves.
    pub(crate) fn set_resting(&mut self, is_resting: bool) {
        if std::mem::replace(&mut self.is_resting, is_resting) == is_resting {
            return;
        }
        if is_resting {
            // Before it is counted: what moved until now must not be taken for stillness.
            self.door.note_moved();
            self.door.resting.fetch_add(1, Ordering::SeqCst);
            self.door.tell_drain();
        } else {
            self.door.resting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A stream was read from, or its guest had nothing to say.
    pub(crate) fn note_read(&mut self, is_pending: bool) {
        self.is_waiting = is_pending;
        self.set_resting(self.is_waiting && !self.is_stuck);
        if !is_pending {
            self.door.stir();
        }
    }

    /// A stream was written to, or its guest took nothing.
    pub(crate) fn note_write(&mut self, is_pending: bool) {
        self.is_stuck = is_pending;
        self.set_resting(self.is_waiting && !self.is_stuck);
        if !is_pending {
            self.door.note_moved();
            self.door.stir();
        }
    }

    /// For streams whose protocol tells when work is under way: while it is, the sandbox stays awake though no byte moves.
    pub fn set_busy(&mut self, busy: bool) {
        self.door.stir();
        if !busy {
            return self.answered();
        }
        if !std::mem::replace(&mut self.unanswered, true) {
            self.door.unanswered.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Cancelled when the sandbox is about to stop: a stream without work under way should end.
    pub fn closing(&self) -> CancellationToken {
        self.door.closing.clone()
    }

    /// Cancelled when whatever is still under way ends now.
    pub fn cut(&self) -> CancellationToken {
        self.door.cut.clone()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.answered();
        self.set_resting(false);
        self.door.under_way.fetch_sub(1, Ordering::SeqCst);
        self.door.tell_drain();
    }
}

/// Keeps the agent informed and does as it says.
async fn follow(opened: Arc<Door>, mut stream: TokioIo<Upgraded>, shutdown: CancellationToken) {
    let mut busy = true;
    loop {
        let said = tokio::select! {
            byte = stream.read_u8() => {
                opened.hold();
                if byte.is_ok_and(|byte| byte == door::HOLD) {
                    opened.drain(Duration::from_secs(door::DRAIN_SECONDS)).await;
                    // If the agent is gone by now, it needs no answer.
                    let _ = stream.write_all(&[door::DRAINED]).await;
                }
                return;
            }
            () = tokio::time::sleep(IDLE_AFTER), if busy => {
                if !opened.is_quiet() {
                    continue;
                }
                opened.idle.store(true, Ordering::SeqCst);
                busy = false;
                door::IDLE
            }
            () = opened.stirred.notified(), if !busy => {
                busy = true;
                door::BUSY
            }
            // Requests were waited for by the server; what is left are tunnels.
            () = shutdown.cancelled() => {
                opened.hold();
                return opened.cut.cancel();
            }
        };
        if stream.write_all(&[said]).await.is_err() {
            return opened.hold();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn open() -> Arc<Door> {
        Door::fixed(Ipv4Addr::LOCALHOST.into())
    }

    #[tokio::test]
    async fn a_drain_waits_for_tickets_and_gives_no_more() {
        let door = open();
        let ticket = door.enter().ok().unwrap();
        door.hold();
        assert_eq!(door.enter().err(), Some(NoTicket::Closed));
        let mut drain = Box::pin(door.drain(Duration::from_secs(60)));
        assert!(futures::poll!(&mut drain).is_pending());
        assert!(!door.cut.is_cancelled());
        drop(ticket);
        drain.await;
        assert!(door.cut.is_cancelled());
    }

    #[tokio::test]
    async fn what_goes_on_after_its_answer_is_waited_for_too() {
        let door = open();
        let ticket = door.enter().ok().unwrap();
        door.hold();
        let tunnel = ticket.another();
        drop(ticket);
        let mut drain = Box::pin(door.drain(Duration::from_secs(60)));
        assert!(futures::poll!(&mut drain).is_pending());
        drop(tunnel);
        drain.await;
        assert_eq!(door.count_under_way(), 0);
    }

    #[tokio::test]
    async fn what_does_not_end_is_cut() {
        let door = open();
        let _ticket = door.enter().ok().unwrap();
        door.hold();
        door.drain(Duration::from_millis(1)).await;
        assert!(door.cut.is_cancelled());
    }

    #[tokio::test]
    async fn what_is_cut_may_take_its_leave_before_the_drain_ends() {
        let door = open();
        let ticket = door.enter().ok().unwrap();
        door.hold();
        let mut drain = Box::pin(door.drain(Duration::from_millis(1)));
        tokio::select! {
            () = &mut drain => panic!("the guest would stop at once"),
            () = door.cut.cancelled() => {}
        }
        assert!(futures::poll!(&mut drain).is_pending());
        drop(ticket);
        let began = tokio::time::Instant::now();
        drain.await;
        assert!(began.elapsed() < PARTING_WAIT);
    }

    /// A ticket of a stream that waits for its guest.
    fn resting(door: &Arc<Door>) -> Ticket {
        let mut ticket = door.enter().ok().unwrap();
        ticket.answered();
        ticket.set_resting(true);
        ticket
    }

    #[tokio::test]
    async fn a_stream_on_which_nothing_happens_is_not_waited_for() {
        let door = open();
        let ticket = resting(&door);
        door.hold();
        let began = Instant::now();
        let mut drain = Box::pin(door.drain(Duration::from_secs(60)));
        tokio::select! {
            () = &mut drain => panic!("it has something left to say"),
            () = door.cut.cancelled() => {}
        }
        drop(ticket);
        drain.await;
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn a_stream_that_has_been_still_for_long_is_cut_at_once() {
        let door = open();
        let _ticket = resting(&door);
        tokio::time::sleep_until(door.still_at()).await;
        door.hold();
        assert!(futures::poll!(Box::pin(door.drain(Duration::from_secs(60)))).is_pending());
        assert!(door.cut.is_cancelled());
    }

    #[tokio::test]
    async fn what_goes_on_is_waited_for_beside_a_stream_on_which_nothing_happens() {
        let door = open();
        let _still = resting(&door);
        let (unanswered, mut answering) = (door.enter().ok().unwrap(), resting(&door));
        answering.set_resting(false);
        door.hold();
        let mut drain = Box::pin(door.drain(Duration::from_secs(60)));
        assert!(tokio::time::timeout(2 * STILL_AFTER, &mut drain).await.is_err());
        assert!(!door.cut.is_cancelled(), "a request without an answer is under way");
        drop(unanswered);
        assert!(tokio::time::timeout(2 * STILL_AFTER, &mut drain).await.is_err());
        assert!(!door.cut.is_cancelled(), "an answer goes on");
        drop(answering);
        tokio::time::timeout(Duration::from_secs(10), drain).await.expect("nothing goes on any more");
        assert!(door.cut.is_cancelled());
    }

    #[tokio::test]
    async fn bytes_put_off_the_moment_at_which_a_stream_is_still() {
        let door = open();
        let mut ticket = resting(&door);
        let before = door.still_at();
        tokio::time::sleep_until(before).await;
        assert!(door.has_settled());
        ticket.note_write(false);
        assert!(door.still_at() > before, "bytes went to the guest");
        let before = door.still_at();
        tokio::time::sleep_until(before).await;
        ticket.set_resting(false);
        ticket.set_resting(true);
        assert!(door.still_at() > before, "bytes came from it");
    }

    #[test]
    fn a_stream_with_work_under_way_is_not_quiet() {
        let door = open();
        let mut ticket = door.enter().ok().unwrap();
        ticket.set_busy(false);
        assert!(!door.is_quiet(), "it moved just now");
        assert!(door.is_quiet());
        ticket.set_busy(true);
        ticket.set_busy(true);
        assert!(!door.is_quiet());
        assert!(!door.is_quiet(), "nothing moves, and it works");
        ticket.set_busy(false);
        door.is_quiet();
        assert!(door.is_quiet());
        assert!(!ticket.closing().is_cancelled());
        door.hold();
        assert!(ticket.closing().is_cancelled());
    }

    #[test]
    fn a_request_without_an_answer_is_not_quiet_and_a_silent_stream_is() {
        let door = open();
        let mut ticket = door.enter().ok().unwrap();
        assert!(!door.is_quiet());
        assert!(!door.is_quiet());
        ticket.answered();
        assert!(door.is_quiet());
        ticket.stir();
        assert!(!door.is_quiet());
    }
}
