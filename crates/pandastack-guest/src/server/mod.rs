//! The event loop: one thread that owns everything and never blocks.
//!
//! ```text
//!  channel --inputs--> requests --> processes        (rings, timeouts, exits)
//!     ^                    |
//!     |                    +------> workers          (files, spawns; completions come back)
//!     +---- pump <- ready streams <---+
//! ```
//!
//! Invariants:
//! - Streams live as long as the connection; processes do not care about connections.
//! - A stream sends only within its credit, and only while the channel has room, one frame per turn.
//! - Every request gets exactly one reply, unless the connection is lost first.

mod completion;
mod file_trees;
mod pump;
mod request;
mod session;

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use pandastack_guest_proto::limits::FRAME_BYTES_MAX;

use crate::channel::Channel;
use crate::environment::GuestEnvironment;
use crate::identity::IdentityState;
use crate::poller::{Part, Poller, Token};
use crate::process::ProcessTable;
use crate::watch::Watches;
use crate::worker::Workers;
use completion::Completion;
use session::Session;

/// The guest program at work.
pub(crate) struct Server {
    poller: Poller,
    channel: Channel,
    signals: SignalFd,
    workers: Workers<Completion>,
    processes: ProcessTable,
    watches: Watches,
    session: Session,
    identity: IdentityState,
    environment: GuestEnvironment,
    frozen: bool,
    scratch: Vec<u8>,
    /// When the events that are being handled arrived.
    woken: Instant,
    shutdown: Option<Shutdown>,
}

/// Parameters of a shutdown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shutdown {
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace_ms: u32,
}

impl Server {
    /// Sets the loop up. Every signal must be blocked already.
    pub(crate) fn new(poller: Poller, channel: Channel, environment: GuestEnvironment) -> io::Result<Self> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        mask.add(Signal::SIGTERM);
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        poller.watch_readable(signals.as_fd(), Token::Children)?;
        let workers = Workers::new()?;
        poller.watch_readable(workers.wake_fd(), Token::Workers)?;
        let watches = Watches::new()?;
        poller.watch_readable(watches.wake_fd(), Token::Watches)?;
        Ok(Self {
            poller,
            channel,
            signals,
            workers,
            processes: ProcessTable::default(),
            watches,
            session: Session::default(),
            identity: IdentityState::default(),
            environment,
            frozen: false,
            scratch: vec![0; FRAME_BYTES_MAX],
            woken: Instant::now(),
            shutdown: None,
        })
    }

    /// Serves until a shutdown request.
    pub(crate) fn run(&mut self) -> io::Result<Shutdown> {
        loop {
            let ready = self.poller.wait(self.processes.next_deadline())?;
            self.woken = Instant::now();
            for token in ready {
                self.handle(token);
            }
            let now = Instant::now();
            self.processes.fire_timeouts(now);
            for id in self.processes.release_holds(now) {
                self.pump_process(id);
            }
            self.send_ready();
            if let Some(shutdown) = self.shutdown {
                return Ok(shutdown);
            }
            // After the replies are sent: none of this is urgent.
            if self.session.take_prune_request() {
                self.processes.prune();
            }
        }
    }

    /// Sends until all streams are empty or the host accepts no more. A flush may make room for
    /// streams that were blocked, and no event would report that.
    fn send_ready(&mut self) {
        loop {
            self.pump();
            self.channel.flush();
            if !self.channel.has_room() || !self.session.has_ready() {
                return;
            }
        }
    }

    fn handle(&mut self, token: Token) {
        match token {
            Token::Channel => self.receive(),
            Token::Listener => {
                self.end_session();
                // Without a peer nothing happens; the next one may do better.
                let _ = self.channel.accept(&self.poller);
                self.receive();
            }
            Token::Workers => {
                for done in self.workers.take_done() {
                    self.complete(done);
                }
            }
            Token::Children => self.reap(),
            Token::Watches => self.wake_watchers(),
            Token::Process(id, Part::Stdin) => self.pump_stdin(id),
            Token::Process(id, Part::Stdout | Part::Stderr) => self.pump_process(id),
        }
    }

    /// Takes every dead child's status: ours end a process, orphans that were handed to PID 1 just go.
    fn reap(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if signal.ssi_signo == Signal::SIGTERM as u32 && !self.environment.is_machine {
                self.shutdown = Some(Shutdown { grace_ms: 0 });
            }
        }
        let mut ended = Vec::new();
        while let Some((pid, status)) = reap_one() {
            if let Some(id) = self.processes.child_ended(pid, status, &self.poller) {
                ended.push(id);
            }
            self.session.request_prune();
        }
        for id in ended {
            self.pump_stdin(id);
            self.pump_process(id);
        }
    }
}

/// One dead child and its raw wait status.
fn reap_one() -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: a system call that writes to a local.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL) };
    (pid > 0).then_some((pid, status))
}
