//! The listener: accepts connections and dispatches requests.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use crate::app_route::AppRoute;
use crate::body::{RequestBody, ResponseBody};
use crate::client_connections::ClientConnections;
use crate::client_stream::{ClientStream, WriteClock, tune};
use crate::destination::{Destination, destination};
use crate::edge::Edge;
use crate::error::EdgeError;
use crate::head_clock::HeadClock;
use crate::headers::{Client, name_host};
use crate::in_flight::{CountedBody, InFlight};
use crate::limits::{
    BODY_WAIT, HEAD_BYTES_MAX, HEAD_WAIT, PING_AFTER, PING_WAIT, SEND_WAIT, STOP_WAIT,
    STREAMS_PER_CONNECTION_MAX,
};
use crate::plain;
use crate::tls::{Tls, is_tls};

/// Time for a client to read the rest of its last response after the connection's shutdown began,
/// in multiples of the wait for a head.
const LAST_ANSWER_WAITS: u32 = 10;
/// Pause after the system refused a connection (no descriptors left), so that the loop does not spin.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// One listen address for the API and for sandboxes.
pub struct Server {
    /// Requests to sandboxes.
    pub edge: Arc<Edge>,
    /// Everything else.
    pub api: Router,
    /// Ports of every sandbox that the platform answers in the guest's place.
    pub own_ports: Option<OwnPorts>,
    /// Longest time for a head to arrive, and for a kept connection to stay silent.
    pub head_wait: Duration,
    /// Longest silence of a client within a body to a sandbox.
    pub body_wait: Duration,
    /// Longest time for which a client may take nothing of an answer.
    pub send_wait: Duration,
    /// TLS, on the same address: a connection's first byte tells it from plain HTTP.
    pub tls: Option<Tls>,
}

/// Ports of every sandbox behind which the platform stands, not the guest. Requests carry their
/// [`crate::Target`] as an extension.
#[derive(Clone)]
pub struct OwnPorts {
    /// Port numbers.
    pub ports: &'static [u16],
    /// Router that answers their requests.
    pub router: Router,
}

impl Server {
    /// With the usual patience, and all ports the guest's.
    pub fn new(edge: Arc<Edge>, api: Router) -> Self {
        Self {
            edge,
            api,
            own_ports: None,
            head_wait: HEAD_WAIT,
            body_wait: BODY_WAIT,
            send_wait: SEND_WAIT,
            tls: None,
        }
    }

    /// With ports that the platform answers.
    pub fn with_own_ports(self, own_ports: OwnPorts) -> Self {
        Self { own_ports: Some(own_ports), ..self }
    }

    /// With TLS, if there is any.
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        Self { tls, ..self }
    }

    /// Serves until `stop`, then lets requests in flight finish within [`STOP_WAIT`].
    ///
    /// Boxed, so that the edge is compiled in this crate and not in its callers.
    pub fn serve(
        self,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.accept(listener, stop))
    }

    async fn accept(self, listener: TcpListener, stop: CancellationToken) {
        let server = Arc::new(self);
        let connections = TaskTracker::new();
        let clients = Arc::new(ClientConnections::default());
        let port = listener.local_addr().map_or(0, |address| address.port());
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
            let Some(slot) = clients.enter(peer.ip()) else { continue };
            let (server, stop) = (Arc::clone(&server), stop.clone());
            connections.spawn(async move {
                connection(server, stream, peer, port, stop).await;
                drop(slot);
            });
        }
        drop(listener);
        connections.close();
        if tokio::time::timeout(STOP_WAIT, connections.wait()).await.is_err() {
            tracing::info!("stopped with responses in flight; closing them");
        }
    }

    /// Everything except the path to a sandbox is boxed: the library moves this whole future with
    /// every request.
    async fn answer(&self, request: Request<Incoming>, client: &Client) -> Response<ResponseBody> {
        match destination(request.uri(), request.headers()) {
            Destination::Sandbox(target) => match &self.own_ports {
                Some(own) if own.ports.contains(&target.port) => {
                    let mut request = request;
                    request.extensions_mut().insert(target);
                    request.extensions_mut().insert(client.clone());
                    Box::pin(call_router(&own.router, request)).await
                }
                _ => {
                    let (mut parts, body) = request.into_parts();
                    let body = RequestBody::of(body, self.body_wait);
                    self.edge.serve(&target, &mut parts, body, client).await
                }
            },
            Destination::Named(name) => Box::pin(self.answer_named(&name, request, client)).await,
            Destination::Api => Box::pin(self.answer_api(request, client)).await,
            Destination::Malformed(what) => {
                EdgeError::Malformed(what.to_owned()).answer(None, request.headers())
            }
        }
    }

    /// A name that is an app's, or else one of the API's.
    async fn answer_named(
        &self,
        name: &str,
        request: Request<Incoming>,
        client: &Client,
    ) -> Response<ResponseBody> {
        match self.edge.app_route(name).await {
            Ok(Some(AppRoute::Serving(instances))) => {
                let (mut parts, body) = request.into_parts();
                let body = RequestBody::of(body, self.body_wait);
                self.edge.serve_app(&instances, &mut parts, body, client).await
            }
            Ok(Some(AppRoute::NotServing(why))) => EdgeError::NotServing(why).answer(None, request.headers()),
            Ok(Some(AppRoute::Suspended(why))) => EdgeError::Suspended(why).answer(None, request.headers()),
            Ok(None) => self.answer_api(request, client).await,
            Err(error) => error.answer(None, request.headers()),
        }
    }

    async fn answer_api(&self, mut request: Request<Incoming>, client: &Client) -> Response<ResponseBody> {
        request.extensions_mut().insert(client.clone());
        // The API builds its own addresses from this header; clients over TLS need not send it.
        if client.is_secure() {
            request.headers_mut().insert("x-forwarded-proto", HeaderValue::from_static("https"));
        }
        call_router(&self.api, request).await
    }
}

async fn call_router(router: &Router, mut request: Request<Incoming>) -> Response<ResponseBody> {
    // The API builds its own addresses from this header, too.
    let uri = request.uri().clone();
    name_host(&uri, request.headers_mut());
    let answered = router.clone().oneshot(request.map(axum::body::Body::new)).await;
    answered.unwrap_or_else(|never| match never {}).map(ResponseBody::Api)
}

async fn connection(
    server: Arc<Server>,
    stream: TcpStream,
    peer: SocketAddr,
    port: u16,
    stop: CancellationToken,
) {
    if let Err(error) = tune(&stream) {
        tracing::debug!(%error, "cannot set options of a connection");
    }
    let client = |is_secure| Client::new(peer.ip(), port, is_secure);
    let is_secure = match &server.tls {
        None => Ok(false),
        Some(_) => is_tls(&stream, server.head_wait).await,
    };
    let stream = ClientStream::new(stream);
    let writes = stream.clock();
    match (is_secure, server.tls.clone()) {
        (Ok(true), Some(tls)) => match tls.accept(stream).await {
            Ok(stream) => requests(server, stream, writes, client(true), stop).await,
            Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
        },
        (Ok(_), _) => requests(server, stream, writes, client(false), stop).await,
        (Err(error), _) => tracing::debug!(%error, "a connection sent nothing"),
    }
}

/// Serves plain requests to sandboxes; from the first other request on, the library serves the
/// connection.
async fn requests<S>(
    server: Arc<Server>,
    stream: S,
    writes: Arc<WriteClock>,
    client: Client,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    if let Some(rest) = plain::serve(&server, stream, &writes, &client, &stop).await {
        // Boxed: it is large, and most connections never get here.
        Box::pin(http(server, TokioIo::new(rest), writes, client, stop)).await;
    }
}

/// State shared by the requests of one connection.
struct Shared {
    server: Arc<Server>,
    client: Client,
    asked: AtomicBool,
    in_flight: Arc<InFlight>,
    clock: HeadClock,
    writes: Arc<WriteClock>,
}

/// The action for a connection when its timer fires.
enum TimerAction {
    /// Close it: the client is too slow.
    Over,
    /// The connection was idle for the longest allowed time. It is shut down gracefully, so that a
    /// request in flight is either answered or known to be unprocessed. A slow reader still gets
    /// the rest of the last response.
    Quiet,
    /// Check again at this time.
    Again(Instant),
}

impl Shared {
    /// Decides how to handle a connection; `is_told`: the connection's shutdown has already begun.
    fn timer_action(&self, is_told: bool) -> TimerAction {
        let (now, wait, head_due) = (Instant::now(), self.server.head_wait, self.clock.due());
        // The parser's clock starts once it is known which HTTP this is; some clients never get there.
        let is_silent = !self.asked.load(Ordering::Relaxed);
        let send_wait = self.server.send_wait;
        let taken_due = self.writes.stuck_since().map(|since| since + send_wait);
        let is_late = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        if is_silent || is_late(head_due) || is_late(taken_due) {
            return TimerAction::Over;
        }
        let due = head_due.or_else(|| self.in_flight.quiet_since().map(|since| since + wait));
        match due {
            Some(due) if due <= now && is_told => TimerAction::Over,
            Some(due) if due <= now => TimerAction::Quiet,
            // A client that takes nothing is given its time from the moment at which it stopped.
            due => TimerAction::Again(due.unwrap_or(now + wait).min(taken_due.unwrap_or(now + send_wait))),
        }
    }
}

async fn http<I>(server: Arc<Server>, io: I, writes: Arc<WriteClock>, client: Client, stop: CancellationToken)
where
    I: Read + Write + Unpin + Send + 'static,
{
    let (clock, in_flight) = (HeadClock::new(), InFlight::new());
    let shared = Arc::new(Shared { server, client, asked: AtomicBool::new(false), in_flight, clock, writes });
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move {
            shared.asked.store(true, Ordering::Relaxed);
            let passing = shared.in_flight.enter();
            let answer = shared.server.answer(request, &shared.client).await;
            Ok::<_, Infallible>(answer.map(|body| CountedBody::new(body, passing)))
        }
    });
    let head_wait = shared.server.head_wait;
    let builder = builder(head_wait, shared.clock.clone());
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, service));
    let mut late = pin!(tokio::time::sleep(head_wait));
    let mut stopping = false;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = late.as_mut() => {
                let again = match shared.timer_action(stopping) {
                    TimerAction::Over => return,
                    TimerAction::Again(at) => at,
                    TimerAction::Quiet => {
                        stopping = true;
                        connection.as_mut().graceful_shutdown();
                        Instant::now() + LAST_ANSWER_WAITS * head_wait
                    }
                };
                late.as_mut().reset(again.into());
            }
        }
    }
}

fn builder(head_wait: Duration, clock: HeadClock) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(clock)
        .header_read_timeout(head_wait)
        // `HEADER_LINES_MAX` is the library's default, so it is not set here.
        .max_buf_size(HEAD_BYTES_MAX)
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_WAIT)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX);
    builder
}
