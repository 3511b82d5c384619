//! The load: raw connections that send one request after another and read each answer to its end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::proxy::Proxy;

/// WebSockets that are opened at the same time.
const WEBSOCKETS_AT_ONCE: usize = 64;

/// Size of the requested response.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Requests {
    /// A kilobyte.
    Small,
    /// Many megabytes.
    Large,
}

/// One round of one proxy.
#[derive(Serialize)]
pub struct Round {
    /// Name of the proxy.
    pub proxy: &'static str,
    /// Size of the requested response.
    pub what: Requests,
    /// Number of requests.
    pub requests: usize,
    /// Bytes of all answers.
    pub bytes: u64,
    /// The proxy's processor time.
    pub cpu_us: f64,
    /// Median latency.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
}

/// Requests responses of the given length over `connections` connections.
pub async fn round(proxy: &Proxy, what: Requests, connections: usize, length: Duration) -> Result<Round> {
    let connections = if what == Requests::Large { 4 } else { connections };
    let path = if what == Requests::Large { "/large" } else { "/small" };
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: */*\r\nUser-Agent: bench\r\n\r\n", proxy.host);
    let mut streams = Vec::new();
    for _ in 0..connections {
        let stream = TcpStream::connect(("127.0.0.1", proxy.process.port)).await?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let before = proxy.cpu_us()?;
    let deadline = Instant::now() + length;
    let mut workers = JoinSet::new();
    for stream in streams {
        workers.spawn(ask(stream, request.clone(), deadline));
    }
    let (mut latencies, mut bytes) = (Vec::new(), 0);
    while let Some(done) = workers.join_next().await {
        let (took, read) = done??;
        latencies.extend(took);
        bytes += read;
    }
    let cpu_us = proxy.cpu_us()? - before;
    latencies.sort_by(f64::total_cmp);
    let at =
        |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    Ok(Round {
        proxy: proxy.name,
        what,
        requests: latencies.len(),
        bytes,
        cpu_us,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
    })
}

async fn ask(mut stream: TcpStream, request: String, deadline: Instant) -> Result<(Vec<f64>, u64)> {
    let mut buffer = vec![0; 256 * 1024];
    let (mut latencies, mut bytes) = (Vec::new(), 0);
    while Instant::now() < deadline {
        let began = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        bytes += read_answer(&mut stream, &mut buffer).await?;
        latencies.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok((latencies, bytes))
}

/// Reads one answer that names its length.
async fn read_answer(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<u64> {
    let mut filled = 0;
    let (head, length) = loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        ensure!(read > 0, "the proxy closed the connection");
        filled += read;
        if let Some(end) = buffer[..filled].windows(4).position(|part| part == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
            ensure!(head.starts_with("http/1.1 200"), "the proxy answered: {head}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.context("an answer without a length")?.trim().parse()?;
            break (end + 4, length);
        }
    };
    let mut got = filled - head;
    while got < length {
        let read = stream.read(buffer).await?;
        ensure!(read > 0, "the proxy broke off");
        got += read;
    }
    Ok(length as u64)
}

async fn open_websocket(port: u16, request: String) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut buffer = [0; 1024];
    let read = stream.read(&mut buffer).await?;
    let head = String::from_utf8_lossy(&buffer[..read]);
    ensure!(head.starts_with("HTTP/1.1 101"), "no upgrade: {head}");
    Ok(stream)
}

/// Opens WebSockets, holds them, and returns the memory that they cost the proxy.
pub async fn hold_websockets(proxy: &Proxy, count: usize) -> Result<u64> {
    let request = format!(
        "GET /websocket HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        proxy.host
    );
    let before = proxy.resident_bytes()?;
    let mut held = Vec::with_capacity(count);
    while held.len() < count {
        let mut opening = JoinSet::new();
        for _ in 0..WEBSOCKETS_AT_ONCE.min(count - held.len()) {
            opening.spawn(open_websocket(proxy.process.port, request.clone()));
        }
        while let Some(opened) = opening.join_next().await {
            held.push(opened??);
        }
    }
    Ok(proxy.resident_bytes()?.saturating_sub(before))
}
