//! Connections to the ports of one sandbox.
//!
//! HTTP/1 connections ([`crate::http1`]) wait here between requests. One is looked at when it is taken; one that the
//! guest closed is dropped then. HTTP/2 (gRPC) is one shared connection per port, with a task.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::client::conn::http2;
use hyper::upgrade::Upgraded;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pandastack_agent_client::{AgentError, CallOptions};
use pandastack_types::ErrorCode;
use pandastack_types::agent_api::TunnelQuery;
use pandastack_types::agent_api::endpoints::OpenTunnel;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::body::RequestBody;
use crate::door::{Door, Way};
use crate::limits::{DIAL_WAIT, IDLE_UPSTREAMS_MAX};

/// Idle connections older than this are not kept: guests close theirs about then.
pub(crate) const IDLE_KEPT: Duration = Duration::from_secs(60);
/// A connection that was idle for longer may be closed by its guest at the very instant of the next request: usual servers close
/// theirs after two (gunicorn) or five seconds (node, uvicorn). One that cannot be repeated then goes by a connection of its own.
pub(crate) const IDLE_SURE: Duration = Duration::from_secs(1);

/// Why a port was not reached.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DialError {
    /// Nothing listens there.
    #[error("nothing listens on the port")]
    Closed,
    /// No answer.
    #[error("the guest did not accept a connection within {} s", DIAL_WAIT.as_secs())]
    Late,
    /// Anything else.
    #[error("the guest is unreachable: {0}")]
    Failed(String),
}

/// Bytes to and from a port of a guest.
pub enum GuestStream {
    /// Straight.
    Tcp(TcpStream),
    /// Through the agent of another machine.
    Tunnel(Box<TokioIo<Upgraded>>),
}

/// Connects to a port.
pub async fn dial(way: &Way, port: u16) -> Result<GuestStream, DialError> {
    match way {
        Way::Direct(address) => {
            let dialed = tokio::time::timeout(DIAL_WAIT, TcpStream::connect((*address, port))).await;
            let stream = dialed.map_err(|_| DialError::Late)?.map_err(|error| match error.kind() {
                std::io::ErrorKind::ConnectionRefused => DialError::Closed,
                _ => DialError::Failed(error.to_string()),
            })?;
            stream.set_nodelay(true).map_err(|error| DialError::Failed(error.to_string()))?;
            Ok(GuestStream::Tcp(stream))
        }
        Way::Agent { client, sandbox, incarnation } => {
            let tunnel = OpenTunnel::new(sandbox.clone(), TunnelQuery { port });
            let options = CallOptions::on_sandbox(*incarnation, DIAL_WAIT);
            // Boxed: large, and rare.
            match Box::pin(client.upgrade(tunnel, options)).await {
                Ok((_, stream)) => Ok(GuestStream::Tunnel(Box::new(stream))),
                Err(AgentError::Answered { body, .. }) if body.code == ErrorCode::PortClosed => {
                    Err(DialError::Closed)
                }
                Err(AgentError::Timeout { .. }) => Err(DialError::Late),
                Err(error) => Err(DialError::Failed(error.to_string())),
            }
        }
    }
}

/// An HTTP/1 connection to a guest.
pub(crate) type Upstream = crate::http1::Upstream<GuestStream, RequestBody>;

#[derive(Default)]
struct PortPool {
    port: u16,
    /// The last one used is the last one here, and the first to be taken.
    idle: Vec<(Box<Upstream>, Instant)>,
    shared: Option<http2::SendRequest<RequestBody>>,
}

/// Connections by port. A sandbox has a handful of ports, so a list is the fastest map.
#[derive(Default)]
pub(crate) struct Pools(Mutex<Vec<PortPool>>);

impl Pools {
    fn lock(&self) -> MutexGuard<'_, Vec<PortPool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that still lives and was idle for no longer than that.
    pub(crate) fn take(&self, port: u16, idle_max: Duration) -> Option<Box<Upstream>> {
        loop {
            let (mut upstream, _) = {
                let mut pools = self.lock();
                let idle = &mut pools.iter_mut().find(|pool| pool.port == port)?.idle;
                let Some(newest) = idle.pop_if(|(_, since)| since.elapsed() <= idle_max) else {
                    // All others are older: a good moment to let go of those that their guest has closed.
                    idle.retain_mut(|(upstream, _)| upstream.is_silent());
                    return None;
                };
                newest
            };
            if upstream.is_silent() {
                return Some(upstream);
            }
        }
    }

    /// Keeps a connection for the next request, if it can take one.
    pub(crate) fn put(&self, port: u16, mut upstream: Box<Upstream>) {
        if !upstream.is_reusable() {
            return;
        }
        upstream.rest();
        let now = Instant::now();
        let mut pools = self.lock();
        let idle = &mut entry(&mut pools, port).idle;
        idle.push((upstream, now));
        let aged = idle.first().is_some_and(|(_, since)| now.duration_since(*since) > IDLE_KEPT);
        // Closing a connection takes a moment; not under the lock.
        let oldest = (aged || idle.len() > IDLE_UPSTREAMS_MAX).then(|| idle.remove(0));
        drop(pools);
        drop(oldest);
    }

    fn shared(&self, port: u16) -> Option<http2::SendRequest<RequestBody>> {
        let pools = self.lock();
        let shared = pools.iter().find(|pool| pool.port == port)?.shared.clone()?;
        (!shared.is_closed()).then_some(shared)
    }

    /// Closes everything idle.
    pub(crate) fn clear(&self) {
        let pools = std::mem::take(&mut *self.lock());
        drop(pools);
    }
}

fn entry(pools: &mut Vec<PortPool>, port: u16) -> &mut PortPool {
    let at = pools.iter().position(|pool| pool.port == port).unwrap_or_else(|| {
        pools.push(PortPool { port, ..PortPool::default() });
        pools.len() - 1
    });
    &mut pools[at]
}

/// A fresh HTTP/1 connection.
pub(crate) async fn connect(door: &Door, port: u16) -> Result<Box<Upstream>, DialError> {
    let stream = dial(&door.way, port).await?;
    Ok(Box::new(Upstream::new(stream)))
}

/// The shared HTTP/2 connection of a port.
pub(crate) async fn connect_shared(
    door: &Door,
    port: u16,
) -> Result<http2::SendRequest<RequestBody>, DialError> {
    if let Some(sender) = door.pools.shared(port) {
        return Ok(sender);
    }
    let stream = dial(&door.way, port).await?;
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|error| DialError::Failed(error.to_string()))?;
    let cut = door.cut.clone();
    // Ends with the guest's side, with the last sender, or with the door.
    tokio::spawn(async move {
        tokio::select! {
            ended = connection => drop(ended.inspect_err(|error| tracing::debug!(%error, "HTTP/2 upstream"))),
            () = cut.cancelled() => {}
        }
    });
    entry(&mut door.pools.lock(), port).shared = Some(sender.clone());
    Ok(sender)
}

impl AsyncRead for GuestStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            GuestStream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            GuestStream::Tunnel(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            GuestStream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            GuestStream::Tunnel(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            GuestStream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            GuestStream::Tunnel(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            GuestStream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            GuestStream::Tunnel(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            GuestStream::Tcp(stream) => stream.is_write_vectored(),
            GuestStream::Tunnel(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            GuestStream::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            GuestStream::Tunnel(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_was_idle_for_too_long_waits_for_another_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let pools = Pools::default();
        pools.put(80, Box::new(Upstream::new(GuestStream::Tcp(stream))));
        assert!(pools.take(80, Duration::ZERO).is_none());
        assert!(pools.take(80, IDLE_KEPT).is_some());
        assert!(pools.take(80, IDLE_KEPT).is_none());
    }
}
