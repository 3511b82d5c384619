//! What a process does, across lost connections, sleep and waking.

use pandastack_guest_proto::client::{ClientError, ProcessEvent, ProcessStream};
use pandastack_guest_proto::message::{ErrorCode, ProcessId, ProcessSpec, StdinWrite};

use super::named;
use super::start::feed_input;
use crate::error::Result;
use crate::sandbox::{Lease, SandboxHandle};

/// Starts that a freeze may come before. Each waits behind whatever froze the sandbox.
const FROZEN_STARTS_MAX: usize = 3;

/// Next byte wanted of standard output and of standard error.
pub(crate) type Offsets = (u64, u64);

/// A process's output and end. Dropping it detaches; the process goes on.
pub(crate) struct Feed {
    handle: SandboxHandle,
    process: ProcessId,
    offsets: Offsets,
    /// The present connection. The lease keeps the sandbox from going to sleep for lack of use.
    joined: Option<(ProcessStream, Lease)>,
    ended: bool,
}

impl Feed {
    /// Starts a process and follows it from its first byte.
    pub(crate) async fn exec(handle: SandboxHandle, spec: ProcessSpec) -> Result<Self> {
        for _ in 1..FROZEN_STARTS_MAX {
            match Self::try_exec(&handle, spec.clone()).await {
                // A snapshot or sleep came between the lease and the start; the next lease waits for it.
                Err(error) if error.is_guest_refusal(ErrorCode::Frozen) => {}
                started => return started,
            }
        }
        Self::try_exec(&handle, spec).await
    }

    async fn try_exec(handle: &SandboxHandle, spec: ProcessSpec) -> Result<Self> {
        let lease = handle.lease().await?;
        let stream = match lease.guest.exec(spec).await {
            Ok(stream) => stream,
            Err(error) => return Err(handle.explain(error.into()).await),
        };
        let process = stream.process();
        let (handle, joined) = (handle.clone(), Some((stream, lease)));
        Ok(Self { handle, process, offsets: (0, 0), joined, ended: false })
    }

    /// Follows a process from two offsets on, waking the sandbox if it sleeps.
    pub(crate) async fn attach(handle: SandboxHandle, process: ProcessId, offsets: Offsets) -> Result<Self> {
        let lease = handle.lease().await?;
        let mut feed = Self { handle, process, offsets, joined: None, ended: false };
        feed.join(lease).await?;
        Ok(feed)
    }

    pub(crate) fn process(&self) -> ProcessId {
        self.process
    }

    /// The kernel's process id, known to the feed of a process that it started.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.joined.as_ref().and_then(|(stream, _)| stream.pid())
    }

    /// Writes the process's first input and, with `close`, ends it, beside whatever else happens to the feed.
    pub(crate) async fn send_input(&self, input: String, close: bool) -> Result<()> {
        let Some((stream, _)) = &self.joined else { return Ok(()) };
        let write = StdinWrite { process: stream.process(), offset: Some(0), close };
        tokio::spawn(feed_input(self.handle.lease().await?, write, input));
        Ok(())
    }

    async fn join(&mut self, lease: Lease) -> Result<()> {
        let stream = lease.guest.attach(self.process, self.offsets.0, self.offsets.1).await?;
        self.joined = Some((stream, lease));
        Ok(())
    }

    /// What it does next; `None` after its end. Can be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<Option<ProcessEvent>> {
        while !self.ended {
            let Some((stream, _)) = &mut self.joined else {
                let lease = self.handle.rejoin().await?;
                // Lost again at once: the next turn tells why, or finds the sandbox awake.
                if let Err(error) = self.join(lease).await
                    && !error.is_disconnection()
                {
                    return self.end(Err(error));
                }
                continue;
            };
            match stream.next().await {
                Ok(event) => {
                    self.offsets = stream.offsets();
                    self.ended = matches!(event, None | Some(ProcessEvent::Exit(_)));
                    return Ok(event);
                }
                Err(ClientError::Disconnected { .. }) => self.joined = None,
                Err(error) => {
                    let error = named(error, self.process);
                    return self.end(Err(error));
                }
            }
        }
        Ok(None)
    }

    fn end<T>(&mut self, result: Result<T>) -> Result<T> {
        self.ended = true;
        result
    }
}
