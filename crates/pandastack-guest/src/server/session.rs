//! The current connection: its open calls, and their order of sending.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use pandastack_guest_proto::GENERATION;
use pandastack_guest_proto::frame::{Frame, FrameKind, encode, encode_credit};
use pandastack_guest_proto::limits::{
    FRAME_BYTES_MAX, OUTPUT_HOLD_SECONDS, STREAM_WINDOW_BYTES, STREAMS_MAX, frame_charge,
};
use pandastack_guest_proto::message::{ErrorBody, ErrorCode, Event, Hello, ProcessId, Reply};
use pandastack_guest_proto::sync::{Input, Nonce, ack};
use serde::Serialize;

use super::Server;
use super::file_trees::WatchReader;
use crate::channel::ReceiveOutcome;
use crate::files::{Sink, Source};
use crate::process::{Caller, InputEntry, OutputHold};

/// Characters of an error message that are sent.
const MESSAGE_CHARS_MAX: usize = 2000;

/// A call.
pub(super) struct Stream {
    /// Bytes that may still be sent to the host.
    pub(super) credit: u32,
    /// Bytes that the host may still send.
    receive_credit: u32,
    /// Waits in the ready queue.
    queued: bool,
    /// The host does not want it any more; a job in progress ends first.
    pub(super) cancelled: bool,
    pub(super) kind: StreamKind,
}

impl Stream {
    fn reader(&self) -> Option<Reader> {
        match &self.kind {
            StreamKind::Reader(reader) => Some(*reader),
            _ => None,
        }
    }
}

/// The state of a call.
pub(super) enum StreamKind {
    /// A worker is on it and replies.
    Waiting,
    /// A process's output goes to the host.
    Reader(Reader),
    /// A call that sends data; `None` while a worker has the source.
    Source(Option<Box<dyn Source>>),
    /// A call that receives data.
    Sink(SinkState),
    /// Bytes go to a process's input.
    Stdin(StdinState),
    /// Changes of a watch go to the host.
    Watch(WatchReader),
}

/// A follower of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    pub(super) process: ProcessId,
    pub(super) stdout_offset: u64,
    pub(super) stderr_offset: u64,
    /// Waits for the end and takes no output.
    pub(super) exit_only: bool,
}

/// Bytes on their way into a sink.
pub(super) struct SinkState {
    /// `None` while a worker has it.
    pub(super) sink: Option<Box<dyn Sink>>,
    pub(super) queue: Vec<Vec<u8>>,
    pub(super) ended: bool,
}

/// Bytes on their way into a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct StdinState {
    pub(super) process: ProcessId,
    /// Leading bytes that the process already got from an earlier connection.
    pub(super) skip: u64,
    pub(super) close: bool,
}

/// The calls of one connection.
#[derive(Default)]
pub(super) struct Session {
    /// Distinguishes completions of an earlier connection's calls from this one's.
    pub(super) epoch: u64,
    pub(super) streams: HashMap<u32, Stream>,
    pub(super) ready: VecDeque<u32>,
    prune_requested: bool,
}

impl Session {
    pub(super) fn stream_mut(&mut self, epoch: u64, id: u32) -> Option<&mut Stream> {
        if epoch == self.epoch { self.streams.get_mut(&id) } else { None }
    }

    pub(super) fn caller(&self, stream: u32) -> Caller {
        Caller { epoch: self.epoch, stream }
    }

    /// Puts a call in line for sending.
    pub(super) fn mark_ready(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.queued) {
            stream.queued = true;
            self.ready.push_back(id);
        }
    }

    pub(super) fn next_ready(&mut self) -> Option<u32> {
        while let Some(id) = self.ready.pop_front() {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.queued = false;
                return Some(id);
            }
        }
        None
    }

    /// Returns whether a message of any length may be sent on a call.
    pub(super) fn has_page_credit(&self, id: u32) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.credit as usize >= FRAME_BYTES_MAX)
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn request_prune(&mut self) {
        self.prune_requested = true;
    }

    pub(super) fn take_prune_request(&mut self) -> bool {
        std::mem::take(&mut self.prune_requested)
    }
}

impl Server {
    /// Reads until the channel has nothing more: it tells only once.
    pub(super) fn receive(&mut self) {
        loop {
            match self.channel.receive() {
                ReceiveOutcome::Bytes => self.take_inputs(),
                ReceiveOutcome::Nothing => return,
                ReceiveOutcome::NoPeer => {
                    self.end_session();
                    self.channel.disconnect();
                    return;
                }
            }
        }
    }

    fn take_inputs(&mut self) {
        loop {
            // The payload is copied only where a stream keeps it, so the channel stays borrowed for one match.
            let (kind, stream, payload) = match self.channel.next_input() {
                None => return,
                Some(Input::Connected(nonce)) => {
                    self.begin_session(&nonce);
                    continue;
                }
                Some(Input::Lost(_)) => {
                    self.end_session();
                    self.channel.reset_output();
                    continue;
                }
                Some(Input::Frame(frame)) => take_frame(&frame),
            };
            self.dispatch(kind, stream, payload);
        }
    }

    fn begin_session(&mut self, nonce: &Nonce) {
        self.end_session();
        self.channel.begin();
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let hello = Hello {
            generation: GENERATION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: boot_id.trim().to_owned(),
        };
        let hello = serde_json::to_vec(&hello).unwrap_or_default();
        let out = self.channel.out();
        out.extend_from_slice(&ack(nonce));
        encode(out, FrameKind::Hello, 0, 0, &hello);
    }

    /// Forgets every call. Processes continue; files being written atomically never were.
    pub(super) fn end_session(&mut self) {
        let readers: Vec<Reader> = self.session.streams.values().filter_map(Stream::reader).collect();
        for reader in readers {
            self.hold_for(reader);
        }
        self.session.epoch += 1;
        self.session.streams.clear();
        self.session.ready.clear();
        let ids: Vec<ProcessId> = self
            .processes
            .values_mut()
            .map(|process| {
                process.readers.clear();
                process.id
            })
            .collect();
        // No follower is left: output that a reader held back continues, within the reconnect window.
        for id in ids {
            self.pump_process(id);
        }
    }

    fn dispatch(&mut self, kind: FrameKind, id: u32, payload: Vec<u8>) {
        match kind {
            FrameKind::Request => self.open_stream(id, &payload),
            FrameKind::Data => self.take_data(id, payload),
            FrameKind::End => self.take_end(id),
            FrameKind::Cancel => self.cancel(id),
            FrameKind::Credit => {
                let Ok(bytes) = <[u8; 4]>::try_from(payload.as_slice()) else { return };
                if let Some(stream) = self.session.streams.get_mut(&id) {
                    stream.credit = stream.credit.saturating_add(u32::from_le_bytes(bytes));
                    self.session.mark_ready(id);
                }
            }
            // The host's hello: generation 1 is the first, so no earlier one exists to fall back to.
            FrameKind::Hello | FrameKind::Event | FrameKind::Reply => {}
        }
    }

    fn open_stream(&mut self, id: u32, payload: &[u8]) {
        if self.session.streams.contains_key(&id) {
            return;
        }
        if self.session.streams.len() >= STREAMS_MAX {
            return self.reply_error(
                id,
                &ErrorBody::new(ErrorCode::TooMany, format!("{STREAMS_MAX} calls are open at once")),
            );
        }
        let stream = Stream {
            credit: STREAM_WINDOW_BYTES,
            receive_credit: STREAM_WINDOW_BYTES,
            queued: false,
            cancelled: false,
            kind: StreamKind::Waiting,
        };
        self.session.streams.insert(id, stream);
        match serde_json::from_slice(payload) {
            Ok(request) => self.handle_request(id, request),
            Err(error) => {
                let message = format!(
                    "this guest does not understand the request ({error}); its template may be too old"
                );
                self.reply_error(id, &ErrorBody::new(ErrorCode::Unsupported, message));
            }
        }
    }

    fn take_data(&mut self, id: u32, bytes: Vec<u8>) {
        let Some(stream) = self.session.streams.get_mut(&id) else { return };
        let Some(left) = stream.receive_credit.checked_sub(frame_charge(bytes.len())) else {
            let error = ErrorBody::new(ErrorCode::Invalid, "more was sent than the call's credit allows");
            return self.reply_error(id, &error);
        };
        stream.receive_credit = left;
        match &mut stream.kind {
            StreamKind::Sink(state) => {
                state.queue.push(bytes);
                self.session.mark_ready(id);
            }
            StreamKind::Stdin(state) => {
                let state = *state;
                self.take_stdin(id, state, bytes);
            }
            StreamKind::Waiting | StreamKind::Reader(_) | StreamKind::Source(_) | StreamKind::Watch(_) => {}
        }
    }

    fn take_end(&mut self, id: u32) {
        match self.session.streams.get_mut(&id).map(|stream| &mut stream.kind) {
            Some(StreamKind::Sink(state)) => {
                state.ended = true;
                self.session.mark_ready(id);
            }
            Some(StreamKind::Stdin(state)) => {
                let (process, close) = (state.process, state.close);
                let caller = self.session.caller(id);
                self.queue_stdin(id, process, InputEntry::Finish { caller, close });
            }
            _ => {}
        }
    }

    fn cancel(&mut self, id: u32) {
        let Some(stream) = self.session.streams.get_mut(&id) else { return };
        stream.cancelled = true;
        let busy = match &stream.kind {
            StreamKind::Waiting | StreamKind::Source(None) => true,
            StreamKind::Sink(state) => state.sink.is_none(),
            StreamKind::Source(Some(_))
            | StreamKind::Reader(_)
            | StreamKind::Stdin(_)
            | StreamKind::Watch(_) => false,
        };
        let reader = stream.reader();
        if !busy {
            if let Some(reader) = reader {
                self.hold_for(reader);
            }
            self.reply_cancelled(id);
        }
    }

    /// Keeps the data of a disconnected follower for some time, so that it can reconnect without a gap.
    fn hold_for(&mut self, reader: Reader) {
        let Ok(process) = self.processes.get_mut(reader.process) else { return };
        if reader.exit_only {
            return;
        }
        let earlier = process.held;
        process.held = Some(OutputHold {
            until: Instant::now() + Duration::from_secs(OUTPUT_HOLD_SECONDS),
            stdout_offset: earlier.map_or(u64::MAX, |held| held.stdout_offset).min(reader.stdout_offset),
            stderr_offset: earlier.map_or(u64::MAX, |held| held.stderr_offset).min(reader.stderr_offset),
        });
    }

    pub(super) fn reply_cancelled(&mut self, id: u32) {
        self.reply_error(id, &ErrorBody::new(ErrorCode::Cancelled, "the call was cancelled"));
    }

    /// Grants the host more bytes on a call.
    pub(super) fn grant(&mut self, Caller { epoch, stream: id }: Caller, bytes: u32) {
        if let Some(stream) = self.session.stream_mut(epoch, id) {
            stream.receive_credit = stream.receive_credit.saturating_add(bytes);
            encode_credit(self.channel.out(), id, bytes);
        }
    }

    pub(super) fn send_event(&mut self, id: u32, event: &Event) {
        let payload = serde_json::to_vec(event).unwrap_or_default();
        self.send_charged(id, FrameKind::Event, 0, &payload);
    }

    /// Sends a frame that costs credit.
    pub(super) fn send_charged(&mut self, id: u32, kind: FrameKind, flags: u8, payload: &[u8]) {
        debug_assert!(payload.len() <= FRAME_BYTES_MAX);
        if let Some(stream) = self.session.streams.get_mut(&id) {
            stream.credit = stream.credit.saturating_sub(frame_charge(payload.len()));
            encode(self.channel.out(), kind, flags, id, payload);
        }
    }

    pub(super) fn reply<T: Serialize>(&mut self, id: u32, result: Result<T, ErrorBody>) {
        let payload = reply_payload(result);
        self.reply_raw(id, &payload);
    }

    pub(super) fn reply_error(&mut self, id: u32, error: &ErrorBody) {
        self.reply(id, Err::<(), _>(error.clone()));
    }

    /// Ends a call.
    pub(super) fn reply_raw(&mut self, id: u32, payload: &[u8]) {
        if let Some(Stream { kind: StreamKind::Reader(reader), .. }) = self.session.streams.remove(&id)
            && let Ok(process) = self.processes.get_mut(reader.process)
        {
            process.readers.retain(|&reader| reader != id);
            // One follower fewer may mean room, or an ended process that can be forgotten.
            self.session.request_prune();
            self.pump_process(reader.process);
        }
        encode(self.channel.out(), FrameKind::Reply, 0, id, payload);
    }
}

/// A reply's payload; also made on workers.
pub(super) fn reply_payload<T: Serialize>(result: Result<T, ErrorBody>) -> Vec<u8> {
    let reply = match result {
        Ok(value) => Reply::Ok(value),
        Err(mut error) => {
            if error.message.len() > MESSAGE_CHARS_MAX {
                error.message = error.message.chars().take(MESSAGE_CHARS_MAX).collect();
            }
            Reply::Error(error)
        }
    };
    serde_json::to_vec(&reply).unwrap_or_default()
}

fn take_frame(frame: &Frame<'_>) -> (FrameKind, u32, Vec<u8>) {
    (frame.kind, frame.stream, frame.payload.to_vec())
}
