use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Request, Response, header};
use pandastack_types::SandboxId;
use pandastack_types::preview::Visibility;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::Edge;
use crate::access_log::AccessLog;
use crate::app_route::Instances;
use crate::body::{RequestBody, ResponseBody};
use crate::destination::Target;
use crate::grant::TrafficGrant;
use crate::headers::Client;
use crate::limits::REQUESTS_PER_SANDBOX_MAX;
use crate::route::{Location, Route, RouteSource, RouteUnavailable};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Everything here runs on loopback; an operation that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(20);

struct Loopback;

#[async_trait]
impl RouteSource for Loopback {
    async fn find(&self, _: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
        Ok(Some(Route {
            to: Location::Fixed(LOOPBACK),
            visibility: Visibility::Unlisted,
            host_header: None,
            key: None,
        }))
    }
}

/// A program in a sandbox, and an edge in front of it.
struct World {
    edge: Arc<Edge>,
    target: Target,
    program: TcpListener,
}

impl World {
    async fn start() -> Self {
        let program = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
        let port = program.local_addr().unwrap().port();
        let target = Target { sandbox: SandboxId::random(), port, by_header: false, own_domain: false };
        Self { edge: Edge::new(Arc::new(Loopback), AccessLog::open(None).unwrap()), target, program }
    }

    /// Sends a request while the program serves it.
    async fn ask(
        &self,
        head: http::request::Builder,
        program: impl Future<Output = TcpStream>,
    ) -> Response<ResponseBody> {
        let request = head.uri("/").header("host", "localhost").body(()).unwrap();
        let (mut parts, ()) = request.into_parts();
        let client = Client::new(LOOPBACK, 80, false);
        let asking = self.edge.serve(&self.target, &mut parts, RequestBody::Empty, &client);
        let both = async { tokio::join!(asking, program) };
        tokio::time::timeout(PATIENCE, both).await.expect("an answer in time").0
    }

    /// The program's next connection, with a whole head on it.
    async fn accept(&self) -> TcpStream {
        let (mut stream, _) = self.program.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0, "closed");
        }
        stream
    }

    async fn answer(&self, head: &str) -> TcpStream {
        let mut stream = self.accept().await;
        stream.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).await.unwrap();
        stream
    }

    async fn grant(&self) -> Arc<TrafficGrant> {
        let found = self.edge.sites.find(&self.target.sandbox, &Loopback).await;
        let (site, _) = found.unwrap_or_else(|error| panic!("{error:?}"));
        site.grant().expect("an open grant")
    }

    /// Accepts a request, then stops the sandbox without waiting for its answer.
    async fn accept_and_stop(&self) -> TcpStream {
        let stream = self.accept().await;
        let grant = self.grant().await;
        grant.hold();
        grant.drain(Duration::from_millis(1)).await;
        stream
    }
}

#[tokio::test]
async fn idempotent_requests_interrupted_by_a_stop_are_resent() {
    let world = World::start().await;
    let program = async {
        let _cut = world.accept_and_stop().await;
        world.answer("200 OK\r\nContent-Length: 0\r\nConnection: close").await
    };
    assert_eq!(world.ask(Request::get("/"), program).await.status(), 200);
    let refused = world.ask(Request::post("/"), world.accept_and_stop()).await;
    assert_eq!(refused.status(), 503, "it may have been done");
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
}

/// An app with `machines` machines, all served by the same program.
fn app_of(world: &World, machines: usize) -> Instances {
    let sandboxes = (0..machines).map(|_| SandboxId::random()).collect();
    Instances { sandboxes, always: machines, port: world.target.port, own_domain: false }
}

/// Accepts a request to one of an app's machines, then stops that machine without waiting for its
/// answer. Returns the machine's index.
async fn accept_and_stop_one(world: &World, app: &Instances) -> usize {
    let _cut = world.accept().await;
    for (at, sandbox) in app.sandboxes.iter().enumerate() {
        let found = world.edge.sites.find(sandbox, &Loopback).await;
        let (site, _) = found.unwrap_or_else(|error| panic!("{error:?}"));
        if let Some(grant) = site.grant().filter(|grant| grant.count_in_flight() > 0) {
            grant.hold();
            grant.drain(Duration::from_millis(1)).await;
            return at;
        }
    }
    panic!("no machine has a request");
}

async fn ask_app(
    world: &World,
    app: &Instances,
    head: http::request::Builder,
    program: impl Future<Output = ()>,
) -> Response<ResponseBody> {
    let request = head.uri("/").header("host", "localhost").body(()).unwrap();
    let (mut parts, ()) = request.into_parts();
    let client = Client::new(LOOPBACK, 80, false);
    let asking = world.edge.serve_app(app, &mut parts, RequestBody::Empty, &client);
    let both = async { tokio::join!(asking, program) };
    tokio::time::timeout(PATIENCE, both).await.expect("an answer in time").0
}

#[tokio::test]
async fn interrupted_requests_return_to_their_machine_if_no_other_responds() {
    let world = World::start().await;
    let app = app_of(&world, 2);
    let program = async {
        accept_and_stop_one(&world, &app).await;
        // The other one breaks off.
        drop(world.accept().await);
        world.answer("200 OK\r\nContent-Length: 0\r\nConnection: close").await;
    };
    assert_eq!(ask_app(&world, &app, Request::get("/"), program).await.status(), 200);
}

#[tokio::test]
async fn a_repeatable_request_is_retried_after_its_machines_stop() {
    let world = World::start().await;
    let app = app_of(&world, 2);
    let program = async {
        let first = accept_and_stop_one(&world, &app).await;
        assert_ne!(accept_and_stop_one(&world, &app).await, first);
        world.answer("200 OK\r\nContent-Length: 0\r\nConnection: close").await;
    };
    assert_eq!(ask_app(&world, &app, Request::get("/"), program).await.status(), 200);
    let program = async {
        accept_and_stop_one(&world, &app).await;
    };
    let refused = ask_app(&world, &app, Request::post("/"), program).await;
    assert_eq!(refused.status(), 503, "it may have been done");
}

#[tokio::test]
async fn an_upgrade_succeeds_while_its_sandbox_is_stopping() {
    let world = World::start().await;
    let program = async {
        let mut stream = world.accept().await;
        world.grant().await.hold();
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        stream
    };
    let head = Request::get("/").header("connection", "upgrade").header("upgrade", "websocket");
    assert_eq!(world.ask(head, program).await.status(), 101);
}

#[tokio::test]
async fn requests_in_flight_per_sandbox_are_limited() {
    let world = World::start().await;
    let closing = || world.answer("200 OK\r\nContent-Length: 0\r\nConnection: close");
    assert_eq!(world.ask(Request::get("/"), closing()).await.status(), 200);
    let grant = world.grant().await;
    let mut permits: Vec<_> = (0..REQUESTS_PER_SANDBOX_MAX).map(|_| grant.enter().expect("room")).collect();
    let nothing = || async { TcpStream::connect(world.program.local_addr().unwrap()).await.unwrap() };
    let refused = world.ask(Request::get("/"), nothing()).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    drop(world.program.accept().await.unwrap());
    permits.pop();
    assert_eq!(world.ask(Request::get("/"), closing()).await.status(), 200);
}
