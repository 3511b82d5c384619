//! Connections to the server of a machine that is awake. They neither wake it nor, if they only follow
//! its log, keep it awake.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pandastack_backup::ConnectError;
use pandastack_edge::{EdgeError, GuestStream, Permit};
use pandastack_postgres::{ByteStream, Listener};
use pandastack_store::SandboxRecord;
use pandastack_types::{SandboxId, SandboxState, chain};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::revive;
use crate::service::ManagedDatabases;
use crate::spec::machine_of;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The log, for as long as the machine is awake.
    Log,
    /// A base backup, for which it stays awake.
    Base,
}

/// Connects, unless the machine sleeps.
pub(crate) async fn connect(
    databases: &Arc<ManagedDatabases>,
    sandbox: &SandboxId,
    purpose: Purpose,
) -> Result<Box<dyn ByteStream>, ConnectError> {
    let failed = |why: &str| ConnectError::Failed(why.to_owned());
    let machine = databases.machines.find(None, sandbox).await.map_err(|error| failed(&error.to_string()))?;
    match machine.state {
        SandboxState::Running => {}
        SandboxState::Hibernated | SandboxState::Paused => return Err(ConnectError::Asleep),
        _ => return Err(failed("its machine is not running")),
    }
    let port = Listener::Direct.port();
    // Falling asleep takes a while, during which the record is still marked running.
    let connected = databases.edge.connect_awake(sandbox, port).await;
    if matches!(connected, Err(EdgeError::PortClosed)) {
        restart(databases, &machine);
    }
    let connected = connected.map_err(|error| failed(&error.sentence(sandbox, port)))?;
    let (stream, mut permit) = connected.ok_or(ConnectError::Asleep)?;
    permit.set_busy(purpose == Purpose::Base);
    let end = if purpose == Purpose::Base { permit.cut() } else { permit.closing() };
    Ok(Box::new(EndingStream { stream, end: Box::pin(end.cancelled_owned()), _permit: permit }))
}

/// Starts the stopped server of a running machine now, because the next client may not connect for
/// a while.
fn restart(databases: &Arc<ManagedDatabases>, machine: &SandboxRecord) {
    let Some(id) = machine_of(machine) else { return };
    let (databases, sandbox) = (Arc::clone(databases), machine.id.clone());
    databases.background.tasks.clone().spawn(async move {
        if let Err(error) = revive::restart(&databases, &id, &sandbox).await {
            tracing::debug!(
                database = %id, error = %chain(&error),
                "cannot connect to a database; retrying later"
            );
        }
    });
}

/// A stream that ends when its machine is about to stop.
struct EndingStream {
    stream: GuestStream,
    end: Pin<Box<WaitForCancellationFutureOwned>>,
    _permit: Permit,
}

impl AsyncRead for EndingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for EndingStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
