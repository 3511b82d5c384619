//! One output pipe of a process and the ring behind it.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::unistd::read;
use pandastack_guest_proto::limits::{OUTPUT_RING_BYTES, OUTPUT_UNSEEN_BYTES};

use super::ring::Ring;
use crate::poller::{Poller, Token};

/// Capacity of a pipe: the most that a process can have written before it ended without being read.
const PIPE_BYTES_MAX: usize = 64 * 1024;
/// Reads of one pipe before others get their turn.
const READS_PER_TURN_MAX: usize = 4;

/// A process's standard output or error.
#[derive(Debug)]
pub(crate) struct Output {
    pipe: Option<OwnedFd>,
    token: Token,
    ring: Ring,
    watched: bool,
    /// After the process ended: the maximum number of its bytes that can still be in the pipe.
    drain_left: Option<usize>,
    /// Whether everything that the process itself wrote is in the ring.
    settled: bool,
}

impl Output {
    /// An output that is read from `pipe`; without a pipe it stays empty.
    pub(crate) fn new(pipe: Option<OwnedFd>, token: Token, poller: &Poller) -> std::io::Result<Self> {
        if let Some(pipe) = &pipe {
            poller.watch_readable(pipe, token)?;
        }
        let (ring, watched) = (Ring::new(OUTPUT_RING_BYTES), pipe.is_some());
        Ok(Self { pipe, token, ring, watched, drain_left: None, settled: false })
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// True when all that the ended process wrote is in the ring.
    pub(crate) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Reads the remaining output of a process that ended, without waiting for its children.
    pub(crate) fn begin_drain(&mut self) {
        if self.drain_left.is_none() {
            self.drain_left = Some(PIPE_BYTES_MAX);
            self.settled = self.pipe.is_none();
        }
    }

    /// Moves bytes from the pipe into the ring while there is room. `sent` is the lowest offset
    /// sent to the attached readers; output shortly before it may still be in flight and is kept
    /// for a reconnect.
    pub(crate) fn pump(&mut self, sent: Option<u64>, scratch: &mut [u8], poller: &Poller) {
        let keep_from = sent.map(|offset| offset.saturating_sub(OUTPUT_UNSEEN_BYTES as u64));
        for _ in 0..READS_PER_TURN_MAX {
            let Some(pipe) = &self.pipe else { return };
            let room = self.ring.free_bytes(keep_from).min(scratch.len());
            if room == 0 {
                return self.pause(poller);
            }
            match read(pipe, &mut scratch[..room]) {
                Ok(0) => return self.close(poller),
                Ok(count) => {
                    self.ring.push(&scratch[..count]);
                    self.count_drained(count);
                    // Probably empty now; the poller reports if not. While draining, only an empty
                    // pipe is proof.
                    if count < room && (self.settled || self.drain_left.is_none()) {
                        break;
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    self.settled |= self.drain_left.is_some();
                    break;
                }
                Err(_) => return self.close(poller),
            }
        }
        self.resume(poller);
    }

    /// Counts drained bytes. Those beyond a pipe's capacity were written by children that were left
    /// behind.
    fn count_drained(&mut self, count: usize) {
        if let Some(left) = &mut self.drain_left {
            *left = left.saturating_sub(count);
            self.settled |= *left == 0;
        }
    }

    fn pause(&mut self, poller: &Poller) {
        if let Some(pipe) = self.pipe.as_ref().filter(|_| self.watched) {
            poller.forget(pipe);
            self.watched = false;
        }
    }

    fn resume(&mut self, poller: &Poller) {
        if let Some(pipe) = self.pipe.as_ref().filter(|_| !self.watched) {
            self.watched = poller.watch_readable(pipe, self.token).is_ok();
        }
    }

    /// Paused for lack of room.
    pub(crate) fn is_paused(&self) -> bool {
        self.pipe.is_some() && !self.watched
    }

    /// Stops reading.
    pub(crate) fn close(&mut self, poller: &Poller) {
        if let Some(pipe) = self.pipe.take() {
            poller.forget(&pipe);
        }
        self.watched = false;
        self.settled |= self.drain_left.is_some();
    }

    /// True while something could still write.
    pub(crate) fn is_open(&self) -> bool {
        self.pipe.is_some()
    }
}
