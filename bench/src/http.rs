//! A plain HTTP client: one connection, one request at a time, nothing in between that would cost time of its own.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A persistent connection.
pub struct Connection {
    stream: TcpStream,
    host: String,
    request: String,
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    /// Status.
    pub status: u16,
    /// Content.
    pub body: String,
    /// When the first byte of the response arrived.
    pub first_byte_at: Instant,
}

impl Connection {
    /// Connects to an address, for requests of `/` with a `Host` header.
    pub async fn open(address: &str, host: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        Ok(Self { stream, host: host.to_owned(), request })
    }

    /// Sends one GET request. The response must state its length.
    pub async fn get(&mut self) -> Result<Answer> {
        ask(&mut self.stream, &self.request).await
    }

    /// Sends one POST request, to a path without its leading slash. The response must state its
    /// length.
    pub async fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &str) -> Result<Answer> {
        let (host, length) = (&self.host, body.len());
        let mut request = format!("POST /{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n");
        request.extend(headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")));
        ask(&mut self.stream, &format!("{request}\r\n{body}")).await
    }
}

async fn ask(stream: &mut TcpStream, request: &str) -> Result<Answer> {
    stream.write_all(request.as_bytes()).await?;
    let (mut received, mut chunk, mut first_byte_at) = (Vec::new(), [0; 4096], None);
    loop {
        let count = stream.read(&mut chunk).await?;
        ensure!(count > 0, "the connection was closed");
        first_byte_at.get_or_insert_with(Instant::now);
        received.extend_from_slice(&chunk[..count]);
        if let Some((status, body)) = whole(&received)? {
            let first_byte_at = first_byte_at.context("an answer without bytes")?;
            return Ok(Answer { status, body, first_byte_at });
        }
    }
}

/// Parses a response; `None` until it is complete.
fn whole(received: &[u8]) -> Result<Option<(u16, String)>> {
    let text = String::from_utf8_lossy(received);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return Ok(None) };
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("no status")?.parse()?;
    let length = lines.filter_map(|line| line.split_once(':'));
    let mut length = length.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length: usize = length.next().context("an answer without length")?.1.trim().parse()?;
    Ok((body.len() >= length).then(|| (status, body.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_all_of_it_is_there() {
        let all = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
        assert_eq!(whole(&all[..all.len() - 1]).unwrap(), None);
        assert_eq!(whole(&all[..10]).unwrap(), None);
        assert_eq!(whole(all).unwrap(), Some((200, "hi".to_owned())));
        assert!(whole(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
