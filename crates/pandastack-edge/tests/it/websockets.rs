//! End of WebSockets when their sandbox stops.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::post;
use http::{StatusCode, header};
use pandastack_agent_client::AgentClient;
use pandastack_edge::{Location, Route, RouteSource, RouteUnavailable};
use pandastack_types::link::LinkKey;
use pandastack_types::preview::Visibility;
use pandastack_types::{SandboxId, grant};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::harness::{PATIENCE, TestEdge, host, read_until};

/// A host's agent that opens grants to loopback, and closes one on request.
struct Agent {
    client: AgentClient,
    hold: Arc<Notify>,
    /// The edge reported that it has drained.
    drained: Arc<Notify>,
    _directory: TempDir,
    _tasks: JoinSet<()>,
}

impl Agent {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent");
        let listener = UnixListener::bind(&path).unwrap();
        let (hold, drained) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (held, ended) = (Arc::clone(&hold), Arc::clone(&drained));
        let open = move |request: Request| open_grant(request, held, ended);
        let router = Router::new().route("/agent/v1/sandboxes/{id}/door", post(open));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        let key = LinkKey::new(&[7; 32]).unwrap();
        let client = AgentClient::new("host-a".parse().unwrap(), &format!("unix:{}", path.display()), key);
        Self { client: client.unwrap(), hold, drained, _directory: directory, _tasks: tasks }
    }
}

async fn open_grant(mut request: Request, hold: Arc<Notify>, drained: Arc<Notify>) -> Response {
    let opened = hyper::upgrade::on(&mut request);
    // The grant is open for as long as this is held, and it ends with the edge's side.
    tokio::spawn(async move {
        let mut stream = hyper_util::rt::TokioIo::new(opened.await.unwrap());
        loop {
            tokio::select! {
                () = hold.notified() => stream.write_all(&[grant::HOLD]).await.unwrap(),
                byte = stream.read_u8() => match byte {
                    Ok(grant::DRAINED) => drained.notify_one(),
                    Ok(_) => {}
                    Err(_) => return,
                },
            }
        }
    });
    let answer = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
    let answer = answer.header(header::CONNECTION, "upgrade").header(header::UPGRADE, grant::UPGRADE);
    answer.header(grant::ADDRESS_HEADER, "127.0.0.1").body(Body::empty()).unwrap()
}

#[async_trait]
impl RouteSource for Agent {
    async fn find(&self, _: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
        let to = Location::Sandbox { agent: self.client.clone(), incarnation: 1 };
        Ok(Some(Route { to, visibility: Visibility::Unlisted, host_header: None, key: None }))
    }
}

/// An upgraded connection: the client's end and the guest's, after the guest sent `said`.
async fn open(edge: &mut TestEdge, protocol: &'static str, said: &'static [u8]) -> (TcpStream, TcpStream) {
    let (sender, mut guests) = mpsc::channel(1);
    let port = edge
        .raw_upstream(move |mut stream| {
            let sender = sender.clone();
            async move {
                read_until(&mut stream, |text| text.ends_with("\r\n\r\n")).await;
                let head = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
                );
                stream.write_all(&[head.as_bytes(), said].concat()).await.unwrap();
                sender.send(stream).await.unwrap();
            }
        })
        .await;
    let mut client = edge.connect().await;
    let head = format!(
        "GET / HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n",
        host(port)
    );
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        answer.push(client.read_u8().await.unwrap());
    }
    assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(read(&mut client, said.len()).await, said);
    (client, guests.recv().await.unwrap())
}

async fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut bytes)).await.expect("bytes in time").unwrap();
    bytes
}

/// All bytes until the other side closes, which must not be by a reset.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("an end").unwrap();
    bytes
}

#[tokio::test]
async fn a_cut_websocket_ends_with_a_close_frame() {
    let mut edge = TestEdge::start_with(Arc::new(Agent::start().await), PATIENCE).await;
    let (mut client, mut guest) = open(&mut edge, "WebSocket", b"\x81\x05hello").await;
    client.write_all(b"\x81\x83\0\0\0\0who").await.unwrap();
    assert_eq!(read(&mut guest, 9).await, b"\x81\x83\0\0\0\0who");
    let stopping = {
        let edge = Arc::clone(&edge.edge);
        tokio::spawn(async move { edge.shut_down().await })
    };
    let head = read(&mut client, 4).await;
    assert_eq!((head[0], &head[2..]), (0x88, &1001_u16.to_be_bytes()[..]));
    let reason = read(&mut client, usize::from(head[1]) - 2).await;
    assert_eq!(reason, b"going away; connect again");
    let told = read(&mut guest, 8).await;
    assert_eq!(told[..2], [0x88, 0x82], "masked, as a client's");
    assert_eq!([told[6] ^ told[2], told[7] ^ told[3]], 1001_u16.to_be_bytes());
    // Both sides reply, and then the edge closes.
    client.write_all(b"\x88\x82\0\0\0\0\x03\xe9").await.unwrap();
    // The edge waits for a guest only briefly.
    let answered = guest.write_all(b"\x88\x02\x03\xe9").await.is_ok();
    assert!(rest(&mut client).await.is_empty());
    assert!(!answered || rest(&mut guest).await.is_empty());
    tokio::time::timeout(PATIENCE, stopping).await.unwrap().unwrap();
}

#[tokio::test]
async fn an_idle_websocket_does_not_delay_a_sandbox_stop() {
    let agent = Arc::new(Agent::start().await);
    let (hold, drained) = (Arc::clone(&agent.hold), Arc::clone(&agent.drained));
    let mut edge = TestEdge::start_with(agent, PATIENCE).await;
    let (mut client, mut guest) = open(&mut edge, "WebSocket", b"\x81\x05hello").await;
    hold.notify_one();
    let stopped = Duration::from_secs(grant::DRAIN_SECONDS) / 2;
    tokio::time::timeout(stopped, drained.notified()).await.expect("sooner than requests may take");
    let head = read(&mut client, 4).await;
    assert_eq!((head[0], &head[2..]), (0x88, &1001_u16.to_be_bytes()[..]));
    assert_eq!(read(&mut guest, 8).await[..2], [0x88, 0x82]);
}

#[tokio::test]
async fn an_upgraded_connection_may_stall_with_bytes_in_flight() {
    let wait = Duration::from_millis(300);
    let mut edge = TestEdge::start_patient(wait).await;
    for protocol in ["WebSocket", "chat"] {
        let (mut client, mut guest) = open(&mut edge, protocol, b"").await;
        let mut written = 0;
        let piece = vec![7_u8; 64 * 1024];
        // Write until the buffers are full, and for much longer than a response's timeout.
        while let Ok(more) = tokio::time::timeout(3 * wait, guest.write(&piece)).await {
            written += more.unwrap();
        }
        drop(guest);
        assert_eq!(rest(&mut client).await.len(), written, "{protocol}");
    }
}

#[tokio::test]
async fn other_upgraded_protocols_are_closed_without_a_close_frame() {
    let mut edge = TestEdge::start_with(Arc::new(Agent::start().await), PATIENCE).await;
    let (mut client, mut guest) = open(&mut edge, "chat", b"\x81\x05hello").await;
    edge.edge.shut_down().await;
    assert!(rest(&mut client).await.is_empty());
    assert!(rest(&mut guest).await.is_empty());
}
