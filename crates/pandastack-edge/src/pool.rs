//! Connections to the ports of one sandbox.
//!
//! HTTP/1 connections ([`crate::http1`]) wait here between requests. One is checked when it is taken, and
//! dropped if the guest has closed it. HTTP/2 (gRPC) is one shared connection per port, with a task.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_util::sync::CancellationToken;

use crate::body::RequestBody;
use crate::connector::{Connector, DialError};
use crate::guest_stream::GuestStream;
use crate::limits::IDLE_UPSTREAMS_MAX;

/// Idle connections older than this are not kept: guests close theirs about then.
pub(crate) const IDLE_KEPT: Duration = Duration::from_secs(60);
/// A guest may close a connection that was idle for longer at the very instant of the next request:
/// usual servers close theirs after two (gunicorn) or five seconds (node, uvicorn). A request that
/// cannot be repeated then uses a new connection.
pub(crate) const IDLE_SURE: Duration = Duration::from_secs(1);

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
                    // The remaining connections are older: drop those that their guest has closed.
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
        upstream.prepare_reuse();
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

    /// The shared HTTP/2 connection of a port, opened on first use. It ends when `cut` is
    /// cancelled.
    pub(crate) async fn connect_shared(
        &self,
        connector: &Connector,
        port: u16,
        cut: &CancellationToken,
    ) -> Result<http2::SendRequest<RequestBody>, DialError> {
        if let Some(sender) = self.shared(port) {
            return Ok(sender);
        }
        let stream = connector.dial(port).await?;
        let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(|error| DialError::Failed(error.to_string()))?;
        let cut = cut.clone();
        // Ends with the guest's side, with the last sender, or with the cut.
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => {
                    drop(ended.inspect_err(|error| tracing::debug!(%error, "HTTP/2 upstream")));
                }
                () = cut.cancelled() => {}
            }
        });
        entry(&mut self.lock(), port).shared = Some(sender.clone());
        Ok(sender)
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

/// Opens an HTTP/1 connection.
pub(crate) async fn connect(connector: &Connector, port: u16) -> Result<Box<Upstream>, DialError> {
    let stream = connector.dial(port).await?;
    Ok(Box::new(Upstream::new(stream)))
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn a_connection_idle_past_the_limit_stays_pooled() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let pools = Pools::default();
        pools.put(80, Box::new(Upstream::new(GuestStream::Tcp(stream))));
        assert!(pools.take(80, Duration::ZERO).is_none());
        assert!(pools.take(80, IDLE_KEPT).is_some());
        assert!(pools.take(80, IDLE_KEPT).is_none());
    }
}
