//! Writing to a process's standard input across lost connections.

use pandastack_guest_proto::client::ClientError;
use pandastack_guest_proto::message::{ProcessId, StdinWrite};

use super::lookup::{named, process_info};
use crate::error::Result;
use crate::sandbox::handle::{GuestLease, SandboxHandle};

/// One writer of a process's input.
pub(crate) struct Input {
    handle: SandboxHandle,
    lease: GuestLease,
    process: ProcessId,
    /// Bytes that the process had taken when this writer last knew.
    taken: u64,
}

impl Input {
    pub(crate) async fn open(handle: SandboxHandle, process: ProcessId) -> Result<Self> {
        let lease = handle.lease().await?;
        let taken = process_info(&lease.guest, process).await?.stdin_offset;
        Ok(Self { handle, lease, process, taken })
    }

    /// Writes, as fast as the process reads. Bytes accepted before a connection broke are not
    /// written again.
    pub(crate) async fn write(&mut self, bytes: &[u8], close: bool) -> Result<()> {
        let start = self.taken;
        let mut rest = bytes;
        loop {
            match self.try_write(rest, close).await {
                Ok(taken) => {
                    self.taken = taken;
                    return Ok(());
                }
                Err(ClientError::Disconnected { .. }) => {
                    self.lease = self.handle.rejoin().await?;
                    self.taken = process_info(&self.lease.guest, self.process).await?.stdin_offset;
                    let taken = usize::try_from(self.taken.saturating_sub(start)).unwrap_or(usize::MAX);
                    rest = &bytes[taken.min(bytes.len())..];
                    if rest.is_empty() && !close {
                        return Ok(());
                    }
                }
                Err(error) => return Err(named(error, self.process)),
            }
        }
    }

    async fn try_write(&self, bytes: &[u8], close: bool) -> Result<u64, ClientError> {
        let write = StdinWrite { process: self.process, offset: None, close };
        let mut writer = self.lease.guest.open_stdin(write).await?;
        writer.write(bytes).await?;
        Ok(writer.finish().await?.offset)
    }
}

/// Writes a first input as fast as the process reads it. Ends with the process or the connection;
/// followers of the process learn of both.
pub(super) async fn write_first(lease: GuestLease, write: StdinWrite, input: String) {
    let process = write.process;
    let written = async {
        let mut writer = lease.guest.open_stdin(write).await?;
        writer.write(input.as_bytes()).await?;
        writer.finish().await
    };
    if let Err(error) = written.await {
        tracing::debug!(error = %named(error, process), "the first input was not accepted completely");
    }
}
