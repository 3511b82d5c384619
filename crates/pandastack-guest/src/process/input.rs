//! A process's standard input: data that waits to be written, in order.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::unistd::write;

use crate::poller::{Poller, Token};

/// A call of a connection. Numbers are used again by the next connection, so both are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) epoch: u64,
    pub(crate) stream: u32,
}

/// An entry in the queue for standard input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputEntry {
    /// Bytes of a call.
    Bytes { caller: Caller, bytes: Vec<u8> },
    /// The end of a call's bytes, after which the input may close.
    Finish { caller: Caller, close: bool },
}

/// The progress of a call's entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputProgress {
    /// A frame's bytes are in the pipe.
    Written { caller: Caller, frame_bytes: usize },
    /// All of a call's bytes are in the pipe.
    Finished { caller: Caller },
    /// The process does not read any more.
    Broken { caller: Caller },
}

/// The writing end of a process's input. Bounded by the credit that its calls were given.
#[derive(Debug)]
pub(crate) struct Input {
    pipe: Option<OwnedFd>,
    token: Token,
    queue: VecDeque<InputEntry>,
    /// Bytes of the first entry that are already written.
    position: usize,
    received: u64,
    watched: bool,
    /// A terminal ends its input by a character: the line stays up.
    is_terminal: bool,
}

/// The character that ends the input of a program on a terminal (Ctrl-D).
const END_OF_TRANSMISSION: u8 = 4;

impl Input {
    pub(crate) fn new(pipe: OwnedFd, token: Token, is_terminal: bool) -> Self {
        let queue = VecDeque::new();
        Self { pipe: Some(pipe), token, queue, position: 0, received: 0, watched: false, is_terminal }
    }

    /// Bytes taken from calls so far. They will be written if the process reads them.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    pub(crate) fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    pub(crate) fn push(&mut self, entry: InputEntry) {
        if let InputEntry::Bytes { bytes, .. } = &entry {
            self.received += bytes.len() as u64;
        }
        self.queue.push_back(entry);
    }

    /// Writes as much as the pipe takes.
    pub(crate) fn pump(&mut self, poller: &Poller) -> Vec<InputProgress> {
        let mut progress = Vec::new();
        while let Some(entry) = self.queue.front() {
            let Some(pipe) = &self.pipe else {
                progress.extend(self.queue.drain(..).filter_map(broken));
                break;
            };
            match entry {
                InputEntry::Finish { caller, close } => {
                    if *close && self.is_terminal && !end_terminal(pipe) {
                        self.watch(poller);
                        return progress;
                    }
                    progress.push(InputProgress::Finished { caller: *caller });
                    let close = *close && !self.is_terminal;
                    self.queue.pop_front();
                    if close {
                        self.close(poller);
                    }
                }
                InputEntry::Bytes { caller, bytes } => {
                    match write(pipe, bytes.get(self.position..).unwrap_or_default()) {
                        Ok(count) if self.position + count < bytes.len() => self.position += count,
                        Ok(_) => {
                            progress
                                .push(InputProgress::Written { caller: *caller, frame_bytes: bytes.len() });
                            self.position = 0;
                            self.queue.pop_front();
                        }
                        Err(Errno::EINTR) => {}
                        Err(Errno::EAGAIN) => {
                            self.watch(poller);
                            return progress;
                        }
                        Err(_) => self.close(poller),
                    }
                }
            }
        }
        self.unwatch(poller);
        progress
    }

    /// Closes the input: nothing more can be written.
    pub(crate) fn close(&mut self, poller: &Poller) {
        self.unwatch(poller);
        self.pipe = None;
        self.position = 0;
    }

    fn watch(&mut self, poller: &Poller) {
        if let Some(pipe) = self.pipe.as_ref().filter(|_| !self.watched) {
            self.watched = poller.watch_writable(pipe, self.token).is_ok();
        }
    }

    fn unwatch(&mut self, poller: &Poller) {
        if let Some(pipe) = self.pipe.as_ref().filter(|_| self.watched) {
            poller.forget(pipe);
        }
        self.watched = false;
    }
}

/// Sends end of input to a terminal's reader; false if the terminal's buffer is full.
fn end_terminal(terminal: &OwnedFd) -> bool {
    loop {
        match write(terminal, &[END_OF_TRANSMISSION]) {
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return false,
            // A closed terminal needs no end of input.
            Ok(_) | Err(_) => return true,
        }
    }
}

fn broken(entry: InputEntry) -> Option<InputProgress> {
    match entry {
        InputEntry::Finish { caller, .. } => Some(InputProgress::Broken { caller }),
        InputEntry::Bytes { .. } => None,
    }
}
