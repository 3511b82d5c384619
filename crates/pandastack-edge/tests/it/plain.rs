//! Plain requests, the library's, and both on one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::response::IntoResponse;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::harness::{ID, PATIENCE, TestEdge, get, host, read_until};

/// Answers `<method> <path> <body>`, with a length.
async fn echo(request: Request) -> String {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    format!("[{} {} {}]", head.method, head.uri, String::from_utf8_lossy(&body))
}

fn request(port: u16, line: &str, rest: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: {}\r\n{rest}", host(port))
}

/// Sends a request, and reads until the data ends with `expect`.
async fn exchange(stream: &mut TcpStream, request: &str, expect: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    read_until(stream, |text| text.ends_with(expect)).await
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("it is closed").unwrap();
    String::from_utf8(rest).unwrap()
}

#[tokio::test]
async fn one_connection_reaches_several_destinations() {
    let mut edge = TestEdge::start().await;
    let (port, _) = edge.upstream(Router::new().fallback(echo)).await;
    let mut stream = edge.connect().await;
    for _ in 0..2 {
        exchange(&mut stream, &request(port, "GET /a", "\r\n"), "[GET /a ]").await;
        exchange(&mut stream, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "the api").await;
        exchange(&mut stream, &request(port, "GET /b", "\r\n"), "[GET /b ]").await;
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let mut edge = TestEdge::start().await;
    let (port, _) = edge.upstream(Router::new().fallback(echo)).await;
    let several = [
        request(port, "GET /a", "\r\n"),
        request(port, "POST /b", "Content-Length: 3\r\n\r\none"),
        request(port, "GET /c", "\r\n"),
        "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
        request(port, "GET /d", "Connection: close\r\n\r\n"),
    ];
    let answers = edge.raw(&several.concat()).await;
    let places: Vec<_> = ["[GET /a ]", "[POST /b one]", "[GET /c ]", "the api", "[GET /d ]"]
        .iter()
        .map(|answer| answers.find(answer).unwrap_or_else(|| panic!("no {answer} in {answers}")))
        .collect();
    assert!(places.is_sorted(), "{answers}");
}

#[tokio::test]
async fn a_request_parses_at_any_split() {
    let mut edge = TestEdge::start().await;
    let (port, _) = edge.upstream(Router::new().fallback(echo)).await;
    let mut stream = edge.connect().await;
    stream.set_nodelay(true).unwrap();
    let text = request(port, "GET /a", "Accept: */*\r\n\r\n");
    for at in 0..text.len() {
        stream.write_all(&text.as_bytes()[..at]).await.unwrap();
        tokio::task::yield_now().await;
        exchange(&mut stream, &text[at..], "[GET /a ]").await;
    }
    let bytes: Vec<_> = text.chars().map(String::from).collect();
    for byte in &bytes {
        stream.write_all(byte.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
    }
    read_until(&mut stream, |text| text.ends_with("[GET /a ]")).await;
}

#[tokio::test]
async fn bodies_arrive_with_or_after_their_heads() {
    let mut edge = TestEdge::start().await;
    let (port, connections) = edge.upstream(Router::new().fallback(echo)).await;
    let mut stream = edge.connect().await;
    exchange(&mut stream, &request(port, "PUT /a", "Content-Length: 3\r\n\r\none"), "[PUT /a one]").await;
    exchange(&mut stream, &request(port, "POST /a", "Content-Length: 0\r\n\r\n"), "[POST /a ]").await;
    stream.write_all(request(port, "POST /b", "Content-Length: 6\r\n\r\none").as_bytes()).await.unwrap();
    tokio::task::yield_now().await;
    exchange(&mut stream, "two", "[POST /b onetwo]").await;
    let chunked = request(port, "POST /c", "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n");
    exchange(&mut stream, &chunked, "[POST /c one]").await;
    let expecting = request(port, "POST /d", "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    exchange(&mut stream, &expecting, "HTTP/1.1 100 Continue\r\n\r\n").await;
    exchange(&mut stream, "one", "[POST /d one]").await;
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn head_requests_get_responses_without_a_body() {
    let mut edge = TestEdge::start().await;
    let (port, _) = edge.upstream(Router::new().fallback(echo)).await;
    let mut stream = edge.connect().await;
    let answer = exchange(&mut stream, &request(port, "HEAD /a", "\r\n"), "\r\n\r\n").await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("content-length: 10\r\n"),
        "{answer}"
    );
    let unknown = request(1, "HEAD /a", "\r\n").replace(ID, "nobody");
    let answer = exchange(&mut stream, &unknown, "\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    exchange(&mut stream, &request(port, "GET /b", "\r\n"), "[GET /b ]").await;
}

#[tokio::test]
async fn a_response_of_unknown_length_is_chunked() {
    let mut edge = TestEdge::start().await;
    let stream_of =
        || async { Body::from_stream(futures::stream::iter(["one", "two"].map(Ok::<_, String>))) };
    let (chunked, _) = edge.upstream(Router::new().fallback(stream_of)).await;
    // As in HTTP/1.0: the end of the connection is the end of the body.
    let until_close = edge
        .raw_upstream(|mut stream| async move {
            read_until(&mut stream, |text| text.ends_with("\r\n\r\n")).await;
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nonetwo").await.unwrap();
        })
        .await;
    let mut stream = edge.connect().await;
    for port in [chunked, until_close] {
        let answer = exchange(&mut stream, &request(port, "GET /", "\r\n"), "\r\n0\r\n\r\n").await;
        assert!(answer.contains("transfer-encoding: chunked\r\n") && answer.contains("two\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn ambiguous_responses_are_rejected() {
    let mut edge = TestEdge::start().await;
    for head in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3",
        "HTTP/1.1 200 OK\r\nContent-Length: +2",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip",
        "HTTP/1.1 200 OK\r\nX : y",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x",
        "SSH-2.0-OpenSSH",
    ] {
        let port = edge
            .raw_upstream(move |mut stream| async move {
                read_until(&mut stream, |text| text.ends_with("\r\n\r\n")).await;
                let _ = stream.write_all(format!("{head}\r\n\r\nok").as_bytes()).await;
            })
            .await;
        let answer = edge.raw(&get(port, "/")).await;
        assert!(
            answer.starts_with("HTTP/1.1 502") && answer.contains("guest_unavailable"),
            "{head:?}: {answer}"
        );
    }
}

#[tokio::test]
async fn a_truncated_response_closes_the_connection() {
    let mut edge = TestEdge::start().await;
    for body in ["Content-Length: 9\r\n\r\nsome", "Transfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n"] {
        let port = edge
            .raw_upstream(move |mut stream| async move {
                read_until(&mut stream, |text| text.ends_with("\r\n\r\n")).await;
                stream.write_all(format!("HTTP/1.1 200 OK\r\n{body}").as_bytes()).await.unwrap();
            })
            .await;
        let answer = edge.raw(&request(port, "GET /", "\r\n")).await;
        assert!(answer.contains("some") && !answer.ends_with("0\r\n\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn only_idempotent_requests_are_resent_after_a_lost_connection() {
    let mut edge = TestEdge::start().await;
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    // Keeps the connection, and closes it instead of a second answer.
    let port = edge
        .raw_upstream(move |mut stream| {
            let counter = Arc::clone(&counter);
            async move {
                for answer in ["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", ""] {
                    read_until(&mut stream, |text| text.ends_with("\r\n\r\n")).await;
                    counter.fetch_add(1, Ordering::SeqCst);
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        })
        .await;
    let mut stream = edge.connect().await;
    exchange(&mut stream, &request(port, "GET /", "\r\n"), "ok").await;
    exchange(&mut stream, &request(port, "GET /", "\r\n"), "ok").await;
    assert_eq!(seen.load(Ordering::SeqCst), 3, "the second was sent twice");
    let post = request(port, "POST /", "Content-Length: 0\r\n\r\n");
    stream.write_all(post.as_bytes()).await.unwrap();
    let answer = read_until(&mut stream, |text| text.contains("closed the connection")).await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert_eq!(seen.load(Ordering::SeqCst), 4, "once is all");
}

#[tokio::test]
async fn a_dropped_client_connection_ends_the_guest_request() {
    let mut edge = TestEdge::start().await;
    let (asked, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (ask, end) = (Arc::clone(&asked), Arc::clone(&ended));
    let port = edge
        .raw_upstream(move |mut stream| {
            let (ask, end) = (Arc::clone(&ask), Arc::clone(&end));
            async move {
                read_until(&mut stream, |text| text.ends_with("\r\n\r\n")).await;
                ask.notify_one();
                assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
                end.notify_one();
            }
        })
        .await;
    let mut stream = edge.connect().await;
    stream.write_all(request(port, "GET /", "\r\n").as_bytes()).await.unwrap();
    tokio::time::timeout(PATIENCE, asked.notified()).await.unwrap();
    drop(stream);
    tokio::time::timeout(PATIENCE, ended.notified()).await.expect("the guest is told");
}

#[tokio::test]
async fn a_stopping_edge_finishes_requests_in_flight() {
    let mut edge = TestEdge::start().await;
    let (asked, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (ask, go) = (Arc::clone(&asked), Arc::clone(&answer));
    let slow = move |request: Request| async move {
        if request.uri().path() == "/slow" {
            ask.notify_one();
            go.notified().await;
        }
        ([(CONTENT_LENGTH, "4")], "done").into_response()
    };
    let (port, _) = edge.upstream(Router::new().fallback(slow)).await;
    let (mut idle, mut busy) = (edge.connect().await, edge.connect().await);
    exchange(&mut idle, &request(port, "GET /", "\r\n"), "done").await;
    busy.write_all(request(port, "GET /slow", "\r\n").as_bytes()).await.unwrap();
    asked.notified().await;
    edge.stop.cancel();
    assert_eq!(read_to_end(&mut idle).await, "");
    answer.notify_one();
    let last = read_to_end(&mut busy).await;
    assert!(last.contains("connection: close\r\n") && last.ends_with("done"), "{last}");
}

#[tokio::test]
async fn an_idle_keep_alive_connection_times_out() {
    let wait = Duration::from_millis(300);
    let mut edge = TestEdge::start_patient(wait).await;
    let (port, _) = edge.upstream(Router::new().fallback(echo)).await;
    for rest in ["", "GET /b HT"] {
        let mut stream = edge.connect().await;
        let began = Instant::now();
        exchange(&mut stream, &request(port, "GET /a", "\r\n"), "[GET /a ]").await;
        stream.write_all(rest.as_bytes()).await.unwrap();
        assert_eq!(read_to_end(&mut stream).await, "");
        assert!(began.elapsed() >= wait, "{rest:?}: {:?}", began.elapsed());
    }
}
