//! Results of workers.

use pandastack_guest_proto::message::{
    ErrorBody, ErrorCode, Event, FileWritten, ProcessId, ProcessSpec, Started,
};

use super::Server;
use super::session::{Reader, StreamKind};
use crate::files::{Sink, Source, Step};
use crate::process::{Process, SpawnedChild};
use crate::watch::Watch;
use pandastack_guest_proto::frame::FrameKind;

/// A finished job.
pub(crate) enum Completion {
    /// A reply, ready to send.
    Replied { epoch: u64, stream: u32, payload: Vec<u8> },
    /// A process was started, or not.
    Spawned {
        epoch: u64,
        stream: u32,
        process: ProcessId,
        attach: bool,
        spec: Box<ProcessSpec>,
        result: Result<SpawnedChild, ErrorBody>,
    },
    /// A watch was started, or not.
    WatchStarted { epoch: u64, stream: u32, result: Result<Watch, ErrorBody> },
    /// A source took a step.
    Stepped { epoch: u64, stream: u32, source: Box<dyn Source>, result: Result<Step, ErrorBody> },
    /// A sink took bytes; at its end, how many in all.
    Sunk { epoch: u64, stream: u32, sink: Box<dyn Sink>, charge: u32, result: Result<Option<u64>, ErrorBody> },
}

impl Server {
    pub(super) fn complete(&mut self, done: Completion) {
        match done {
            Completion::Replied { epoch, stream, payload } => {
                if self.session.stream_mut(epoch, stream).is_some() {
                    self.reply_raw(stream, &payload);
                }
            }
            Completion::Spawned { epoch, stream, process, attach, spec, result } => {
                // Record the process even if the call is gone: it runs.
                let started = self.enter(process, &spec, result);
                if self.session.stream_mut(epoch, stream).is_some() {
                    self.answer_start(stream, attach, started);
                }
                self.pump_process(process);
            }
            Completion::WatchStarted { epoch, stream, result } => self.watch_started(epoch, stream, result),
            Completion::Stepped { epoch, stream, source, result } => {
                self.stepped(epoch, stream, source, result)
            }
            Completion::Sunk { epoch, stream, sink, charge, result } => {
                self.sunk(epoch, stream, sink, charge, result)
            }
        }
    }

    fn enter(
        &mut self,
        id: ProcessId,
        spec: &ProcessSpec,
        result: Result<SpawnedChild, ErrorBody>,
    ) -> Result<Started, ErrorBody> {
        let process = result.and_then(|spawned| {
            Process::new(id, spec, spawned, &self.poller).map_err(|error| {
                ErrorBody::new(ErrorCode::TooMany, format!("cannot watch the process: {error}"))
            })
        });
        match process {
            Ok(process) => {
                let started = Started { process: id, pid: process.pid, terminal: process.has_terminal() };
                self.processes.spawn_done(Some(process), &self.poller);
                Ok(started)
            }
            Err(error) => {
                self.processes.spawn_done(None, &self.poller);
                Err(error)
            }
        }
    }

    fn answer_start(&mut self, stream: u32, attach: bool, started: Result<Started, ErrorBody>) {
        let started = match started {
            Ok(started) if attach => started,
            other => return self.reply(stream, other),
        };
        if self.session.streams.get(&stream).is_some_and(|stream| stream.cancelled) {
            return self.reply_cancelled(stream);
        }
        self.send_event(stream, &Event::Started(started));
        if let Some(open) = self.session.streams.get_mut(&stream) {
            open.kind = StreamKind::Reader(Reader {
                process: started.process,
                stdout_offset: 0,
                stderr_offset: 0,
                exit_only: false,
            });
        }
        if let Ok(process) = self.processes.get_mut(started.process) {
            process.readers.push(stream);
        }
        self.session.mark_ready(stream);
    }

    fn stepped(&mut self, epoch: u64, id: u32, source: Box<dyn Source>, result: Result<Step, ErrorBody>) {
        let Some(stream) = self.session.stream_mut(epoch, id) else { return };
        if stream.cancelled {
            return self.reply_cancelled(id);
        }
        stream.kind = StreamKind::Source(Some(source));
        match result {
            Ok(Step::Data(bytes)) => self.send_charged(id, FrameKind::Data, 0, &bytes),
            Ok(Step::Event(event)) => self.send_event(id, &event),
            Ok(Step::Idle) => {}
            Ok(Step::End) => return self.reply(id, Ok(pandastack_guest_proto::message::Done {})),
            Err(error) => return self.reply_error(id, &error),
        }
        self.session.mark_ready(id);
    }

    fn sunk(
        &mut self,
        epoch: u64,
        id: u32,
        sink: Box<dyn Sink>,
        charge: u32,
        result: Result<Option<u64>, ErrorBody>,
    ) {
        let Some(stream) = self.session.stream_mut(epoch, id) else { return };
        if stream.cancelled {
            return self.reply_cancelled(id);
        }
        if let StreamKind::Sink(state) = &mut stream.kind {
            state.sink = Some(sink);
        }
        match result {
            Ok(Some(bytes)) => self.reply(id, Ok(FileWritten { bytes })),
            Ok(None) => {
                if charge > 0 {
                    self.grant(self.session.caller(id), charge);
                }
                self.session.mark_ready(id);
            }
            Err(error) => self.reply_error(id, &error),
        }
    }
}
