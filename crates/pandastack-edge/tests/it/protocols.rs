//! Protocols that pass, and how.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::routing::{any, get as on_get, post};
use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::harness::{ID, OneSandbox, PATIENCE, TestEdge, get, host, read_until};

#[tokio::test]
async fn the_host_name_or_headers_select_the_destination() {
    let mut edge = TestEdge::start().await;
    let (port, _) = edge.upstream(Router::new().fallback(|| async { "the sandbox" })).await;
    assert!(edge.raw(&get(port, "/")).await.ends_with("the sandbox"));
    let api = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(edge.raw(api).await.ends_with("the api"));
    let by_header = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {port}\r\nConnection: close\r\n\r\n"
    );
    assert!(edge.raw(&by_header).await.ends_with("the sandbox"));
    let unknown = "GET / HTTP/1.1\r\nHost: 80-nobody.localhost\r\nConnection: close\r\n\r\n";
    assert!(edge.raw(unknown).await.starts_with("HTTP/1.1 404"));
}

#[tokio::test]
async fn a_closed_port_is_reported() {
    let edge = TestEdge::start().await;
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let answer = edge.raw(&get(free, "/")).await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("port_closed"), "{answer}");
    assert!(answer.contains(&format!("0.0.0.0:{free}")), "{answer}");
}

#[tokio::test]
async fn guest_connections_are_reused() {
    let mut edge = TestEdge::start().await;
    let (port, connections) = edge.upstream(Router::new().fallback(|| async { "x".repeat(100_000) })).await;
    let mut stream = edge.connect().await;
    for _ in 0..20 {
        let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", host(port));
        stream.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut stream, |text| text.len() > 100_000).await;
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_guest_closing_a_pooled_connection_loses_no_request() {
    let mut edge = TestEdge::start().await;
    let served = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&served);
    // Announces keep-alive, but closes the connection when the second request is in flight.
    let port = edge
        .raw_upstream(move |mut stream| {
            let counter = Arc::clone(&counter);
            async move {
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await;
                counter.fetch_add(1, Ordering::SeqCst);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
                let _ = stream.read(&mut buffer).await;
            }
        })
        .await;
    for _ in 0..10 {
        assert!(edge.raw(&get(port, "/")).await.ends_with("ok"));
    }
    assert_eq!(served.load(Ordering::SeqCst), 10);
}

#[tokio::test]
async fn bodies_stream_in_both_directions_concurrently() {
    let mut edge = TestEdge::start().await;
    let echo =
        post(|request: Request| async move { Body::from_stream(request.into_body().into_data_stream()) });
    let (port, _) = edge.upstream(Router::new().route("/echo", echo)).await;
    let mut stream = edge.connect().await;
    let head = format!("POST /echo HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n", host(port));
    stream.write_all(head.as_bytes()).await.unwrap();
    for word in ["one", "two", "three"] {
        let chunk = format!("{:x}\r\n{word}\r\n", word.len());
        stream.write_all(chunk.as_bytes()).await.unwrap();
        // The reply to a piece arrives before the next piece is sent.
        read_until(&mut stream, |text| text.contains(word)).await;
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    read_until(&mut stream, |text| text.contains("0\r\n\r\n")).await;
}

#[tokio::test]
async fn server_sent_events_are_not_buffered() {
    let mut edge = TestEdge::start().await;
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    let receiver = Arc::new(tokio::sync::Mutex::new(Some(receiver)));
    let events = on_get(move || async move {
        let receiver = receiver.lock().await.take().unwrap();
        let stream = tokio_stream_of(receiver).map(Ok::<_, Infallible>);
        ([("content-type", "text/event-stream")], Body::from_stream(stream))
    });
    let (port, _) = edge.upstream(Router::new().route("/events", events)).await;
    let mut stream = edge.connect().await;
    stream
        .write_all(format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", host(port)).as_bytes())
        .await
        .unwrap();
    read_until(&mut stream, |text| text.contains("\r\n\r\n")).await;
    for n in 0..3 {
        sender.send(Bytes::from(format!("data: {n}\n\n"))).await.unwrap();
        read_until(&mut stream, |text| text.contains(&format!("data: {n}\n\n"))).await;
    }
}

fn tokio_stream_of(receiver: mpsc::Receiver<Bytes>) -> impl futures::Stream<Item = Bytes> {
    futures::stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
}

#[tokio::test]
async fn an_upgraded_connection_passes_bytes_both_ways() {
    let mut edge = TestEdge::start().await;
    let port = edge
        .raw_upstream(|mut stream| async move {
            let head = read_until(&mut stream, |text| text.ends_with("\r\n\r\n")).await.to_lowercase();
            assert!(head.contains("upgrade: websocket") && head.contains("connection: upgrade"), "{head}");
            let answer =
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";
            stream.write_all(answer.as_bytes()).await.unwrap();
            let mut buffer = [0; 64];
            loop {
                let read = stream.read(&mut buffer).await.unwrap();
                if read == 0 || stream.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
        })
        .await;
    let mut stream = edge.connect().await;
    let head = format!(
        "GET / HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        host(port)
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_until(&mut stream, |text| text.ends_with("hello")).await;
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    for word in ["ping", "pong"] {
        stream.write_all(word.as_bytes()).await.unwrap();
        read_until(&mut stream, |text| text == word).await;
    }
}

#[tokio::test]
async fn http2_requests_are_forwarded_as_http1() {
    let mut edge = TestEdge::start().await;
    let seen = any(|request: Request| async move {
        let host = request.headers()["host"].to_str().unwrap().to_owned();
        format!("{:?} {host} {}", request.version(), request.uri())
    });
    let (port, _) = edge.upstream(Router::new().fallback(seen)).await;
    let stream = TokioIo::new(edge.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let driver = tokio::spawn(connection);
    for n in 0..3 {
        let request = http::Request::get(format!("http://{}/p?n={n}", host(port)))
            .body(Full::<Bytes>::default())
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.version(), Version::HTTP_2);
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(text, format!("HTTP/1.1 {} /p?n={n}", host(port)));
    }
    driver.abort();
}

#[tokio::test]
async fn the_api_knows_its_name_over_http2() {
    let edge = TestEdge::start().await;
    let stream = TokioIo::new(edge.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let request = http::Request::get("https://api.example.com:8443/host").body(Full::<Bytes>::default());
    let answer = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "api.example.com:8443");
    driver.abort();
}

#[tokio::test]
async fn grpc_stays_http2_and_keeps_its_trailers() {
    let mut edge = TestEdge::start().await;
    let service = post(|request: Request| async move {
        assert_eq!(request.version(), Version::HTTP_2);
        assert_eq!(request.headers()["te"], "trailers");
        let told: Vec<_> = request.headers().get_all("x-forwarded-for").iter().collect();
        assert_eq!(told, ["127.0.0.1"]);
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        let frames =
            [Ok::<_, Infallible>(Frame::data(Bytes::from("message"))), Ok(Frame::trailers(trailers))];
        Body::new(StreamBody::new(futures::stream::iter(frames)))
    });
    let (port, connections) = edge.upstream(Router::new().route("/s.S/M", service)).await;
    let stream = TokioIo::new(edge.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let driver = tokio::spawn(connection);
    for _ in 0..3 {
        let request = http::Request::post(format!("http://{}/s.S/M", host(port)))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("x-forwarded-for", "9.9.9.9")
            .body(Full::new(Bytes::from("question")))
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let collected = answer.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
        assert_eq!(collected.to_bytes(), "message");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
    driver.abort();
}

#[tokio::test]
async fn programs_see_the_host_header_of_their_sandbox() {
    let header = "localhost:${PORT}".parse().unwrap();
    let mut edge = TestEdge::start_with(Arc::new(OneSandbox(Some(header))), PATIENCE).await;
    let seen = any(|request: Request| async move {
        let authority = request.uri().authority().map(ToString::to_string);
        let header = |name| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let [client, forwarded] = ["x-forwarded-host", "forwarded"].map(|name| header(name).unwrap());
        format!("{} for {client}, {forwarded}", header("host").or(authority).unwrap())
    });
    let (port, _) = edge.upstream(Router::new().fallback(seen)).await;
    let name = host(port);
    let expected = format!("localhost:{port} for {name}, for=127.0.0.1;host=\"{name}\";proto=http");
    assert!(edge.raw(&get(port, "/")).await.ends_with(&expected), "{}", edge.raw(&get(port, "/")).await);

    let stream = TokioIo::new(edge.connect().await);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let driver = tokio::spawn(connection);
    for kind in ["text/plain", "application/grpc"] {
        let request = http::Request::post(format!("http://{name}/")).header("content-type", kind);
        let answer = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), expected, "{kind}");
    }
    driver.abort();
}

#[tokio::test]
async fn every_request_is_logged_and_counted() {
    let mut edge = TestEdge::start().await;
    let (port, _) = edge.upstream(Router::new().fallback(|| async { "seven b" })).await;
    edge.raw(&get(port, "/page?token=secret")).await;
    edge.edge.shut_down().await;
    let log = std::fs::read_to_string(edge.log.path()).unwrap();
    assert!(log.contains(&format!("{port}-{ID} GET /page 200 7 ")), "{log}");
    assert!(!log.contains("secret"), "{log}");
    let mut page = pandastack_metrics::Page::default();
    edge.edge.add_metrics(&mut page);
    assert!(page.into_text().contains("pandastack_edge_requests_total{status=\"2xx\"} 1"));
}
