//! The only place that waits: epoll, with a typed name for each source.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use pandastack_guest_proto::message::ProcessId;

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 64;

/// Identifies a ready descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// The channel to the host.
    Channel,
    /// A new peer of a listening socket, in serve mode.
    Listener,
    /// A worker finished something.
    Workers,
    /// A child changed state.
    Children,
    /// A watched file changed.
    Watches,
    /// A process, with the part that became ready.
    Process(ProcessId, Part),
}

/// The parts of a process that are waited on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Stdin,
    Stdout,
    Stderr,
}

impl Token {
    fn encode(self) -> u64 {
        match self {
            Self::Channel => 0,
            Self::Listener => 1,
            Self::Workers => 2,
            Self::Children => 3,
            Self::Watches => 4,
            Self::Process(id, part) => (id.0 << 3) | (5 + part as u64),
        }
    }

    fn decode(data: u64) -> Self {
        let id = ProcessId(data >> 3);
        match data & 7 {
            0 => Self::Channel,
            1 => Self::Listener,
            2 => Self::Workers,
            3 => Self::Children,
            4 => Self::Watches,
            5 => Self::Process(id, Part::Stdin),
            6 => Self::Process(id, Part::Stdout),
            _ => Self::Process(id, Part::Stderr),
        }
    }
}

/// An epoll instance.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: Epoll,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)? })
    }

    /// Reports each change once, for the channel: a virtio port without a peer is always "readable", so
    /// level triggering would spin.
    pub(crate) fn watch_changes(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        Ok(self.epoll.add(fd, EpollEvent::new(flags, token.encode()))?)
    }

    /// Reports while there is something to read.
    pub(crate) fn watch_readable(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token.encode()))?)
    }

    /// Reports while there is room to write.
    pub(crate) fn watch_writable(&self, fd: impl AsFd, token: Token) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLOUT, token.encode()))?)
    }

    /// Stops telling.
    pub(crate) fn forget(&self, fd: &OwnedFd) {
        // An error means that the descriptor is not watched, which is the goal.
        let _ = self.epoll.delete(fd);
    }

    /// Waits until something is ready or the deadline has come.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> io::Result<Vec<Token>> {
        let timeout = match deadline {
            None => EpollTimeout::NONE,
            Some(at) => {
                // Rounded up: waking a moment early would spin until the deadline.
                let left = at.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
                EpollTimeout::try_from(left).unwrap_or(EpollTimeout::MAX)
            }
        };
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        match self.epoll.wait(&mut events, timeout) {
            Ok(count) => Ok(events.iter().take(count).map(|event| Token::decode(event.data())).collect()),
            Err(Errno::EINTR) => Ok(Vec::new()),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poller_tokens_round_trip() {
        let id = ProcessId(12345);
        for token in [
            Token::Channel,
            Token::Listener,
            Token::Workers,
            Token::Children,
            Token::Watches,
            Token::Process(id, Part::Stdin),
            Token::Process(id, Part::Stdout),
            Token::Process(id, Part::Stderr),
        ] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
