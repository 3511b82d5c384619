//! Reads the host name of a web connection: the server name of a TLS hello, or the `Host` of an HTTP
//! request.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use rustls::server::Acceptor;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Bytes read to find a connection's host name. Beyond it the connection has none.
const HELLO_BYTES_MAX: usize = 16 * 1024;
/// Longest time for a connection to state its name.
const HELLO_WAIT: Duration = Duration::from_secs(10);
/// Lines of an HTTP head.
const HEADERS_MAX: usize = 128;
const HTTPS_PORT: u16 = 443;

/// The first bytes of a connection, and the name in them.
#[derive(Debug)]
pub(super) struct Hello {
    pub(super) bytes: Vec<u8>,
    /// Lowercase; none if the connection is for no name, or does not speak the protocol of its port.
    pub(super) name: Option<String>,
}

/// Reads until the connection's host name is known, or can no longer follow.
pub(super) async fn read(stream: &mut TcpStream, port: u16) -> io::Result<Hello> {
    let mut bytes = Vec::with_capacity(1024);
    let reading = async {
        loop {
            let name = if port == HTTPS_PORT { name_in_tls(&bytes) } else { name_in_http(&bytes) };
            match name {
                HelloName::Name(name) => return io::Result::Ok(Some(name)),
                HelloName::None => return Ok(None),
                HelloName::Unfinished if bytes.len() >= HELLO_BYTES_MAX => return Ok(None),
                HelloName::Unfinished => {}
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    };
    let name = timeout(HELLO_WAIT, reading).await.map_err(io::Error::from)??;
    Ok(Hello { bytes, name })
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum HelloName {
    Name(String),
    None,
    Unfinished,
}

pub(super) fn name_in_tls(bytes: &[u8]) -> HelloName {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        if acceptor.read_tls(&mut rest).is_err() {
            return HelloName::None;
        }
        match acceptor.accept() {
            Ok(Some(hello)) => {
                let name = hello.client_hello().server_name().map(str::to_ascii_lowercase);
                return name
                    .map_or(HelloName::None, |name| HelloName::Name(name.trim_end_matches('.').to_owned()));
            }
            Ok(None) => {}
            Err(_) => return HelloName::None,
        }
    }
    HelloName::Unfinished
}

pub(super) fn name_in_http(bytes: &[u8]) -> HelloName {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => return HelloName::Unfinished,
        Err(_) => return HelloName::None,
        Ok(httparse::Status::Complete(_)) => {}
    }
    let mut hosts = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host"));
    let host = match (hosts.next(), hosts.next()) {
        (Some(only), None) => std::str::from_utf8(only.value).unwrap_or_default(),
        // Two of them can be read in two ways.
        _ => return HelloName::None,
    };
    // An absolute target overrides the header, so the two must agree.
    let target = request.path.unwrap_or_default();
    let authority = target.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    let (name, agreed) = (bare(host), authority.is_none_or(|authority| bare(authority) == bare(host)));
    if name.is_empty() || !agreed || name.parse::<IpAddr>().is_ok() {
        return HelloName::None;
    }
    HelloName::Name(name)
}

fn bare(host: &str) -> String {
    let host = host.rsplit_once(':').map_or(host, |(name, _)| name);
    host.trim().trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn http(head: &str, expect: Option<&str>) {
        let expect = expect.map_or(HelloName::None, |name| HelloName::Name(name.to_owned()));
        assert_eq!(name_in_http(head.as_bytes()), expect, "{head:?}");
    }

    #[test]
    fn an_http_host_must_be_unique_and_consistent() {
        http("GET / HTTP/1.1\r\nHost: A.com\r\n\r\n", Some("a.com"));
        http("GET / HTTP/1.1\r\nX: y\r\nhost: a.com:8080\r\n\r\n", Some("a.com"));
        http("GET http://a.com/x HTTP/1.1\r\nHost: a.com\r\n\r\n", Some("a.com"));
        http("GET http://b.com/x HTTP/1.1\r\nHost: a.com\r\n\r\n", None);
        http("GET / HTTP/1.1\r\nHost: a.com\r\nHost: b.com\r\n\r\n", None);
        http("GET / HTTP/1.1\r\nHost: 93.184.216.34\r\n\r\n", None);
        http("GET / HTTP/1.0\r\n\r\n", None);
        http("SSH-2.0-OpenSSH\r\n\r\n", None);
        assert_eq!(name_in_http(b"GET / HTTP/1.1\r\nHos"), HelloName::Unfinished);
    }

    #[test]
    fn a_tls_hello_name_is_read_only_when_complete() {
        let config =
            rustls::ClientConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth();
        let hello = |name: &'static str| {
            let mut client =
                rustls::ClientConnection::new(config.clone().into(), name.try_into().expect("name"))
                    .expect("client");
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).expect("hello");
            bytes
        };
        let bytes = hello("www.example.com");
        assert_eq!(name_in_tls(&bytes), HelloName::Name("www.example.com".to_owned()));
        for length in 0..bytes.len() {
            assert_eq!(name_in_tls(&bytes[..length]), HelloName::Unfinished, "{length}");
        }
        assert_eq!(name_in_tls(&hello("93.184.216.34")), HelloName::None);
        assert_eq!(name_in_tls(b"GET / HTTP/1.1\r\n\r\n"), HelloName::None);
    }
}
