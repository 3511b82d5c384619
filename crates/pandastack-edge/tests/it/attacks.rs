//! What must not pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use pandastack_edge::limits::{HEAD_BYTES_MAX, HEADER_LINES_MAX};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{PATIENCE, TestEdge, get, host};

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
async fn nothing_is_smuggled_behind_an_ambiguous_head() {
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
async fn a_head_has_a_size_and_a_number_of_lines() {
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
async fn a_slow_head_is_not_waited_for() {
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

#[tokio::test]
async fn tunnels_by_method_are_refused() {
    let mut edge = TestEdge::start().await;
    let (port, _) = edge.upstream(Router::new().fallback(|| async { "reached" })).await;
    let request =
        format!("CONNECT {}:80 HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", host(port), host(port));
    assert!(edge.raw(&request).await.starts_with("HTTP/1.1 400"));
}
