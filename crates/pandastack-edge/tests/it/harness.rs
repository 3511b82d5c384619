//! An edge on a port of its own, an upstream behind it, and raw connections to it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::http::HeaderMap;
use axum::routing::any;
use pandastack_edge::tls::Tls;
use pandastack_edge::{AccessLog, Edge, Location, Route, RouteSource, RouteUnavailable, Server};
use pandastack_types::SandboxId;
use pandastack_types::host_header::HostHeader;
use pandastack_types::preview::Visibility;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub const ID: &str = "3f2b0c1e-7d7f-4c58-9d0e-0d2b7a0f9a55";
/// Everything here runs on loopback; an operation that takes this long hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A sandbox whose programs see this `Host`.
#[derive(Default)]
pub struct OneSandbox(pub Option<HostHeader>);

#[async_trait]
impl RouteSource for OneSandbox {
    async fn find(&self, sandbox: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
        let to = Location::Fixed(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let route = Route { to, visibility: Visibility::Unlisted, host_header: self.0.clone(), key: None };
        Ok((sandbox.as_str() == ID).then_some(route))
    }
}

/// The API's name as a client gave it.
async fn host_header(headers: HeaderMap) -> String {
    headers.get("host").and_then(|host| host.to_str().ok()).unwrap_or("none").to_owned()
}

/// A running edge. Everything ends with it.
pub struct TestEdge {
    pub address: SocketAddr,
    pub edge: Arc<Edge>,
    pub log: tempfile::NamedTempFile,
    /// Stops its server.
    pub stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl TestEdge {
    pub async fn start() -> Self {
        Self::start_patient(PATIENCE).await
    }

    /// An edge with this timeout for a head, within a body, on an idle connection and for a client
    /// that does not read.
    pub async fn start_patient(wait: Duration) -> Self {
        Self::start_with(Arc::new(OneSandbox::default()), wait).await
    }

    pub async fn start_with(source: Arc<dyn RouteSource>, wait: Duration) -> Self {
        Self::start_as(source, |server| Server {
            head_wait: wait,
            body_wait: wait,
            send_wait: wait,
            ..server
        })
        .await
    }

    pub async fn start_tls(tls: Tls) -> Self {
        Self::start_as(Arc::new(OneSandbox::default()), |server| server.with_tls(Some(tls))).await
    }

    async fn start_as(source: Arc<dyn RouteSource>, finish: impl FnOnce(Server) -> Server) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let edge = Edge::new(source, AccessLog::open(Some(log.path())).unwrap());
        let api = Router::new().fallback(|| async { "the api" }).route("/host", any(host_header));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        let server = finish(Server::new(Arc::clone(&edge), api));
        let stop = CancellationToken::new();
        tasks.spawn(server.serve(listener, stop.clone()));
        Self { address, edge, log, stop, tasks }
    }

    /// Serves `router` as a program in the sandbox; returns its port and a count of its connections.
    pub async fn upstream(&mut self, router: Router) -> (u16, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        use axum::serve::ListenerExt;
        let listener = listener.tap_io(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
        });
        self.tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        (port, count)
    }

    /// Serves raw connections, each by `program`.
    pub async fn raw_upstream<F>(&mut self, program: impl Fn(TcpStream) -> F + Send + 'static) -> u16
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(program(stream));
            }
        });
        port
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Likewise, but closes the sending side at once.
    pub async fn raw_half_closed(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Sends bytes on a new connection and reads until it is closed.
    pub async fn raw(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A reset after the answer is an answer too.
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

pub fn host(port: u16) -> String {
    format!("{port}-{ID}.localhost")
}

pub fn get(port: u16, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", host(port))
}

/// Reads until the text so far satisfies `enough`.
pub async fn read_until(stream: &mut TcpStream, enough: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    while !enough(&text) {
        let read =
            tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.expect("bytes in time").unwrap();
        assert_ne!(read, 0, "closed after {text:?}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    text
}
