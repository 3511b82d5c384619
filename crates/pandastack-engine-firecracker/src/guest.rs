//! The byte stream to the guest program: a vsock connection relayed through a socket pair.
//!
//! Callers connect before the machine runs, and before a booting guest listens. They get one end of
//! a socket pair at once; a task connects the other end to the guest as soon as the guest accepts.
//!
//! A snapshot resets the guest's connections without telling the host. In some versions a plain
//! resume does too ([`crate::version`]). The machine then drops the established stream, so that its
//! owner sees the end and reconnects.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pandastack_engine::{GUEST_VSOCK_PORT, MachineExit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::limits::{DIAL_MAX, DIAL_PAUSE};
use crate::socket;

/// Longest first line of a connection: `OK`, a number of 32 bits, a line feed.
const GREETING_BYTES_MAX: usize = 32;

/// The stream most recently handed out. Dropping it ends the stream.
#[derive(Debug)]
pub(crate) struct GuestStream {
    task: AbortHandle,
    connected: Arc<AtomicBool>,
}

impl Drop for GuestStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl GuestStream {
    /// Opens a stream: returns the caller's end, and the guard that keeps it alive. `socket` is
    /// Firecracker's vsock socket; it is dialled once the machine runs.
    pub(crate) fn open(
        socket: PathBuf,
        running: watch::Receiver<bool>,
        exited: watch::Receiver<Option<MachineExit>>,
        tasks: &TaskTracker,
    ) -> io::Result<(UnixStream, Self)> {
        let (ours, callers) = UnixStream::pair()?;
        let connected = Arc::new(AtomicBool::new(false));
        let relay = relay(socket, ours, running, connected.clone());
        let task = tasks.spawn(until_exit(relay, exited)).abort_handle();
        Ok((callers, Self { task, connected }))
    }

    /// Returns whether the guest has accepted the connection. Only such a stream is lost in a
    /// reset.
    pub(crate) fn is_established(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }
}

async fn until_exit(relay: impl Future<Output = ()>, mut exited: watch::Receiver<Option<MachineExit>>) {
    tokio::select! {
        () = relay => {}
        _ = exited.wait_for(Option::is_some) => {}
    }
}

async fn relay(
    socket: PathBuf,
    mut ours: UnixStream,
    mut running: watch::Receiver<bool>,
    connected: Arc<AtomicBool>,
) {
    let mut guest = loop {
        if running.wait_for(|running| *running).await.is_err() || is_closed(&ours) {
            return;
        }
        match timeout(DIAL_MAX, dial(&socket)).await {
            Ok(Ok(guest)) => break guest,
            // The guest refuses until its program listens; no event announces that.
            Ok(Err(_)) => sleep(DIAL_PAUSE).await,
            Err(_) => {}
        }
    };
    connected.store(true, Ordering::Release);
    // An error on either side ends both streams; no caller is left to report it to.
    let _ = tokio::io::copy_bidirectional(&mut ours, &mut guest).await;
}

/// Returns whether the peer has closed its end, with or without bytes left to read.
fn is_closed(stream: &UnixStream) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Connects to the guest program's port. Fails while nothing listens there.
async fn dial(path: &Path) -> io::Result<UnixStream> {
    let mut stream = socket::connect(path).await?;
    stream.write_all(format!("CONNECT {GUEST_VSOCK_PORT}\n").as_bytes()).await?;
    let mut greeting = Vec::with_capacity(GREETING_BYTES_MAX);
    while !greeting.ends_with(b"\n") {
        if greeting.len() == GREETING_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the greeting is too long"));
        }
        // Byte by byte: everything after the line belongs to the guest.
        greeting.push(stream.read_u8().await?);
    }
    match greeting.strip_prefix(b"OK ") {
        Some(_) => Ok(stream),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "the guest was not reached")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::net::UnixListener;

    async fn greet(listener: &UnixListener, greeting: &[u8]) -> UnixStream {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut line = [0; 13];
        stream.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"CONNECT 1024\n");
        stream.write_all(greeting).await.unwrap();
        stream
    }

    #[tokio::test]
    async fn a_stream_waits_for_the_machine_and_for_its_guest() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("v.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let (running, is_running) = watch::channel(false);
        let (_exit, exited) = watch::channel(None);
        let tasks = TaskTracker::new();
        let (mut stream, held) = GuestStream::open(socket, is_running, exited, &tasks).unwrap();
        stream.write_all(b"early").await.unwrap();
        let unasked = timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(unasked.is_err(), "a machine that does not run was connected to");
        running.send_replace(true);
        for refusal in [&b""[..], b"nonsense that is longer than a greeting can be\n"] {
            drop(greet(&listener, refusal).await);
            assert!(!held.is_established());
        }
        let mut guest = greet(&listener, b"OK 1073741824\nlate").await;
        let mut bytes = [0; 5];
        guest.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"early");
        stream.read_exact(&mut bytes[..4]).await.unwrap();
        assert_eq!(&bytes[..4], b"late");
        assert!(held.is_established() && !is_closed(&stream));
        drop(held);
        assert_eq!(stream.read(&mut bytes).await.unwrap(), 0, "the stream must end with its holder");
        assert!(is_closed(&stream));
    }
}
