//! Handles each request: quick ones here, the rest on workers.

use std::time::Duration;

use pandastack_guest_proto::limits::frame_charge;
use pandastack_guest_proto::message::{
    Attach, Done, ErrorBody, ErrorCode, Identity, Pong, ProcessId, ProcessSpec, Request, StdinWrite,
};

use super::completion::Completion;
use super::session::{Reader, StdinState, StreamKind, reply_payload};
use super::{Server, Shutdown};
use crate::files::{self, ListSource, ReadSource, Source, WriteSink};
use crate::machine::{self, PageSource, PortsSource};
use crate::process::{InputEntry, SpawnContext, spawn_process};
use crate::volume;

/// Longest time for user processes to freeze. A process that waits for a disk freezes when it is
/// served.
const FREEZE_WAIT_MAX: Duration = Duration::from_secs(10);

impl Server {
    pub(super) fn handle_request(&mut self, id: u32, request: Request) {
        match request {
            Request::Ping => {
                let pong = Pong { uptime_ms: machine::uptime_ms(), frozen: self.frozen };
                self.reply(id, Ok(pong));
            }
            Request::Start(spec) => self.start(id, spec, false),
            Request::Exec(spec) => self.start(id, spec, true),
            Request::Attach(attach) => self.attach(id, attach),
            Request::Stdin(write) => self.open_stdin(id, write),
            Request::Signal { process, signal } => {
                let sent = self.processes.get_mut(process).and_then(|process| process.signal(signal));
                self.reply(id, sent.map(|()| Done {}));
            }
            Request::Resize { process, size } => {
                let resized = self.processes.get_mut(process).and_then(|process| process.resize(size));
                self.reply(id, resized.map(|()| Done {}));
            }
            Request::HangUp { process } => {
                let hung_up = self.processes.get_mut(process).and_then(|found| found.hang_up(&self.poller));
                self.reply(id, hung_up.map(|()| Done {}));
                self.pump_stdin(process);
                self.pump_process(process);
            }
            Request::Processes => {
                self.processes.prune();
                let infos = self.processes.infos();
                self.open_source(id, Box::new(PageSource::processes(infos)));
            }
            Request::Ports => self.open_source(id, Box::new(PortsSource::default())),
            Request::Quiesce { sync } => self.quiesce(id, sync),
            Request::Thaw => {
                let thawed = self.thaw();
                self.reply(id, thawed.map(|()| Done {}));
            }
            Request::SetIdentity(identity) => self.set_identity(id, &identity),
            Request::Stats => {
                let running = self.processes.running_count();
                self.run_job(id, move || Ok(machine::stats(running)));
            }
            Request::VolumeMount(mount) => self.run_job(id, move || done(volume::mount_volume(&mount))),
            Request::VolumeGrow { serial, bytes } => {
                self.run_job(id, move || done(volume::grow(&serial, bytes)));
            }
            Request::Shutdown { grace_ms } => {
                self.shutdown = Some(Shutdown { grace_ms });
                self.reply(id, Ok(Done {}));
            }
            file => self.handle_file_request(id, file),
        }
    }

    fn handle_file_request(&mut self, id: u32, request: Request) {
        let root = self.environment.root.clone();
        match request {
            Request::FileRead(read) => self.open_source(id, Box::new(ReadSource::new(read))),
            Request::FileList { path } => self.open_source(id, Box::new(ListSource::new(path, root))),
            Request::FileWrite(write) => self.open_sink(id, Box::new(WriteSink::new(write, root))),
            Request::FileStat { path, no_follow } => {
                self.run_job(id, move || files::stat(&root, &path, no_follow));
            }
            Request::FileMkdir { path, parents, mode, user } => {
                self.run_job(id, move || {
                    done(files::make_directory(&root, &path, parents, mode, user.as_deref()))
                });
            }
            Request::FileRemove { path, recursive } => {
                self.run_job(id, move || done(files::remove(&path, recursive)))
            }
            tree => self.handle_tree_request(id, tree),
        }
    }

    pub(super) fn set_kind(&mut self, id: u32, kind: StreamKind) {
        if let Some(stream) = self.session.streams.get_mut(&id) {
            stream.kind = kind;
        }
    }

    pub(super) fn open_source(&mut self, id: u32, source: Box<dyn Source>) {
        self.set_kind(id, StreamKind::Source(Some(source)));
        self.session.mark_ready(id);
    }

    /// Runs a job on a worker and replies with its result.
    fn run_job<T: serde::Serialize>(
        &mut self,
        id: u32,
        job: impl FnOnce() -> Result<T, ErrorBody> + Send + 'static,
    ) {
        let epoch = self.session.epoch;
        self.workers.submit(move || Completion::Replied { epoch, stream: id, payload: reply_payload(job()) });
    }

    fn start(&mut self, id: u32, spec: ProcessSpec, attach: bool) {
        if self.frozen {
            // A child born into a frozen group would never get to run its program.
            let message = "user processes are frozen; set the identity or thaw before starting any";
            return self.reply_error(id, &ErrorBody::new(ErrorCode::Frozen, message));
        }
        let process = match self.processes.begin_spawn() {
            Ok(process) => process,
            Err(error) => return self.reply_error(id, &error),
        };
        let (user, cwd) = self.identity.defaults();
        let context = SpawnContext {
            asked: self.woken,
            root: self.environment.root.clone(),
            cgroup: self.environment.cgroup.clone(),
            is_machine: self.environment.is_machine,
            env: self.identity.env().clone(),
            user,
            cwd,
        };
        let epoch = self.session.epoch;
        self.workers.submit(move || {
            let result = spawn_process(&context, process, &spec);
            Completion::Spawned { epoch, stream: id, process, attach, spec: Box::new(spec), result }
        });
    }

    fn attach(&mut self, id: u32, attach: Attach) {
        let process = match self.processes.get_mut(attach.process) {
            Ok(process) => process,
            Err(error) => return self.reply_error(id, &error),
        };
        let (stdout_end, stderr_end) = (process.stdout.ring().end(), process.stderr.ring().end());
        if attach.stdout_offset > stdout_end || attach.stderr_offset > stderr_end {
            let message = format!(
                "process {} has written {stdout_end} and {stderr_end} bytes so far, less than the requested \
                 offsets",
                attach.process
            );
            return self.reply_error(id, &ErrorBody::new(ErrorCode::Invalid, message));
        }
        process.readers.push(id);
        let Attach { process: followed, stdout_offset, stderr_offset, exit_only } = attach;
        if !exit_only {
            process.held = None;
        }
        let reader = Reader { process: followed, stdout_offset, stderr_offset, exit_only };
        self.set_kind(id, StreamKind::Reader(reader));
        // Output that waited for a lost follower may continue with this one.
        self.pump_process(followed);
        self.session.mark_ready(id);
    }

    fn open_stdin(&mut self, id: u32, write: StdinWrite) {
        let opened = self.processes.get_mut(write.process).and_then(|process| {
            let refuse = |what: String| Err(ErrorBody::new(ErrorCode::Invalid, what));
            let Some(stdin) = process.stdin.as_ref().filter(|stdin| stdin.is_open()) else {
                return refuse(format!("process {} has no open standard input", write.process));
            };
            match stdin.received().checked_sub(write.offset.unwrap_or(stdin.received())) {
                Some(skip) => Ok(StdinState { process: write.process, skip, close: write.close }),
                None => refuse(format!("input up to byte {} is missing", stdin.received())),
            }
        });
        match opened {
            Ok(state) => self.set_kind(id, StreamKind::Stdin(state)),
            Err(error) => self.reply_error(id, &error),
        }
    }

    pub(super) fn take_stdin(&mut self, id: u32, mut state: StdinState, mut bytes: Vec<u8>) {
        let skipped = usize::try_from(state.skip).unwrap_or(usize::MAX).min(bytes.len());
        state.skip -= skipped as u64;
        let (frame_bytes, caller) = (bytes.len(), self.session.caller(id));
        bytes.drain(..skipped);
        self.set_kind(id, StreamKind::Stdin(state));
        if bytes.is_empty() {
            return self.grant(caller, frame_charge(frame_bytes));
        }
        self.queue_stdin(id, state.process, InputEntry::Bytes { caller, bytes });
    }

    pub(super) fn queue_stdin(&mut self, id: u32, process: ProcessId, entry: InputEntry) {
        match self.processes.get_mut(process).map(|process| process.stdin.as_mut()) {
            Ok(Some(stdin)) => {
                stdin.push(entry);
                self.pump_stdin(process);
            }
            Ok(None) => {}
            Err(error) => self.reply_error(id, &error),
        }
    }

    fn quiesce(&mut self, id: u32, sync: bool) {
        if let Some(cgroup) = &self.environment.cgroup
            && let Err(error) = cgroup.freeze(FREEZE_WAIT_MAX)
        {
            let _ = self.thaw();
            let message =
                format!("user processes did not freeze within {FREEZE_WAIT_MAX:?} ({error}); try again");
            return self.reply_error(id, &ErrorBody::new(ErrorCode::Timeout, message));
        }
        self.frozen = true;
        if sync {
            self.run_job(id, || {
                nix::unistd::sync();
                Ok(Done {})
            });
        } else {
            self.reply(id, Ok(Done {}));
        }
    }

    fn thaw(&mut self) -> Result<(), ErrorBody> {
        if let Some(cgroup) = &self.environment.cgroup {
            cgroup.thaw().map_err(|error| {
                ErrorBody::new(ErrorCode::Io, format!("cannot thaw user processes: {error}"))
            })?;
        }
        self.frozen = false;
        Ok(())
    }

    fn set_identity(&mut self, id: u32, identity: &Identity) {
        let applied = self.identity.apply(&self.environment, identity);
        let applied = applied.and_then(|applied| self.thaw().map(|()| applied));
        self.reply(id, applied);
    }
}

fn done(result: Result<(), ErrorBody>) -> Result<Done, ErrorBody> {
    result.map(|()| Done {})
}
