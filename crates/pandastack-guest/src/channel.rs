//! The channel to the host: decodes incoming bytes and encodes outgoing frames.
//!
//! A virtio port has no connections. Without a host peer reads return 0 and the port stays "readable"; the
//! poller's edge triggering makes that one event per change. The port is opened once and never closed: the
//! kernel allows one opener, and closing throws away what the host has sent.
//!
//! A machine without such a port listens on vsock instead, and in serve mode the program listens on a
//! unix socket. The newest peer of a listening socket is the host.
//!
//! The kernel learns of a new peer by a message of its own, on another queue than the peer's bytes. After a
//! restore the bytes can be there first: the port then delivers a whole connection request, reads 0 and takes
//! no answer, until the message comes. Such a 0 is not the end of the connection that just began; see
//! [`Channel::receive`].

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::sys::socket::{SockFlag, accept4};
use pandastack_guest_proto::sync::{GuestDecoder, Input};

use crate::poller::{Poller, Token};

/// Output that may wait for the host before streams stop adding to it.
pub(crate) const OUT_HIGH_WATER_BYTES: usize = 256 * 1024;
/// Bytes taken from the port at once.
const READ_BYTES: usize = 64 * 1024;

#[derive(Debug)]
enum Line {
    Port(File),
    Socket { listener: OwnedFd, peer: Option<File> },
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveOutcome {
    /// Bytes; ask for inputs, then read on.
    Bytes,
    /// No bytes are available.
    Nothing,
    /// No host is connected.
    NoPeer,
}

/// The channel.
#[derive(Debug)]
pub(crate) struct Channel {
    line: Line,
    decoder: GuestDecoder,
    out: Vec<u8>,
    out_sent: usize,
    scratch: Vec<u8>,
    /// The port has been seen connected since the present connection began.
    seen_connected: bool,
}

impl Channel {
    /// A virtio port that was opened non-blocking.
    pub(crate) fn port(port: File, poller: &Poller) -> io::Result<Self> {
        poller.watch_changes(&port, Token::Channel)?;
        Ok(Self::new(Line::Port(port)))
    }

    /// A listening socket instead of a port. It must not block.
    pub(crate) fn socket(listener: OwnedFd, poller: &Poller) -> io::Result<Self> {
        poller.watch_readable(&listener, Token::Listener)?;
        Ok(Self::new(Line::Socket { listener, peer: None }))
    }

    fn new(line: Line) -> Self {
        Self {
            line,
            decoder: GuestDecoder::default(),
            out: Vec::new(),
            out_sent: 0,
            scratch: vec![0; READ_BYTES],
            seen_connected: false,
        }
    }

    /// Records that a connection begins: its first bytes have arrived, even if the port still
    /// reports itself unconnected.
    pub(crate) fn begin(&mut self) {
        self.reset_output();
        self.seen_connected = false;
    }

    /// Takes a new peer of the listening socket. As with a port, the last one is simply gone.
    pub(crate) fn accept(&mut self, poller: &Poller) -> io::Result<()> {
        if let Line::Socket { listener, peer } = &mut self.line {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            // SAFETY: the call made this descriptor, and it has no other owner.
            let stream = unsafe { OwnedFd::from_raw_fd(accept4(listener.as_raw_fd(), flags)?) };
            let stream = File::from(stream);
            poller.watch_changes(&stream, Token::Channel)?;
            *peer = Some(stream);
        }
        Ok(())
    }

    /// Reads once. A port that reads 0 before it was ever seen connected is still about to be: the change will
    /// be another event.
    pub(crate) fn receive(&mut self) -> ReceiveOutcome {
        let read = match &mut self.line {
            Line::Port(port) => port.read(&mut self.scratch),
            Line::Socket { peer: Some(peer), .. } => peer.read(&mut self.scratch),
            Line::Socket { peer: None, .. } => return ReceiveOutcome::NoPeer,
        };
        match read {
            Ok(0) if matches!(self.line, Line::Port(_)) && !self.seen_connected => ReceiveOutcome::Nothing,
            Ok(0) => ReceiveOutcome::NoPeer,
            Ok(count) => {
                self.decoder.push(self.scratch.get(..count).unwrap_or_default());
                ReceiveOutcome::Bytes
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.seen_connected = true;
                ReceiveOutcome::Nothing
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => ReceiveOutcome::Nothing,
            Err(_) => ReceiveOutcome::NoPeer,
        }
    }

    /// The next input among the bytes received.
    pub(crate) fn next_input(&mut self) -> Option<Input<'_>> {
        self.decoder.next_input()
    }

    /// Drops pending data, which belongs to a lost connection.
    pub(crate) fn reset_output(&mut self) {
        self.out.clear();
        self.out_sent = 0;
    }

    /// Forgets the connection.
    pub(crate) fn disconnect(&mut self) {
        self.decoder.disconnect();
        self.begin();
        if let Line::Socket { peer, .. } = &mut self.line {
            *peer = None;
        }
    }

    /// Buffer to which outgoing frames are appended.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// True while streams may add to the output.
    pub(crate) fn has_room(&self) -> bool {
        self.out.len() - self.out_sent < OUT_HIGH_WATER_BYTES
    }

    /// Sends as much as the host accepts now. A failed write is not handled here: the next read
    /// detects that the host is gone.
    pub(crate) fn flush(&mut self) {
        while self.out_sent < self.out.len() {
            let rest = self.out.get(self.out_sent..).unwrap_or_default();
            let written = match &mut self.line {
                Line::Port(port) => port.write(rest),
                Line::Socket { peer: Some(peer), .. } => peer.write(rest),
                Line::Socket { peer: None, .. } => Ok(rest.len()),
            };
            match written {
                Ok(count) if count > 0 => self.out_sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => break,
            }
        }
        if self.out_sent == self.out.len() {
            self.reset_output();
        } else if self.out_sent >= OUT_HIGH_WATER_BYTES {
            self.out.drain(..self.out_sent);
            self.out_sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    /// A named pipe reads as a port does: 0 while the other end is closed, "would block" while it
    /// is open.
    #[test]
    fn early_bytes_do_not_end_a_connection() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let port = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let connect = || File::options().write(true).open(&path).unwrap();
        let mut channel = Channel::new(Line::Port(port));

        connect().write_all(b"the connection's first bytes").unwrap();
        assert_eq!(channel.receive(), ReceiveOutcome::Bytes);
        channel.begin();
        assert_eq!(channel.receive(), ReceiveOutcome::Nothing, "the port is about to be connected");

        let host = connect();
        assert_eq!(channel.receive(), ReceiveOutcome::Nothing);
        drop(host);
        assert_eq!(channel.receive(), ReceiveOutcome::NoPeer, "it was connected, and is not any more");
    }
}
