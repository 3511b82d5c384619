//! The listener: TLS, the target database, and the session.
//!
//! ```text
//!   first byte 0x16 --> TLS at once (ALPN `postgresql`) ---------------+
//!   SSLRequest --'S'--> TLS -------------------------------------------+--> startup --> endpoint --> connect --> relay
//!   GSSENCRequest --'N'--> again        CancelRequest --> passed on    without TLS --> refused, with what to do
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use pandastack_edge::tls::{Tls, is_tls};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{Backend, ConnectError, Databases};
use crate::cancel::CancelTable;
use crate::endpoint::{Endpoint, NoEndpoint, choose, split_options};
use crate::limits::{CONNECTIONS_MAX, KEEPALIVE_COUNT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, STARTUP_WAIT};
use crate::query::SqlError;
use crate::relay::{Login, SessionOwner, relay};
use crate::startup::{Packet, Startup, StartupError, read};
use crate::startup_retry::{RetryDeadline, is_not_yet};
use crate::wire::{Fatal, read_message};

/// Name of the protocol in TLS.
pub const ALPN: &[u8] = b"postgresql";
/// Pause after the system refused a connection, so that the loop does not spin.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
/// Time for sessions to end after a stop was requested.
const STOP_WAIT: Duration = Duration::from_secs(2);

/// State shared by all listeners.
pub struct Server {
    databases: Arc<dyn Databases>,
    tls: Tls,
    cancel: Arc<CancelTable>,
    room: Arc<Semaphore>,
}

impl Server {
    /// A server of these databases. `tls` offers [`ALPN`] and nothing else.
    pub fn new(databases: Arc<dyn Databases>, tls: Tls) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        Arc::new(Self { databases, tls, cancel: Arc::default(), room })
    }

    /// Serves every database until `stop`.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        self.accept(listener, None, stop).await;
    }

    /// Serves one database until `stop`: its clients need not name the database.
    pub async fn serve_one(self: Arc<Self>, listener: TcpListener, of: Endpoint, stop: CancellationToken) {
        self.accept(listener, Some(Arc::new(of)), stop).await;
    }

    async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        of: Option<Arc<Endpoint>>,
        stop: CancellationToken,
    ) {
        let sessions = TaskTracker::new();
        let cut = CancellationToken::new();
        loop {
            let (stream, peer) = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(REFUSED_PAUSE).await;
                        continue;
                    }
                },
                () = stop.cancelled() => break,
            };
            let (server, of, cut) = (Arc::clone(&self), of.clone(), cut.clone());
            sessions.spawn(async move {
                tokio::select! {
                    () = server.connection(stream, peer, of.as_deref()) => {}
                    () = cut.cancelled() => {}
                }
            });
        }
        drop(listener);
        sessions.close();
        if tokio::time::timeout(STOP_WAIT, sessions.wait()).await.is_err() {
            tracing::info!("stopped with open sessions; closing them");
        }
        cut.cancel();
        sessions.wait().await;
    }

    async fn connection(&self, mut stream: TcpStream, peer: SocketAddr, of: Option<&Endpoint>) {
        if let Err(error) = tune(&stream) {
            tracing::debug!(%error, "cannot set options of a connection");
        }
        let Ok(_place) = Arc::clone(&self.room).try_acquire_owned() else {
            let full = Fatal::new(
                "53300",
                format!("the limit of {CONNECTIONS_MAX} connections to this edge is reached"),
            );
            return refuse(&mut stream, &full.hint("close some, or try again shortly")).await;
        };
        match tokio::time::timeout(STARTUP_WAIT, self.secure(stream)).await {
            Err(_) => tracing::debug!(%peer, "a client did not send its startup packet in time"),
            Ok(Err(error)) => tracing::debug!(%peer, %error, "a connection ended before its session"),
            Ok(Ok(None)) => {}
            Ok(Ok(Some((stream, startup)))) => self.session(stream, startup, of).await,
        }
    }

    /// Reads up to the startup parameters, inside TLS. `None` if the session is already complete.
    async fn secure(
        &self,
        mut stream: TcpStream,
    ) -> Result<Option<(TlsStream<TcpStream>, Startup)>, StartupError> {
        let secure = if is_tls(&stream, STARTUP_WAIT).await? {
            let mut secure = self.tls.accept(stream).await?;
            if secure.get_ref().1.alpn_protocol() != Some(ALPN) {
                let missing = Fatal::new("08P01", "direct TLS requires the ALPN protocol `postgresql`");
                refuse(&mut secure, &missing.hint("use a PostgreSQL client with sslnegotiation=direct"))
                    .await;
                return Ok(None);
            }
            secure
        } else {
            match self.negotiate(&mut stream).await? {
                true => self.tls.accept(stream).await?,
                false => return Ok(None),
            }
        };
        let mut secure = secure;
        match read(&mut secure).await {
            Ok(Packet::Startup(startup)) => Ok(Some((secure, startup))),
            Ok(Packet::Cancel { process, secret }) => {
                self.cancel.cancel((process, secret), self.databases.as_ref()).await;
                // The client waits for the end, and treats an end without a TLS notice as an error.
                // The client may be gone.
                let _ = secure.shutdown().await;
                Ok(None)
            }
            Ok(Packet::Tls | Packet::Gss) => {
                refuse(&mut secure, &Fatal::new("08P01", "the connection is already encrypted")).await;
                Ok(None)
            }
            Err(error) => refuse_startup(&mut secure, error).await,
        }
    }

    /// The part before TLS; returns whether TLS starts now.
    async fn negotiate(&self, stream: &mut TcpStream) -> Result<bool, StartupError> {
        let mut gss_refused = false;
        loop {
            match read(stream).await {
                Ok(Packet::Tls) => {
                    stream.write_all(b"S").await?;
                    return Ok(true);
                }
                Ok(Packet::Gss) if !gss_refused => {
                    gss_refused = true;
                    stream.write_all(b"N").await?;
                }
                Ok(Packet::Gss) => return Err(StartupError::Malformed),
                Ok(Packet::Cancel { process, secret }) => {
                    self.cancel.cancel((process, secret), self.databases.as_ref()).await;
                    return Ok(false);
                }
                Ok(Packet::Startup(_)) => {
                    let plain = Fatal::new("28000", "this server accepts encrypted connections only");
                    refuse(stream, &plain.hint("add sslmode=require to the connection string")).await;
                    return Ok(false);
                }
                Err(error) => return refuse_startup(stream, error).await.map(|_: Option<()>| false),
            }
        }
    }

    async fn session(&self, mut client: TlsStream<TcpStream>, mut startup: Startup, of: Option<&Endpoint>) {
        let host = client.get_ref().1.server_name().map(str::to_owned);
        let endpoint = match endpoint_of(&mut startup, host.as_deref(), of, self.databases.domain()) {
            Ok(endpoint) => endpoint,
            Err(fatal) => return refuse(&mut client, &fatal).await,
        };
        run_session(client, startup, &endpoint, self.databases.as_ref(), &self.cancel).await;
    }
}

/// Serves a session of a client that named its database, to its end.
pub(crate) async fn run_session(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    startup: Startup,
    endpoint: &Endpoint,
    databases: &dyn Databases,
    cancel: &Arc<CancelTable>,
) {
    if let Some(negotiation) = startup.negotiation()
        && let Err(error) = client.write_all(&negotiation).await
    {
        return tracing::debug!(%error, "a session was interrupted before it started");
    }
    let mut early = BytesMut::new();
    let begun = tokio::select! {
        begun = begin(&startup, endpoint, databases) => begun,
        () = disconnected(&mut client, &mut early) => return tracing::debug!("a client disconnected before its session started"),
    };
    match begun {
        Ok((backend, first)) => {
            relay(client, backend, SessionOwner { endpoint, databases }, early, Login { first, cancel })
                .await;
        }
        Err(error) => refuse(&mut client, &unreachable(error)).await,
    }
}

/// Disables Nagle's algorithm, so that small responses do not wait for delayed acknowledgements,
/// and enables keepalive, so that the locks of a vanished client are released. Keepalive by the
/// guest would count as use and keep it awake.
fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?)
}

/// Finds the requested database, with `port` if the port belongs to one; removes the name from the
/// startup's options.
pub(crate) fn endpoint_of(
    startup: &mut Startup,
    host: Option<&str>,
    port: Option<&Endpoint>,
    domain: Option<&str>,
) -> Result<Endpoint, Fatal> {
    let named = take_named(startup);
    choose(host, named.as_deref(), port, domain).map_err(|none| {
        let code = match none {
            NoEndpoint::Unnamed => "08004",
            NoEndpoint::Differ { .. } => "08P01",
            NoEndpoint::OtherPort(_) => {
                let hint = "use the port of that database; `pandastack db url` prints it";
                return Fatal::new("08P01", none.to_string()).hint(hint);
            }
        };
        Fatal::new(code, none.to_string()).hint(format!(
            "connect to the host name <database id>.{} with a client that sends it (SNI), or add \
             options=endpoint%3D<database id> to the connection string",
            domain.unwrap_or("pg.<domain>")
        ))
    })
}

/// Removes the database's name from the startup's options, and returns it.
pub(crate) fn take_named(startup: &mut Startup) -> Option<String> {
    let (options, named) = split_options(startup.parameters.get("options").map_or("", String::as_str));
    match options.is_empty() {
        true => drop(startup.parameters.remove("options")),
        false => drop(startup.parameters.insert("options".to_owned(), options)),
    }
    named
}

pub(crate) fn unreachable(error: ConnectError) -> Fatal {
    let message = error.to_string();
    match error {
        ConnectError::Unknown(_) => Fatal::new("3D000", message)
            .hint("`pandastack db list` shows the databases; the host name begins with the id"),
        ConnectError::Refused(_) => Fatal::new("28000", message)
            .hint("`pandastack app attach <app> <database>` attaches one; then deploy or restart the app"),
        ConnectError::NotReady(_) => Fatal::new("57P03", message).hint("`pandastack db get` shows its state"),
        ConnectError::Unavailable(_) => Fatal::new("08006", message).hint("try again shortly"),
    }
}

/// Connects and sends the startup, again while the server takes no sessions. Returns the server's first
/// message too.
async fn begin(
    startup: &Startup,
    endpoint: &Endpoint,
    databases: &dyn Databases,
) -> Result<(Backend, (u8, Vec<u8>)), ConnectError> {
    let (packet, patience) = (startup.encode(), RetryDeadline::new());
    loop {
        let mut backend = databases.connect(endpoint).await?;
        backend.in_use.set_busy(true);
        let said = first_response(&mut backend, &packet).await;
        let is_not_yet = match &said {
            None => true,
            Some((kind, body)) => *kind == b'E' && is_not_yet(&SqlError::parse(body).code),
        };
        if is_not_yet && patience.is_left().await {
            tracing::debug!(database = endpoint.database, "retrying a startup");
            continue;
        }
        let hung_up =
            || format!("the server of database `{}` closed the connection during login", endpoint.database);
        return said.map(|said| (backend, said)).ok_or_else(|| ConnectError::Unavailable(hung_up()));
    }
}

/// The server's first response to a startup; `None` if it disconnected before, or its machine
/// stopped.
async fn first_response(backend: &mut Backend, packet: &[u8]) -> Option<(u8, Vec<u8>)> {
    let stream = &mut backend.stream;
    let said = async {
        stream.write_all(packet).await?;
        stream.flush().await?;
        read_message(stream).await
    };
    tokio::select! {
        said = said => said.ok(),
        () = backend.cut.cancelled() => None,
    }
}

/// Waits until a waiting client disconnects. Keeps bytes that the client sends in `early`; after that it
/// never returns, because nothing else reads.
pub(crate) async fn disconnected(client: &mut (impl AsyncRead + Unpin), early: &mut BytesMut) {
    if client.read_buf(early).await.is_ok_and(|bytes| bytes > 0) {
        std::future::pending::<()>().await;
    }
}

/// Sends the reason, and closes the connection so that the client can read it.
pub(crate) async fn refuse(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), fatal: &Fatal) {
    tracing::debug!(code = %fatal.code, message = fatal.message, "refused a connection");
    // The client may be gone.
    let _ = stream.write_all(&fatal.encode()).await;
    let _ = stream.shutdown().await;
}

pub(crate) async fn refuse_startup<T>(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    error: StartupError,
) -> Result<Option<T>, StartupError> {
    if !matches!(error, StartupError::Ended(_)) {
        refuse(stream, &Fatal::new("08P01", error.to_string())).await;
    }
    Err(error)
}
