//! Streams for edges: the grant of a sandbox, and tunnels to its ports for edges that cannot reach
//! its address.

use std::time::Duration;

use axum::http::HeaderValue;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use pandastack_types::agent_api::endpoints::{OpenGrant, OpenTunnel};
use pandastack_types::agent_api::{GrantProtocol, TunnelProtocol};
use pandastack_types::{chain, grant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::endpoint::{SandboxCall, UpgradeResponse};
use crate::error::{AgentError, Result};
use crate::sandbox::{ActivityGuard, EdgeGrant};

/// Longest time for a guest to accept a connection. It is on this machine; only an overloaded one
/// takes longer.
const DIAL_WAIT: Duration = Duration::from_secs(5);
/// Interval at which the agent checks that a guest whose edge has nothing more to send is still
/// there.
const CHECK_AFTER: Duration = Duration::from_secs(10);

/// Wakes the sandbox if requested, and streams changes of its state to the edge.
pub(super) async fn grant(mut call: SandboxCall<OpenGrant>) -> Result<UpgradeResponse<GrantProtocol>> {
    let (upgrade, mut switching) = call.upgrade()?;
    let end = call.sandbox.grant(call.endpoint.query.wake.unwrap_or(true)).await?;
    let address = HeaderValue::from_str(&end.address.to_string());
    let address = address.map_err(|error| AgentError::Launch(error.to_string()))?;
    switching.response.headers_mut().insert(grant::ADDRESS_HEADER, address);
    call.host.tasks.spawn(serve_grant(upgrade, end, call.host.shutdown.clone()));
    Ok(switching)
}

/// Bytes to and from a port of the guest. The caller holds a grant, which keeps the guest awake, and
/// ends its side of this with it.
pub(super) async fn tunnel(mut call: SandboxCall<OpenTunnel>) -> Result<UpgradeResponse<TunnelProtocol>> {
    let (upgrade, switching) = call.upgrade()?;
    let SandboxCall { host, sandbox, endpoint, .. } = call;
    let guest = dial(&sandbox, endpoint.query.port).await?;
    let shutdown = host.shutdown.clone();
    let address = sandbox.view().guest_ip;
    let is_there = move || sandbox.runs_at(address.as_deref());
    host.tasks.spawn(async move {
        let copy = async {
            let edge = TokioIo::new(upgrade.await.map_err(std::io::Error::other)?);
            relay(edge, guest, is_there, CHECK_AFTER).await
        };
        tokio::select! {
            ended = copy => drop(ended.inspect_err(|error| tracing::debug!(
                error = %chain(&error),
                "a tunnel broke"
            ))),
            () = shutdown.cancelled() => {}
        }
    });
    Ok(switching)
}

/// Passes bytes until both sides ended or one broke. After the edge's last byte the guest may still
/// answer, for as long as its machine exists. A stopped machine sends no last byte, and its address
/// becomes another's.
async fn relay(
    edge: impl AsyncRead + AsyncWrite,
    guest: impl AsyncRead + AsyncWrite,
    is_there: impl Fn() -> bool,
    look_after: Duration,
) -> std::io::Result<()> {
    let (mut from_edge, mut to_edge) = tokio::io::split(edge);
    let (mut from_guest, mut to_guest) = tokio::io::split(guest);
    let left = CancellationToken::new();
    let up = async {
        tokio::io::copy(&mut from_edge, &mut to_guest).await?;
        left.cancel();
        to_guest.shutdown().await
    };
    let down = async {
        tokio::io::copy(&mut from_guest, &mut to_edge).await?;
        to_edge.shutdown().await
    };
    let gone = async {
        left.cancelled().await;
        while is_there() {
            tokio::time::sleep(look_after).await;
        }
    };
    tokio::select! {
        ended = async { tokio::try_join!(up, down) } => ended.map(drop),
        () = gone => Ok(()),
    }
}

async fn dial(handle: &crate::sandbox::handle::SandboxHandle, port: u16) -> Result<TcpStream> {
    let address = handle.view().guest_ip;
    let address = address.ok_or_else(|| AgentError::Conflict("the sandbox is not awake".to_owned()))?;
    let dialed = tokio::time::timeout(DIAL_WAIT, TcpStream::connect(format!("{address}:{port}"))).await;
    let stream = match dialed {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            return Err(AgentError::PortClosed(port));
        }
        Ok(Err(error)) => return Err(AgentError::Launch(format!("port {port} is not responding: {error}"))),
        Err(_) => return Err(AgentError::Launch(format!("port {port} did not respond in time"))),
    };
    // Tunnels carry small messages as often as bulk.
    stream.set_nodelay(true).map_err(|error| AgentError::Launch(error.to_string()))?;
    Ok(stream)
}

/// Follows an edge until it has drained or disconnected, or this agent stops. Dropping `end` closes
/// the grant.
async fn serve_grant(upgrade: OnUpgrade, end: EdgeGrant, shutdown: CancellationToken) {
    let stream = match upgrade.await {
        Ok(stream) => stream,
        Err(error) => {
            return tracing::debug!(
                error = %chain(&error),
                "an edge disconnected before its grant opened"
            );
        }
    };
    let mut stream = TokioIo::new(stream);
    // The edge requests a grant because it has a request to send.
    let mut busy: Option<ActivityGuard> = Some(end.activity.begin());
    let mut told = false;
    loop {
        let byte = tokio::select! {
            byte = stream.read_u8() => byte,
            () = end.hold.cancelled(), if !told => {
                told = true;
                match stream.write_all(&[grant::HOLD]).await {
                    Ok(()) => continue,
                    Err(_) => return,
                }
            }
            () = shutdown.cancelled() => return,
        };
        match byte {
            Ok(grant::BUSY) => drop(busy.replace(end.activity.begin())),
            Ok(grant::IDLE) => drop(busy.take()),
            // Drained, gone, or an edge of another mind: in each case the grant is closed.
            Ok(_) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::io::duplex;
    use tokio::time::timeout;

    use super::*;

    /// Timeout after which the step counts as hung.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_guest_may_respond_after_the_edge_half_closes() {
        let (mut edge, edge_side) = duplex(64);
        let (mut guest, guest_side) = duplex(64);
        let is_awake = Arc::new(AtomicBool::new(true));
        let awake = Arc::clone(&is_awake);
        let is_there = move || awake.load(Ordering::SeqCst);
        let carried = tokio::spawn(relay(edge_side, guest_side, is_there, Duration::from_millis(10)));
        edge.write_all(b"all").await.unwrap();
        edge.shutdown().await.unwrap();
        let mut asked = Vec::new();
        timeout(PATIENCE, guest.read_to_end(&mut asked)).await.expect("the end of it").unwrap();
        assert_eq!(asked, b"all");
        guest.write_all(b"late").await.unwrap();
        let mut answer = [0; 4];
        timeout(PATIENCE, edge.read_exact(&mut answer)).await.expect("the answer").unwrap();
        assert_eq!(&answer, b"late");
        is_awake.store(false, Ordering::SeqCst);
        timeout(PATIENCE, carried).await.expect("nobody waits for who is gone").unwrap().unwrap();
        assert_eq!(edge.read(&mut answer).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_tunnel_ends_when_both_sides_close() {
        let (mut edge, edge_side) = duplex(64);
        let (mut guest, guest_side) = duplex(64);
        let carried = tokio::spawn(relay(edge_side, guest_side, || true, Duration::from_millis(10)));
        guest.write_all(b"hello").await.unwrap();
        guest.shutdown().await.unwrap();
        let mut said = Vec::new();
        timeout(PATIENCE, edge.read_to_end(&mut said)).await.expect("the end of it").unwrap();
        assert_eq!(said, b"hello");
        drop(edge);
        timeout(PATIENCE, carried).await.expect("both ended").unwrap().unwrap();
    }
}
