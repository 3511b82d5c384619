//! Moving bytes: from pipes to rings, from rings and sources to the channel, from the channel to sinks and
//! inputs.

use pandastack_guest_proto::frame::{FLAG_STDERR, FrameKind};
use pandastack_guest_proto::limits::{DATA_BYTES_MAX, FRAME_BYTES_MAX, frame_charge};
use pandastack_guest_proto::message::{ErrorBody, ErrorCode, Event, OutputStream, ProcessId, StdinWritten};

use super::Server;
use super::completion::Completion;
use super::session::{Reader, Session, StreamKind};
use crate::process::{Caller, InputProgress};

impl Server {
    /// Serves every ready stream in turn while the channel has room. Streams with more to send stay in the
    /// queue.
    pub(super) fn pump(&mut self) {
        while self.channel.has_room() {
            let Some(id) = self.session.next_ready() else { return };
            match self.session.streams.get(&id).map(|stream| &stream.kind) {
                Some(StreamKind::Reader(reader)) => {
                    let reader = *reader;
                    self.pump_reader(id, reader);
                }
                Some(StreamKind::Source(Some(_))) => self.step_source(id),
                Some(StreamKind::Sink(_)) => self.step_sink(id),
                Some(StreamKind::Watch(reader)) => {
                    let reader = *reader;
                    self.pump_watch(id, reader);
                }
                _ => {}
            }
        }
    }

    /// Fills a process's rings and notifies its followers.
    pub(super) fn pump_process(&mut self, id: ProcessId) {
        let Ok(process) = self.processes.get_mut(id) else { return };
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let held = process.held.map(|held| match stream {
                OutputStream::Stdout => held.stdout_offset,
                OutputStream::Stderr => held.stderr_offset,
            });
            let sent = least_sent(&self.session, &process.readers, stream).into_iter().chain(held).min();
            process.output_mut(stream).pump(sent, &mut self.scratch, &self.poller);
        }
        for reader in process.readers.clone() {
            self.session.mark_ready(reader);
        }
    }

    /// Sends to one follower: at most one frame per output.
    fn pump_reader(&mut self, id: u32, mut reader: Reader) {
        let mut sent_any = false;
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            match self.send_output(id, &mut reader, stream) {
                SendOutcome::Nothing => {}
                SendOutcome::Something => sent_any = true,
                // The host's next grant queues the stream again.
                SendOutcome::NoCredit => return self.store_reader(id, reader),
            }
        }
        self.store_reader(id, reader);
        let Ok(process) = self.processes.get_mut(reader.process) else { return };
        if sent_any {
            if process.stdout.is_paused() || process.stderr.is_paused() {
                self.pump_process(reader.process);
            }
            self.session.mark_ready(id);
        } else if let Some(exit) = process.settled_exit() {
            self.reply(id, Ok(exit));
        }
    }

    fn store_reader(&mut self, id: u32, reader: Reader) {
        if let Some(stream) = self.session.streams.get_mut(&id) {
            stream.kind = StreamKind::Reader(reader);
        }
    }

    fn send_output(&mut self, id: u32, reader: &mut Reader, stream: OutputStream) -> SendOutcome {
        let Ok(process) = self.processes.get_mut(reader.process) else { return SendOutcome::Nothing };
        if reader.exit_only {
            return SendOutcome::Nothing;
        }
        let ring = process.output(stream).ring();
        let (offset, flags) = match stream {
            OutputStream::Stdout => (&mut reader.stdout_offset, 0),
            OutputStream::Stderr => (&mut reader.stderr_offset, FLAG_STDERR),
        };
        if *offset >= ring.end() {
            return SendOutcome::Nothing;
        }
        if self.session.streams.get(&id).is_none_or(|stream| (stream.credit as usize) < DATA_BYTES_MAX) {
            return SendOutcome::NoCredit;
        }
        if *offset < ring.start() {
            let gap = Event::Gap { stream, from: *offset, to: ring.start() };
            *offset = ring.start();
            self.send_event(id, &gap);
            return SendOutcome::Something;
        }
        let bytes = ring.read(*offset, DATA_BYTES_MAX);
        *offset += bytes.len() as u64;
        self.send_charged(id, FrameKind::Data, flags, &bytes);
        SendOutcome::Something
    }

    /// Runs a source's next step on a worker.
    fn step_source(&mut self, id: u32) {
        let epoch = self.session.epoch;
        let Some(stream) = self.session.streams.get_mut(&id) else { return };
        // A message's length is not known before it is made; without enough credit the next grant tries again.
        if (stream.credit as usize) < FRAME_BYTES_MAX {
            return;
        }
        let StreamKind::Source(slot) = &mut stream.kind else { return };
        let Some(mut source) = slot.take() else { return };
        self.workers.submit(move || {
            let result = source.next(DATA_BYTES_MAX);
            Completion::Stepped { epoch, stream: id, source, result }
        });
    }

    /// Writes received data of a sink on a worker.
    fn step_sink(&mut self, id: u32) {
        let epoch = self.session.epoch;
        let Some(stream) = self.session.streams.get_mut(&id) else { return };
        let StreamKind::Sink(state) = &mut stream.kind else { return };
        if state.queue.is_empty() && !state.ended {
            return;
        }
        let Some(mut sink) = state.sink.take() else { return };
        let queue = std::mem::take(&mut state.queue);
        let ended = state.ended;
        self.workers.submit(move || {
            let charge = queue.iter().map(|bytes| frame_charge(bytes.len())).sum();
            let written = queue.iter().try_for_each(|bytes| sink.write(bytes));
            let result = written.and_then(|()| if ended { sink.finish().map(Some) } else { Ok(None) });
            Completion::Sunk { epoch, stream: id, sink, charge, result }
        });
    }

    /// Writes what waits for a process's input.
    pub(super) fn pump_stdin(&mut self, id: ProcessId) {
        let Ok(process) = self.processes.get_mut(id) else { return };
        let Some(stdin) = &mut process.stdin else { return };
        let progress = stdin.pump(&self.poller);
        let offset = stdin.received();
        for step in progress {
            match step {
                InputProgress::Written { caller, frame_bytes } => {
                    self.grant(caller, frame_charge(frame_bytes))
                }
                InputProgress::Finished { caller } if self.is_open(caller) => {
                    self.reply(caller.stream, Ok(StdinWritten { offset }));
                }
                InputProgress::Broken { caller } if self.is_open(caller) => {
                    let message = format!("process {id} has ended or closed its input");
                    self.reply_error(caller.stream, &ErrorBody::new(ErrorCode::Invalid, message));
                }
                InputProgress::Finished { .. } | InputProgress::Broken { .. } => {}
            }
        }
    }

    fn is_open(&mut self, Caller { epoch, stream }: Caller) -> bool {
        self.session.stream_mut(epoch, stream).is_some()
    }
}

enum SendOutcome {
    Nothing,
    Something,
    NoCredit,
}

/// Offset up to which the slowest follower got an output; `None` without followers.
fn least_sent(session: &Session, readers: &[u32], stream: OutputStream) -> Option<u64> {
    let offsets = readers.iter().filter_map(|id| match session.streams.get(id).map(|stream| &stream.kind) {
        Some(StreamKind::Reader(reader)) if !reader.exit_only => Some(match stream {
            OutputStream::Stdout => reader.stdout_offset,
            OutputStream::Stderr => reader.stderr_offset,
        }),
        _ => None,
    });
    offsets.min()
}
