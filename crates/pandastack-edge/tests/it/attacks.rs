//! Requests that must not pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::routing::get as on_get;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pandastack_edge::limits::{BODY_BYTES_MAX, HEAD_BYTES_MAX, HEADER_LINES_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::harness::{PATIENCE, TestEdge, get, host, read_until};

/// Heads over which two parties might disagree. Each ends in a second request, which must not be one.
const SMUGGLED: [&str; 8] = [
    "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Content-Length: 4\r\nContent-Length: 40\r\n\r\nabcd",
    "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "Content-Length: +4\r\n\r\nabcd",
    "Content-Length: 4, 4\r\n\r\nabcd",
    "Host: evil\r\n\r\n",
];

#[tokio::test]
async fn ambiguous_heads_cannot_smuggle_requests() {
    let mut edge = TestEdge::start().await;
    let smuggled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&smuggled);
    let guest = move |request: Request| async move {
        count.fetch_add(usize::from(request.uri().path() == "/smuggled"), Ordering::SeqCst);
        "fine"
    };
    let (port, _) = edge.upstream(Router::new().fallback(guest)).await;
    for head in SMUGGLED {
        let tail = format!("GET /smuggled HTTP/1.1\r\nHost: {}\r\n\r\n", host(port));
        let request = format!("POST /first HTTP/1.1\r\nHost: {}\r\n{head}{tail}", host(port));
        let answer = edge.raw_half_closed(&request).await;
        // The parser may settle it (a coding wins over a length, RFC 9112, 6.3), but must then close the connection.
        let closed = answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close");
        assert!(answer.starts_with("HTTP/1.1 400") || closed, "{head:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{head:?}: {answer}");
    }
    assert_eq!(smuggled.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn bare_line_feeds_and_nul_bytes_are_refused() {
    let mut edge = TestEdge::start().await;
    let (port, _) = edge.upstream(Router::new().fallback(|| async { "reached" })).await;
    for header in ["X: a\0b", "X: a\rb", "X\u{b}: a"] {
        let request =
            format!("GET / HTTP/1.1\r\nHost: {}\r\n{header}\r\nConnection: close\r\n\r\n", host(port));
        let answer = edge.raw(&request).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{header:?}: {answer}");
    }
}

#[tokio::test]
async fn an_oversized_request_head_is_rejected() {
    let mut edge = TestEdge::start().await;
    let (port, _) = edge.upstream(Router::new().fallback(|| async { "reached" })).await;
    let with =
        |lines: String| format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{lines}\r\n", host(port));
    let fits = with(format!("X: {}\r\n", "a".repeat(HEAD_BYTES_MAX / 2)));
    assert!(edge.raw(&fits).await.ends_with("reached"));
    let long = with(format!("X: {}\r\n", "a".repeat(2 * HEAD_BYTES_MAX)));
    assert!(edge.raw(&long).await.starts_with("HTTP/1.1 431"));
    let many = with("X: a\r\n".repeat(HEADER_LINES_MAX + 1));
    assert!(edge.raw(&many).await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn a_slow_request_head_times_out() {
    let wait = Duration::from_millis(300);
    let mut edge = TestEdge::start_patient(wait).await;
    let (port, _) = edge.upstream(Router::new().fallback(|| async { "reached" })).await;
    for start in ["", "P", "PRI * HTTP", "GET / HTTP/1.1\r\nHost: x\r\nX: "] {
        let began = Instant::now();
        let mut stream = edge.connect().await;
        stream.write_all(start.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{start:?} is still waited for after {:?}", began.elapsed());
        assert!(began.elapsed() >= wait, "{start:?}");
    }
    assert!(edge.raw(&get(port, "/")).await.ends_with("reached"));
}

/// A server that answers with the length of a body, once it has all of it.
fn measuring() -> Router {
    Router::new().fallback(|body: Bytes| async move { format!("{} bytes", body.len()) })
}

#[tokio::test]
async fn a_stalled_body_times_out() {
    let wait = Duration::from_millis(300);
    let mut edge = TestEdge::start_patient(wait).await;
    let (port, _) = edge.upstream(measuring()).await;
    for length in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
        let began = Instant::now();
        // The beginning of a body, with either kind of length.
        let request = format!("POST / HTTP/1.1\r\nHost: {}\r\n{length}\r\n\r\n4\r\nabcd\r\n", host(port));
        let answer = edge.raw(&request).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{length}: {answer}");
        assert!(began.elapsed() >= wait, "{length}");
    }
}

#[tokio::test]
async fn a_slow_but_progressing_body_is_accepted() {
    let wait = Duration::from_secs(2);
    let mut edge = TestEdge::start_patient(wait).await;
    let (port, _) = edge.upstream(measuring()).await;
    let mut stream = edge.connect().await;
    let head = format!("POST / HTTP/1.1\r\nHost: {}\r\nContent-Length: 5\r\n\r\n", host(port));
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..5 {
        // Together longer than one of them may take.
        tokio::time::sleep(wait / 4).await;
        stream.write_all(b"x").await.unwrap();
    }
    let answer = read_until(&mut stream, |text| text.ends_with("bytes")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("5 bytes"), "{answer}");
}

/// Serves an endless answer to every request; reports when it can send no more.
async fn endless(edge: &mut TestEdge) -> (u16, mpsc::Receiver<()>) {
    let (ended, ends) = mpsc::channel(1);
    let program = move |mut stream: TcpStream| {
        let ended = ended.clone();
        async move {
            read_until(&mut stream, |text| text.ends_with("\r\n\r\n")).await;
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            let piece = vec![7_u8; 64 * 1024];
            while stream.write_all(&piece).await.is_ok() {}
            ended.send(()).await.unwrap();
        }
    };
    (edge.raw_upstream(program).await, ends)
}

#[tokio::test]
async fn a_client_that_reads_nothing_times_out() {
    let wait = Duration::from_millis(300);
    let mut edge = TestEdge::start_patient(wait).await;
    let (port, mut ends) = endless(&mut edge).await;
    // The second request is not plain, so the library answers it.
    for rest in ["\r\n", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"] {
        let began = Instant::now();
        let mut stream = edge.connect().await;
        let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n{rest}", host(port));
        stream.write_all(request.as_bytes()).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, ends.recv()).await;
        assert!(ended.is_ok(), "{rest:?} is still waited for after {:?}", began.elapsed());
        assert!(began.elapsed() >= wait, "{rest:?}");
        drop(stream);
    }
}

#[tokio::test]
async fn a_slow_but_reading_client_is_not_cut_off() {
    let wait = Duration::from_secs(2);
    let mut edge = TestEdge::start_patient(wait).await;
    let (port, mut ends) = endless(&mut edge).await;
    let mut stream = edge.connect().await;
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", host(port));
    stream.write_all(request.as_bytes()).await.unwrap();
    // More than the system holds for it, so that each piece lets the edge write.
    let mut piece = vec![0_u8; 8 * 1024 * 1024];
    for _ in 0..5 {
        // Together longer than one of them may take.
        tokio::time::sleep(wait / 4).await;
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut piece)).await.expect("bytes").unwrap();
    }
    assert!(ends.try_recv().is_err(), "it was cut");
}

#[tokio::test]
async fn only_idle_http2_connections_are_closed() {
    let wait = Duration::from_secs(1);
    let mut edge = TestEdge::start_patient(wait).await;
    let slow = on_get(move || async move {
        tokio::time::sleep(4 * wait).await;
        "reached"
    });
    let (port, _) = edge.upstream(Router::new().route("/", slow)).await;
    let stream = TokioIo::new(edge.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let request =
        http::Request::get(format!("http://{}/", host(port))).body(Full::<Bytes>::default()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "reached");
    let began = Instant::now();
    let closed = tokio::time::timeout(PATIENCE, driver).await;
    assert!(closed.is_ok(), "still open after {:?}", began.elapsed());
    assert!(began.elapsed() >= wait / 2, "closed at once");
}

#[tokio::test]
async fn a_declared_oversized_body_is_refused_before_reading() {
    let mut edge = TestEdge::start().await;
    let (port, _) = edge.upstream(measuring()).await;
    let request =
        format!("POST / HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n", host(port), BODY_BYTES_MAX + 1);
    let answer = edge.raw(&request).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("body_too_large"), "{answer}");
}

#[tokio::test]
async fn connect_requests_are_rejected() {
    let mut edge = TestEdge::start().await;
    let (port, _) = edge.upstream(Router::new().fallback(|| async { "reached" })).await;
    let request =
        format!("CONNECT {}:80 HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", host(port), host(port));
    assert!(edge.raw(&request).await.starts_with("HTTP/1.1 400"));
}
