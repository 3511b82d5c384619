//! Headers that describe the client to the guest.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// A client's connection, as guests see it. Requests to the API carry it as an extension.
#[derive(Clone)]
pub struct Client {
    /// The client's address.
    pub address: IpAddr,
    /// Over TLS.
    pub secure: bool,
    text: Arc<str>,
    /// A port of ours.
    port: u16,
    /// Header lines that every request of this client carries, up to the host in `Forwarded`.
    lines: String,
}

impl Client {
    /// A client at an address, connected to a port of ours.
    pub fn new(address: IpAddr, port: u16, secure: bool) -> Self {
        let address = address.to_canonical();
        let scheme = scheme(secure);
        let lines = format!(
            "{FORWARDED_FOR}: {address}\r\n{FORWARDED_PORT}: {port}\r\n{FORWARDED_PROTO}: {scheme}\r\n{FORWARDED}: {}",
            forwarded_start(address)
        );
        Self { address, secure, text: address.to_string().into(), port, lines }
    }

    /// The client's address as text.
    pub(crate) fn text(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// Returns whether the client connected by TLS.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Writes the header lines that describe the client to a guest. They are half of a usual
    /// request's headers, so they are not inserted into its map first.
    pub(crate) fn write_lines(&self, host: &HeaderValue, out: &mut Vec<u8>) {
        let host = host.as_bytes();
        let end: &[u8] = if self.secure { b"\";proto=https\r\n" } else { b"\";proto=http\r\n" };
        let forwarded_host: &[u8] = b"x-forwarded-host: ";
        for piece in [self.lines.as_bytes(), quotable(host), end, forwarded_host, host, b"\r\n"] {
            out.extend_from_slice(piece);
        }
    }

    /// The same as headers.
    pub(crate) fn insert_headers(&self, host: &HeaderValue, headers: &mut HeaderMap) {
        let mut forwarded = forwarded_start(self.address).into_bytes();
        forwarded.extend_from_slice(quotable(host.as_bytes()));
        forwarded.extend_from_slice(b"\";proto=");
        forwarded.extend_from_slice(scheme(self.secure).as_bytes());
        let told = [
            (FORWARDED_FOR, HeaderValue::from_str(&self.text)),
            (FORWARDED, HeaderValue::from_bytes(&forwarded)),
        ];
        // An address is always a valid header value, and so is text that can be quoted.
        headers.extend(told.into_iter().filter_map(|(name, value)| Some((name, value.ok()?))));
        headers.insert(FORWARDED_HOST, host.clone());
        headers.insert(FORWARDED_PORT, HeaderValue::from(self.port));
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static(scheme(self.secure)));
    }
}

fn scheme(secure: bool) -> &'static str {
    if secure { "https" } else { "http" }
}

/// The part of `Forwarded` that precedes the host.
fn forwarded_start(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("for={address};host=\""),
        IpAddr::V6(address) => format!("for=\"[{address}]\";host=\""),
    }
}

/// A host that can stand between quotes.
fn quotable(host: &[u8]) -> &[u8] {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    if host.iter().all(is_plain) { host } else { b"unknown" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> Client {
        Client::new("203.0.113.9".parse().unwrap(), 8080, false)
    }

    #[track_caller]
    fn check_told(client: &Client, host: &str) {
        let host = HeaderValue::from_str(host).unwrap();
        let (mut lines, mut headers) = (Vec::new(), HeaderMap::new());
        client.write_lines(&host, &mut lines);
        client.insert_headers(&host, &mut headers);
        let lines = String::from_utf8(lines).unwrap();
        let mut written: Vec<_> = lines.strip_suffix("\r\n").unwrap().split("\r\n").collect();
        let inserted = headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        let mut inserted: Vec<_> = inserted.collect();
        written.sort_unstable();
        inserted.sort_unstable();
        assert_eq!(written, inserted);
    }

    #[test]
    fn written_and_inserted_client_headers_match() {
        check_told(&client(), "80-a.localhost:8080");
        check_told(&Client::new("2001:db8::1".parse().unwrap(), 443, true), "a.example");
        check_told(&client(), "a\";b");
    }

    #[test]
    fn a_host_header_cannot_inject_forwarded_parameters() {
        let mut headers = HeaderMap::new();
        client().insert_headers(&HeaderValue::from_static("a\";for=1.1.1.1;x=\""), &mut headers);
        assert_eq!(headers[FORWARDED], "for=203.0.113.9;host=\"unknown\";proto=http");
    }
}
