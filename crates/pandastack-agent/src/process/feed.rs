//! Follows a process across lost connections, sleep and waking.

use pandastack_fault as fault;
use pandastack_guest_proto::client::{ClientError, ProcessEvent, ProcessStream};
use pandastack_guest_proto::message::{ProcessId, ProcessSpec, StdinWrite};

use super::input::write_first;
use super::lookup::named;
use crate::error::{AgentError, Result};
use crate::sandbox::handle::{GuestLease, SandboxHandle};

/// Next byte wanted of standard output and of standard error.
pub(crate) type Offsets = (u64, u64);

/// A process's output and exit. Dropping it detaches; the process continues.
pub(crate) struct Feed {
    handle: SandboxHandle,
    process: ProcessId,
    offsets: Offsets,
    /// Number of rollbacks of the sandbox when the feed started.
    rollbacks: u64,
    /// The present connection. The lease keeps the sandbox from going to sleep for lack of use.
    joined: Option<(ProcessStream, GuestLease)>,
    ended: bool,
}

impl Feed {
    /// Starts a process and follows it from its first byte.
    pub(crate) async fn exec(handle: SandboxHandle, spec: ProcessSpec) -> Result<Self> {
        let mut lease = handle.lease_to_start().await?;
        fault::point("exec.leased").await;
        let stream = match lease.guest.exec(spec).await {
            Ok(stream) => stream,
            Err(error) => return Err(handle.explain(error.into()).await),
        };
        lease.started();
        let process = stream.process();
        let (rollbacks, joined) = (lease.rollbacks, Some((stream, lease)));
        Ok(Self { handle, process, offsets: (0, 0), rollbacks, joined, ended: false })
    }

    /// Follows a process from two offsets on, waking the sandbox if it sleeps.
    pub(crate) async fn attach(handle: SandboxHandle, process: ProcessId, offsets: Offsets) -> Result<Self> {
        let lease = handle.lease().await?;
        let rollbacks = lease.rollbacks;
        let mut feed = Self { handle, process, offsets, rollbacks, joined: None, ended: false };
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

    /// Writes the process's first input and, with `close`, closes it; runs concurrently with the
    /// rest of the feed.
    pub(crate) async fn send_input(&self, input: String, close: bool) -> Result<()> {
        let Some((stream, _)) = &self.joined else { return Ok(()) };
        let write = StdinWrite { process: stream.process(), offset: Some(0), close };
        tokio::spawn(write_first(self.handle.lease().await?, write, input));
        Ok(())
    }

    async fn join(&mut self, lease: GuestLease) -> Result<()> {
        if lease.rollbacks != self.rollbacks {
            let reason =
                "the sandbox was rolled back while this ran; list its processes to see what runs now";
            return Err(AgentError::Conflict(reason.to_owned()));
        }
        let stream = lease.guest.attach(self.process, self.offsets.0, self.offsets.1).await?;
        self.joined = Some((stream, lease));
        Ok(())
    }

    /// The process's next event; `None` after its end. Can be dropped and called again.
    pub(crate) async fn next(&mut self) -> Result<Option<ProcessEvent>> {
        while !self.ended {
            let Some((stream, _)) = &mut self.joined else {
                let lease = self.handle.rejoin().await?;
                // Lost again at once: the next iteration gets the reason, or finds the sandbox
                // awake.
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
