//! Processes in the guest.

use bytes::{Bytes, BytesMut};

use super::call::{Call, Inbound};
use super::error::ClientError;
use super::{GuestClient, TABLE_BYTES_MAX};
use crate::frame::FLAG_STDERR;
use crate::message::{
    Attach, Done, Event, ExitStatus, OutputStream, ProcessId, ProcessInfo, ProcessSpec, Request, Started,
    StdinWrite, StdinWritten, TerminalSize,
};

impl GuestClient {
    /// Starts a process and leaves it to itself. Its output waits in the guest.
    ///
    /// # Errors
    /// When it cannot be started, or the guest cannot be reached.
    pub async fn start(&self, spec: ProcessSpec) -> Result<Started, ClientError> {
        self.ask(&Request::Start(spec)).await
    }

    /// Starts a process and follows it, in one round trip.
    ///
    /// # Errors
    /// When it cannot be started, or the guest cannot be reached.
    pub async fn exec(&self, spec: ProcessSpec) -> Result<ProcessStream, ClientError> {
        let mut call = self.open(&Request::Exec(spec)).await?;
        match call.next().await? {
            Inbound::Event(event) => match call.parse_event(&event)? {
                Event::Started(started) => {
                    Ok(ProcessStream::new(call, started.process, Some(started.pid), (0, 0)))
                }
                _ => Err(call.protocol_violation("did not say which process it started")),
            },
            Inbound::Reply(reply) => match call.finish::<Done>(&reply) {
                Ok(_) => Err(call.protocol_violation("did not say which process it started")),
                Err(error) => Err(error),
            },
            Inbound::Data { .. } => {
                Err(call.protocol_violation("sent output of a process that it did not name"))
            }
        }
    }

    /// Follows a process's output from two offsets. Works while it runs and for a while after it ended.
    ///
    /// # Errors
    /// When the guest cannot be reached. An unknown process is reported by the stream.
    pub async fn attach(
        &self,
        process: ProcessId,
        stdout_offset: u64,
        stderr_offset: u64,
    ) -> Result<ProcessStream, ClientError> {
        let attach = Attach { process, stdout_offset, stderr_offset, exit_only: false };
        let call = self.open(&Request::Attach(attach)).await?;
        Ok(ProcessStream::new(call, process, None, (stdout_offset, stderr_offset)))
    }

    /// Waits for a process's end without its output and without holding it back.
    ///
    /// # Errors
    /// When the process is unknown, or the guest cannot be reached.
    pub async fn wait_exit(&self, known: &ProcessInfo) -> Result<ExitStatus, ClientError> {
        // Guests that do not support `exit_only` send output after the current end; it is read and
        // dropped.
        let (stdout_offset, stderr_offset) = (known.stdout_end, known.stderr_end);
        let attach = Attach { process: known.process, stdout_offset, stderr_offset, exit_only: true };
        let call = self.open(&Request::Attach(attach)).await?;
        let mut stream = ProcessStream::new(call, known.process, None, (stdout_offset, stderr_offset));
        loop {
            if let Some(ProcessEvent::Exit(exit)) = stream.next().await? {
                return Ok(exit);
            }
        }
    }

    /// Writes to a process's standard input and waits until the process's pipe took it all. With an offset
    /// the write can be repeated after a lost connection: bytes that the guest already has are skipped.
    ///
    /// # Errors
    /// When the process is gone or has no input, or the guest cannot be reached.
    pub async fn write_stdin(
        &self,
        process: ProcessId,
        offset: Option<u64>,
        bytes: &[u8],
    ) -> Result<StdinWritten, ClientError> {
        self.send_stdin(StdinWrite { process, offset, close: false }, bytes).await
    }

    /// Closes a process's standard input.
    ///
    /// # Errors
    /// When the process is gone or has no input, or the guest cannot be reached.
    pub async fn close_stdin(&self, process: ProcessId) -> Result<StdinWritten, ClientError> {
        self.send_stdin(StdinWrite { process, offset: None, close: true }, &[]).await
    }

    /// Opens a process's standard input for writing in pieces.
    ///
    /// # Errors
    /// When the guest cannot be reached. A process without input is reported by [`StdinWriter::finish`].
    pub async fn open_stdin(&self, write: StdinWrite) -> Result<StdinWriter, ClientError> {
        Ok(StdinWriter { call: self.open(&Request::Stdin(write)).await? })
    }

    async fn send_stdin(&self, write: StdinWrite, bytes: &[u8]) -> Result<StdinWritten, ClientError> {
        let mut writer = self.open_stdin(write).await?;
        writer.write(bytes).await?;
        writer.finish().await
    }

    /// Changes the size of a process's terminal.
    ///
    /// # Errors
    /// When the process is unknown or has no terminal, or the guest cannot be reached.
    pub async fn resize(&self, process: ProcessId, size: TerminalSize) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::Resize { process, size }).await?;
        Ok(())
    }

    /// Takes a process's terminal away. Unlike a signal alone this cannot be missed: the next read
    /// finds the end.
    ///
    /// # Errors
    /// When the process is unknown or has no terminal, or the guest cannot be reached.
    pub async fn hang_up(&self, process: ProcessId) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::HangUp { process }).await?;
        Ok(())
    }

    /// Sends a signal to a process's group. SIGKILL reaches everything that the process ever started.
    ///
    /// # Errors
    /// When the process is unknown, or the guest cannot be reached.
    pub async fn signal(&self, process: ProcessId, signal: i32) -> Result<(), ClientError> {
        let Done {} = self.ask(&Request::Signal { process, signal }).await?;
        Ok(())
    }

    /// Lists the guest's processes: running ones, and ones that ended recently.
    ///
    /// # Errors
    /// When the guest cannot be reached.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, ClientError> {
        let pick = |event| match event {
            Event::Processes { processes } => Some(processes),
            _ => None,
        };
        self.all_pages(&Request::Processes, TABLE_BYTES_MAX, pick).await.map(|(processes, _)| processes)
    }
}

/// A write to a process's standard input in progress. Dropping it leaves the input open, and the
/// sent bytes in it.
#[derive(Debug)]
pub struct StdinWriter {
    call: Call,
}

impl StdinWriter {
    /// Sends bytes, as fast as the process reads.
    ///
    /// # Errors
    /// When the guest cannot be reached. [`StdinWriter::finish`] returns a refusal.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        self.call.send_data(bytes).await
    }

    /// Waits until the process's pipe has accepted all bytes.
    ///
    /// # Errors
    /// When the process is gone or has no input, or the guest cannot be reached.
    pub async fn finish(mut self) -> Result<StdinWritten, ClientError> {
        self.call.send_end().await?;
        match self.call.next().await? {
            Inbound::Reply(reply) => self.call.finish(&reply),
            Inbound::Event(_) | Inbound::Data { .. } => {
                Err(self.call.protocol_violation("sent more than a reply"))
            }
        }
    }
}

/// An event of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// The process wrote output.
    Output {
        /// Stream.
        stream: OutputStream,
        /// Position of the first byte in the whole output.
        offset: u64,
        /// Output bytes.
        bytes: Bytes,
    },
    /// Output was dropped because no reader took it in time.
    Gap {
        /// Stream.
        stream: OutputStream,
        /// First missing byte.
        from: u64,
        /// First byte after the gap.
        to: u64,
    },
    /// The process ended; nothing follows.
    Exit(ExitStatus),
}

/// A process's output and exit. Dropping it detaches; the process continues.
#[derive(Debug)]
pub struct ProcessStream {
    call: Call,
    process: ProcessId,
    pid: Option<i32>,
    stdout_offset: u64,
    stderr_offset: u64,
    exited: bool,
}

/// All that a process wrote, up to a limit.
#[derive(Clone, Debug)]
pub struct CollectedOutput {
    /// Standard output.
    pub stdout: Bytes,
    /// Standard error.
    pub stderr: Bytes,
    /// More was written than the limit, or a gap was reported.
    pub truncated: bool,
    /// Result.
    pub exit: ExitStatus,
}

/// Collects a process's output, up to a limit per stream.
#[derive(Debug)]
pub struct Collector {
    stdout: BytesMut,
    stderr: BytesMut,
    truncated: bool,
    bytes_max: usize,
}

impl Collector {
    /// Collects at most `bytes_max` bytes of each stream and drops the rest.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { stdout: BytesMut::new(), stderr: BytesMut::new(), truncated: false, bytes_max }
    }

    /// Handles a process event; returns the exit status at the end.
    pub fn take(&mut self, event: ProcessEvent) -> Option<ExitStatus> {
        match event {
            ProcessEvent::Output { stream, bytes, .. } => {
                let kept = match stream {
                    OutputStream::Stdout => &mut self.stdout,
                    OutputStream::Stderr => &mut self.stderr,
                };
                let room = self.bytes_max.saturating_sub(kept.len());
                self.truncated |= bytes.len() > room;
                kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
                None
            }
            ProcessEvent::Gap { .. } => {
                self.truncated = true;
                None
            }
            ProcessEvent::Exit(exit) => Some(exit),
        }
    }

    /// The collected output.
    #[must_use]
    pub fn finish(self, exit: ExitStatus) -> CollectedOutput {
        let Self { stdout, stderr, truncated, .. } = self;
        CollectedOutput { stdout: stdout.freeze(), stderr: stderr.freeze(), truncated, exit }
    }
}

impl ProcessStream {
    fn new(call: Call, process: ProcessId, pid: Option<i32>, offsets: (u64, u64)) -> Self {
        let (stdout_offset, stderr_offset) = offsets;
        Self { call, process, pid, stdout_offset, stderr_offset, exited: false }
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Kernel process id, known to the stream of an exec.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Offsets for attaching again: the next byte wanted of standard output and standard error.
    #[must_use]
    pub fn offsets(&self) -> (u64, u64) {
        (self.stdout_offset, self.stderr_offset)
    }

    /// The next event; `None` after the exit.
    ///
    /// # Errors
    /// When the process is unknown, the connection is lost, or the guest misbehaves.
    pub async fn next(&mut self) -> Result<Option<ProcessEvent>, ClientError> {
        if self.exited {
            return Ok(None);
        }
        match self.call.next().await? {
            Inbound::Data { flags, bytes } => Ok(Some(self.take_output(flags, bytes))),
            Inbound::Event(event) => match self.call.parse_event(&event)? {
                Event::Gap { stream, from, to } => self.take_gap(stream, from, to).map(Some),
                _ => Err(self.call.protocol_violation("sent an event of another kind")),
            },
            Inbound::Reply(reply) => {
                self.exited = true;
                self.call.finish(&reply).map(|exit| Some(ProcessEvent::Exit(exit)))
            }
        }
    }

    /// Reads to the end and keeps at most `bytes_max` of each stream; the rest is read and dropped.
    ///
    /// # Errors
    /// As [`ProcessStream::next`].
    pub async fn collect(mut self, bytes_max: usize) -> Result<CollectedOutput, ClientError> {
        let mut collector = Collector::new(bytes_max);
        loop {
            let Some(event) = self.next().await? else {
                return Err(self.call.protocol_violation("ended a process twice"));
            };
            if let Some(exit) = collector.take(event) {
                return Ok(collector.finish(exit));
            }
        }
    }

    fn offset_mut(&mut self, stream: OutputStream) -> &mut u64 {
        match stream {
            OutputStream::Stdout => &mut self.stdout_offset,
            OutputStream::Stderr => &mut self.stderr_offset,
        }
    }

    fn take_output(&mut self, flags: u8, bytes: Bytes) -> ProcessEvent {
        let stream = if flags & FLAG_STDERR == 0 { OutputStream::Stdout } else { OutputStream::Stderr };
        let next = self.offset_mut(stream);
        let offset = *next;
        *next = offset.saturating_add(bytes.len() as u64);
        ProcessEvent::Output { stream, offset, bytes }
    }

    fn take_gap(&mut self, stream: OutputStream, from: u64, to: u64) -> Result<ProcessEvent, ClientError> {
        let expected = *self.offset_mut(stream);
        if from != expected || to <= from {
            return Err(self
                .call
                .protocol_violation(&format!("reported a gap {from}..{to} at offset {expected}")));
        }
        *self.offset_mut(stream) = to;
        Ok(ProcessEvent::Gap { stream, from, to })
    }
}
