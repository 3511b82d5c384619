//! The handler's output: always drained, so that it never blocks, and assigned to its call.
//!
//! One lock lets any thread read: the pump does when there is output, and the end of a call does
//! before it, so that output printed before an answer is passed on before its end.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{ChildStderr, ChildStdout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pandastack_function_proto::{PART_BYTES_MAX, Stream};

use super::calls::Calls;

/// Bytes read in one step before a waiting end of a call is checked again.
const STEP_BYTES_MAX: usize = 16 * PART_BYTES_MAX;

/// Both outputs of the handler.
#[derive(Debug)]
pub(super) struct Output {
    calls: Arc<Calls>,
    pipes: Mutex<Pipes>,
}

#[derive(Debug)]
struct Pipes {
    open: Vec<(Stream, File)>,
    /// Read buffer. Reused between calls: zeroing a new one for each costs an emulated machine more
    /// than most reads.
    buffer: Vec<u8>,
}

impl Output {
    pub(super) fn new(calls: Arc<Calls>) -> io::Result<Self> {
        Ok(Self { calls, pipes: Mutex::new(Pipes { open: Vec::new(), buffer: vec![0; PART_BYTES_MAX] }) })
    }

    fn pipes(&self) -> MutexGuard<'_, Pipes> {
        self.pipes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the pipes of a process.
    pub(super) fn follow(&self, out: Option<ChildStdout>, err: Option<ChildStderr>) -> io::Result<()> {
        let out = out.map(|pipe| (Stream::Stdout, OwnedFd::from(pipe)));
        let err = err.map(|pipe| (Stream::Stderr, OwnedFd::from(pipe)));
        for (stream, pipe) in out.into_iter().chain(err) {
            let flags = OFlag::from_bits_truncate(fcntl(&pipe, FcntlArg::F_GETFL)?);
            fcntl(&pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
            self.pipes().open.push((stream, File::from(pipe)));
        }
        Ok(())
    }

    /// Reads until both outputs are closed.
    pub(super) fn pump(&self) {
        loop {
            // Copies of the descriptors: waiting must not hold the lock.
            let waiting: Vec<OwnedFd> = self
                .pipes()
                .open
                .iter()
                .filter_map(|(_, pipe)| pipe.as_fd().try_clone_to_owned().ok())
                .collect();
            if waiting.is_empty() {
                return;
            }
            let mut polled: Vec<_> =
                waiting.iter().map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)).collect();
            if let Err(error) = poll(&mut polled, PollTimeout::NONE)
                && error != nix::errno::Errno::EINTR
            {
                eprintln!("pandastack-guest function: output: {error}");
                return;
            }
            self.drain();
        }
    }

    /// Passes on the available output.
    pub(super) fn drain(&self) {
        let mut pipes = self.pipes();
        let Pipes { open, buffer } = &mut *pipes;
        open.retain_mut(|(stream, pipe)| self.read(*stream, pipe, buffer));
    }

    /// `false` once it is closed.
    fn read(&self, stream: Stream, pipe: &mut File, buffer: &mut [u8]) -> bool {
        let mut read = 0;
        while read < STEP_BYTES_MAX {
            match pipe.read(buffer) {
                Ok(0) => return false,
                Ok(count) => {
                    self.calls.printed(stream, buffer.get(..count).unwrap_or_default());
                    read += count;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) => {
                    eprintln!("pandastack-guest function: descriptor {}: {error}", pipe.as_raw_fd());
                    return false;
                }
            }
        }
        true
    }
}
