//! The head of a plain request, as it is read from a client.
//!
//! Plain is what most requests are: HTTP/1.1 without a body, or with one of a stated length that came along with its head.
//! Everything else, and above all everything malformed, is `None` here and left to the library.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderMap};
use http::request::Parts;
use http::{Method, Request, Uri};
use httparse::{ParserConfig, Status};

use super::lines::header_map;
use crate::limits::HEADER_LINES_MAX;

/// A plain request's head.
#[derive(Debug)]
pub(super) struct PlainHead {
    pub(super) parts: Parts,
    /// Bytes of its body.
    pub(super) length: usize,
    /// Whether the client closes after the answer.
    pub(super) is_last: bool,
}

impl PlainHead {
    /// Reads a whole head, up to and with its empty line.
    pub(super) fn parse(bytes: &Bytes) -> Option<Self> {
        let mut lines = [const { MaybeUninit::uninit() }; HEADER_LINES_MAX];
        let mut parsed = httparse::Request::new(&mut []);
        let end =
            ParserConfig::default().parse_request_with_uninit_headers(&mut parsed, bytes, &mut lines).ok()?;
        // The parser passes over empty lines before a head.
        let is_whole =
            end == Status::Complete(bytes.len()) && bytes.first().is_some_and(u8::is_ascii_uppercase);
        if !is_whole || parsed.version != Some(1) {
            return None;
        }
        let path = parsed.path.filter(|path| path.starts_with('/'))?;
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = Method::from_bytes(parsed.method?.as_bytes()).ok()?;
        parts.uri = Uri::from_maybe_shared(bytes.slice_ref(path.as_bytes())).ok()?;
        parts.headers = header_map(bytes, parsed.headers).ok()?;
        let is_special =
            parts.method == Method::CONNECT || parts.headers.keys().any(|name| is_special(name.as_str()));
        if is_special {
            return None;
        }
        let (length, is_last) = (body_length(&parts.headers)?, is_last(&parts.headers)?);
        Some(Self { parts, length, is_last })
    }
}

/// Headers that mean more to a server than that they are to be passed on.
fn is_special(name: &str) -> bool {
    matches!(name, "transfer-encoding" | "upgrade" | "expect" | "te" | "trailer" | "http2-settings")
}

fn body_length(headers: &HeaderMap) -> Option<usize> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Some(0),
        (Some(length), None) if length.as_bytes().iter().all(u8::is_ascii_digit) => {
            length.to_str().ok()?.parse().ok()
        }
        _ => None,
    }
}

fn is_last(headers: &HeaderMap) -> Option<bool> {
    let mut options = headers.get_all(CONNECTION).iter();
    match (options.next(), options.next()) {
        (None, _) => Some(false),
        (Some(option), None) if option.as_bytes().eq_ignore_ascii_case(b"keep-alive") => Some(false),
        (Some(option), None) if option.as_bytes().eq_ignore_ascii_case(b"close") => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<PlainHead> {
        PlainHead::parse(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[track_caller]
    fn check(text: &str, length: usize, is_last: bool) {
        let head = parse(&format!("{text}\r\n\r\n")).unwrap();
        assert_eq!((head.length, head.is_last), (length, is_last), "{text:?}");
    }

    #[test]
    fn common_requests_are_parsed_as_plain() {
        check("GET /a?b=c HTTP/1.1\r\nHost: x\r\nAccept: */*", 0, false);
        check("HEAD / HTTP/1.1\r\nHost: x\r\nConnection: Keep-Alive", 0, false);
        check("DELETE / HTTP/1.1\r\nHost: x\r\nConnection: close", 0, true);
        check("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 12", 12, false);
        check("PROPFIND / HTTP/1.1\r\nHost: x\r\nContent-Length: 0", 0, false);
        let head = parse("GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert_eq!((head.parts.method, head.parts.uri), (Method::GET, Uri::from_static("/a?b=c")));
    }

    #[test]
    fn uncommon_requests_are_left_to_the_http_library() {
        for text in [
            "GET / HTTP/1.0\r\nHost: x",
            "PRI * HTTP/2.0",
            "OPTIONS * HTTP/1.1\r\nHost: x",
            "GET http://x/ HTTP/1.1\r\nHost: x",
            "CONNECT /x HTTP/1.1\r\nHost: x",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked",
            "POST / HTTP/1.1\r\nTransfer-Encoding : chunked",
            "POST / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 4",
            "POST / HTTP/1.1\r\nContent-Length: 4, 4",
            "POST / HTTP/1.1\r\nContent-Length: +4",
            "POST / HTTP/1.1\r\nContent-Length:",
            "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999",
            "POST / HTTP/1.1\r\nExpect: 100-continue",
            "GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket",
            "GET / HTTP/1.1\r\nConnection: close, x",
            "GET / HTTP/1.1\r\nConnection: close\r\nConnection: keep-alive",
            "GET / HTTP/1.1\r\nTE: trailers",
            "GET / HTTP/1.1\r\nX: a\0b",
            "GET / HTTP/1.1\r\nX: a\rb",
            "GET / HTTP/1.1\r\nX\u{b}: a",
            "GET / HTTP/1.1\r\nX: a\r\n folded",
            "GET  / HTTP/1.1\r\nX: a",
            "\r\nGET / HTTP/1.1\r\nX: a",
            "hello",
        ] {
            assert!(parse(&format!("{text}\r\n\r\n")).is_none(), "{text:?}");
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: a\r\n".repeat(HEADER_LINES_MAX + 1));
        assert!(parse(&many).is_none());
    }
}
