//! The address at which a host serves other hosts: TLS and, where the policy still allows it, plain HTTP.
//!
//! Must hold: a slow or silent client delays no other. Handshakes run beside each other, within a limit and a
//! deadline.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use pandastack_types::host_identity::HostIdentity;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::cut::LinkStream;
use crate::membership::Memberships;
use crate::tls::peer_of;

/// Longest time for a client to send its first byte, and to shake hands.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// Longest time for a refused client to close its side.
const REFUSED_WAIT: Duration = Duration::from_secs(2);
/// Handshakes at the same time. More connections wait in the kernel's queue.
const HANDSHAKES_MAX: usize = 256;
/// Pause after a failed accept, such as one without a free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);
/// First byte of a TLS connection: a handshake record. No HTTP method starts with it.
const HANDSHAKE_RECORD: u8 = 0x16;

/// The other side of a request between hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A process on this machine, over a socket that only control's users can open.
    Local,
    /// A plain connection over TCP, which proves nothing.
    Plain(SocketAddr),
    /// TLS without a certificate: a host that has yet to join.
    Stranger(SocketAddr),
    /// A member.
    Member(SocketAddr, HostIdentity),
}

impl Connected<IncomingStream<'_, LinkListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, LinkListener>) -> Self {
        stream.remote_addr().clone()
    }
}

/// Decides about new connections.
pub trait LinkPolicy: Send + Sync + 'static {
    /// TLS; `None` while this host has no certificate.
    fn tls(&self) -> Option<TlsAcceptor>;
    /// Whether plain connections are let in.
    fn allows_plain(&self) -> bool;
    /// The members.
    fn memberships(&self) -> &Arc<Memberships>;
}

/// Accepts connections for [`axum::serve`].
pub struct LinkListener {
    local: SocketAddr,
    ready: mpsc::Receiver<(LinkStream, Peer)>,
    accepting: AbortHandle,
}

impl std::fmt::Debug for LinkListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LinkListener({})", self.local)
    }
}

impl LinkListener {
    /// Accepts connections of a listener until this is dropped.
    pub fn new(listener: TcpListener, policy: Arc<dyn LinkPolicy>) -> io::Result<Self> {
        let local = listener.local_addr()?;
        let (ready, receiver) = mpsc::channel(1);
        let accepting = tokio::spawn(accept_all(listener, policy, ready)).abort_handle();
        Ok(Self { local, ready: receiver, accepting })
    }
}

impl Drop for LinkListener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Listener for LinkListener {
    type Io = LinkStream;
    type Addr = Peer;

    async fn accept(&mut self) -> (LinkStream, Peer) {
        match self.ready.recv().await {
            Some(ready) => ready,
            // The task ends with this listener only.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer::Plain(self.local))
    }
}

async fn accept_all(
    listener: TcpListener,
    policy: Arc<dyn LinkPolicy>,
    ready: mpsc::Sender<(LinkStream, Peer)>,
) {
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if handshakes.len() < HANDSHAKES_MAX => match accepted {
                Ok((stream, address)) => {
                    handshakes.spawn(shake_hands(stream, address, Arc::clone(&policy)));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(done) = handshakes.join_next() => match done {
                Ok(Ok(connection)) => if ready.send(connection).await.is_err() {
                    return;
                },
                Ok(Err(error)) => tracing::debug!(%error, "refused a connection"),
                Err(error) => tracing::error!(%error, "a handshake failed"),
            },
        }
    }
}

async fn shake_hands(
    stream: TcpStream,
    address: SocketAddr,
    policy: Arc<dyn LinkPolicy>,
) -> io::Result<(LinkStream, Peer)> {
    // Small answers must not wait for the client's delayed acknowledgement.
    stream.set_nodelay(true)?;
    let mut first = [0];
    let read = timeout(HANDSHAKE_WAIT, stream.peek(&mut first)).await??;
    let refused = |why: &str| io::Error::new(io::ErrorKind::ConnectionRefused, format!("{address}: {why}"));
    if read == 0 {
        return Err(refused("it was closed"));
    }
    if first[0] != HANDSHAKE_RECORD {
        if policy.allows_plain() {
            return Ok((LinkStream::plain(stream), Peer::Plain(address)));
        }
        refuse_plain(stream).await?;
        return Err(refused("plain connections are not accepted; use https://"));
    }
    let acceptor = policy.tls().ok_or_else(|| refused("this host has no certificate"))?;
    let stream = timeout(HANDSHAKE_WAIT, acceptor.accept(stream)).await??;
    let session = stream.get_ref().1;
    if session.peer_certificates().is_none() {
        return Ok((LinkStream::tls(stream, None), Peer::Stranger(address)));
    }
    let identity = peer_of(session).ok_or_else(|| refused("its certificate names no host"))?;
    let Some(admitted) = policy.memberships().admit(&identity) else {
        tracing::warn!(%identity, %address, "refused the certificate of a host that is not a member");
        return Err(refused("the host is not a member"));
    };
    Ok((LinkStream::tls(stream, Some(admitted)), Peer::Member(address, identity)))
}

/// Answers a plain request without reading it, so that the sender learns the reason.
async fn refuse_plain(mut stream: TcpStream) -> io::Result<()> {
    let body = concat!(
        r#"{"error":"this host accepts hosts with a certificate only; join this host with a token of "#,
        r#"`pandastack host token`, and use https://","code":"unauthorized"}"#
    );
    let head = "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\nconnection: close";
    let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    timeout(HANDSHAKE_WAIT, stream.write_all(answer.as_bytes())).await??;
    stream.shutdown().await?;
    // Closing a connection with unread bytes would take the answer away.
    let mut rest = [0; 4096];
    let drained = async {
        while stream.read(&mut rest).await? > 0 {}
        io::Result::Ok(())
    };
    timeout(REFUSED_WAIT, drained).await?
}
