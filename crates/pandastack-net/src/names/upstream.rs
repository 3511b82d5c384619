//! Queries the host's own name servers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// File with the host's name servers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const DNS_PORT: u16 = 53;
/// Longest time for one server to answer. Guests retry after five seconds.
const ANSWER_WAIT: Duration = Duration::from_secs(4);
/// Servers tried for one query.
const SERVERS_MAX: usize = 3;
/// Longest answer over UDP.
pub(super) const DATAGRAM_BYTES_MAX: usize = 4096;

/// Name servers: the configured ones, or the host's current ones.
#[derive(Debug)]
pub(crate) struct Upstreams {
    configured: Option<SocketAddr>,
    seen: Mutex<(Option<SystemTime>, Vec<SocketAddr>)>,
}

impl Upstreams {
    pub(crate) fn new(configured: Option<SocketAddr>) -> Self {
        Upstreams { configured, seen: Mutex::default() }
    }

    /// Read again whenever the file changes: hosts move between networks.
    fn current(&self) -> Vec<SocketAddr> {
        if let Some(configured) = self.configured {
            return vec![configured];
        }
        let changed = std::fs::metadata(RESOLV_CONF).and_then(|meta| meta.modified()).ok();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.0 != changed || changed.is_none() {
            *seen = (changed, host_resolvers());
        }
        seen.1.clone()
    }

    /// Queries one server after the other. The query keeps the guest's id: ids are unique per
    /// socket, and the socket is new.
    pub(super) async fn resolve(&self, query: &[u8], by_tcp: bool) -> io::Result<Vec<u8>> {
        let none = || io::Error::new(io::ErrorKind::NotFound, "/etc/resolv.conf has no DNS server; add one");
        let mut failure = none();
        for server in self.current().into_iter().take(SERVERS_MAX) {
            let asked = async {
                if by_tcp { query_tcp(server, query).await } else { query_udp(server, query).await }
            };
            match timeout(ANSWER_WAIT, asked).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => failure = error,
                Err(elapsed) => failure = elapsed.into(),
            }
        }
        Err(failure)
    }
}

/// A fresh socket for every query: its random port is what makes answers hard to forge.
async fn query_udp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any =
        if server.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut answer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let length = socket.recv(&mut answer).await?;
        if length >= 2 && answer[..2] == query[..2] {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

async fn query_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_framed(&mut stream, query).await?;
    read_framed(&mut stream).await
}

/// A message over TCP: two bytes of length before it.
pub(super) async fn read_framed(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

pub(super) async fn write_framed(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await
}

/// The name servers of this host.
pub(crate) fn host_resolvers() -> Vec<SocketAddr> {
    servers(&std::fs::read_to_string(Path::new(RESOLV_CONF)).unwrap_or_default())
}

fn servers(resolv_conf: &str) -> Vec<SocketAddr> {
    let address = |line: &str| -> Option<SocketAddr> {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        let address: IpAddr = words.next().filter(|_| is_server)?.parse().ok()?;
        Some(SocketAddr::new(address, DNS_PORT))
    };
    resolv_conf.lines().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_parsed_and_invalid_lines_ignored() {
        let check = |text: &str, expect: &[&str]| {
            let found: Vec<_> = servers(text).iter().map(|server| server.ip().to_string()).collect();
            assert_eq!(found, expect, "{text:?}");
        };
        check("nameserver 9.9.9.9\n", &["9.9.9.9"]);
        check(
            "# nameserver 1.1.1.1\nsearch lan\nnameserver 127.0.0.53\nnameserver ::1\n",
            &["127.0.0.53", "::1"],
        );
        check("nameserver fe80::1%eth0\nnameserver\nnameserver x\n", &[]);
        check("", &[]);
    }
}
