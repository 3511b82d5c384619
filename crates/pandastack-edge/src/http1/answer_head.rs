//! Parses the head of a guest's response.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use http::{Response, StatusCode, Version};
use httparse::{ParserConfig, Status};

use super::chunks::Chunks;
use super::lines::{Malformed, header_map, malformed};
use crate::headers::names;
use crate::limits::HEADER_LINES_MAX;

/// Position in an answer's body, and how its end is found (RFC 9112, 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Number of bytes that are left.
    Length(u64),
    /// The body comes in chunks.
    Chunked(Chunks),
    /// The body ends with the connection.
    UntilClose,
}

impl Framing {
    /// Framing of an empty body.
    pub(super) const NO_BODY: Self = Self::Length(0);
    const CHUNKED: Self = Self::Chunked(Chunks::Size);

    /// Returns whether the body is complete.
    pub(super) fn is_over(self) -> bool {
        matches!(self, Framing::Length(0) | Framing::Chunked(Chunks::Over))
    }
}

/// An answer's head.
#[derive(Debug)]
pub(super) struct AnswerHead {
    pub(super) response: Response<()>,
    pub(super) framing: Framing,
    /// The guest lets the connection be used again.
    pub(super) is_kept: bool,
}

impl AnswerHead {
    /// Reads a whole head, up to and with its empty line. `None` if a final one follows (1xx).
    pub(super) fn parse(bytes: &Bytes, asked_for_head: bool) -> Result<Option<Self>, Malformed> {
        let mut lines = [const { MaybeUninit::uninit() }; HEADER_LINES_MAX];
        let mut parsed = httparse::Response::new(&mut []);
        let end = ParserConfig::default()
            .parse_response_with_uninit_headers(&mut parsed, bytes, &mut lines)
            .map_err(malformed)?;
        let (Status::Complete(_), Some(code), Some(version)) = (end, parsed.code, parsed.version) else {
            return Err(malformed("the head is incomplete"));
        };
        // The parser passes over empty lines before a head.
        if !bytes.starts_with(b"HTTP/") {
            return Err(malformed("it does not begin with a status line"));
        }
        let status = StatusCode::from_u16(code).map_err(|_| malformed("the status is invalid"))?;
        if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(None);
        }
        let version = if version == 1 { Version::HTTP_11 } else { Version::HTTP_10 };
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = header_map(bytes, parsed.headers)?;
        let framing = framing(status, version, response.headers_mut(), asked_for_head)?;
        let is_kept = status != StatusCode::SWITCHING_PROTOCOLS && is_kept(version, response.headers());
        Ok(Some(Self { response, framing, is_kept }))
    }
}

fn is_kept(version: Version, headers: &HeaderMap) -> bool {
    !names(headers, "close") && (version == Version::HTTP_11 || names(headers, "keep-alive"))
}

fn framing(
    status: StatusCode,
    version: Version,
    headers: &mut HeaderMap,
    asked_for_head: bool,
) -> Result<Framing, Malformed> {
    let is_coded = headers.contains_key(TRANSFER_ENCODING);
    let length = content_length(headers)?;
    if is_coded && length.is_some() {
        return Err(malformed("it has both a length and a transfer coding"));
    }
    if is_coded && version == Version::HTTP_10 {
        return Err(malformed("HTTP/1.0 has no transfer codings"));
    }
    let has_no_body =
        matches!(status, StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    match length {
        _ if asked_for_head || has_no_body => Ok(Framing::NO_BODY),
        Some(length) => Ok(Framing::Length(length)),
        None if is_coded => coding(headers),
        None => Ok(Framing::UntilClose),
    }
}

/// `chunked` and nothing else: any other coding would be passed on without being named, since the header is of one
/// connection only.
fn coding(headers: &HeaderMap) -> Result<Framing, Malformed> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(Framing::CHUNKED),
        _ => Err(malformed("its transfer coding is not `chunked` alone")),
    }
}

/// The length that the head names. A length that is repeated identically is written once.
fn content_length(headers: &mut HeaderMap) -> Result<Option<u64>, Malformed> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return Ok(None) };
    let mut is_repeated = false;
    for other in lengths {
        if other != first {
            return Err(malformed("it has two lengths"));
        }
        is_repeated = true;
    }
    let length = number(first.as_bytes()).ok_or_else(|| malformed("its length is not a number"))?;
    if is_repeated {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(Some(length))
}

/// Digits only: `+4` is a number to some and not to others.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Option<AnswerHead>, Malformed> {
        AnswerHead::parse(&Bytes::copy_from_slice(text.as_bytes()), false)
    }

    #[track_caller]
    fn check(lines: &str, framing: Framing, is_kept: bool) {
        let head = parse(&format!("{lines}\r\n\r\n")).unwrap().unwrap();
        assert_eq!((head.framing, head.is_kept), (framing, is_kept), "{lines:?}");
    }

    #[test]
    fn body_framing_is_derived_from_the_response_head() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 5", Framing::Length(5), true);
        check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\ncontent-length: 5", Framing::Length(5), true);
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked", Framing::CHUNKED, true);
        check("HTTP/1.1 200 OK", Framing::UntilClose, true);
        check("HTTP/1.1 200\r\nConnection: x, Close\r\nContent-Length: 0", Framing::Length(0), false);
        check("HTTP/1.0 200 OK\r\nContent-Length: 5", Framing::Length(5), false);
        check("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5", Framing::Length(5), true);
        check("HTTP/1.1 204 No\r\nContent-Length: 5", Framing::Length(0), true);
        check("HTTP/1.1 304 No\r\nTransfer-Encoding: chunked", Framing::Length(0), true);
    }

    #[test]
    fn a_head_response_keeps_its_content_length() {
        let text = Bytes::from_static(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
        let head = AnswerHead::parse(&text, true).unwrap().unwrap();
        assert_eq!(head.framing, Framing::Length(0));
        assert_eq!(head.response.headers()[CONTENT_LENGTH], "5");
    }

    #[test]
    fn a_repeated_content_length_is_forwarded_once() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n";
        let head = parse(text).unwrap().unwrap();
        assert_eq!(head.response.headers().get_all(CONTENT_LENGTH).iter().count(), 1);
    }

    #[test]
    fn interim_responses_are_not_final_responses() {
        assert!(parse("HTTP/1.1 100 Continue\r\n\r\n").unwrap().is_none());
        assert!(parse("HTTP/1.1 103 Early\r\nLink: x\r\n\r\n").unwrap().is_none());
        assert!(parse("HTTP/1.1 101 Go\r\nUpgrade: x\r\n\r\n").unwrap().is_some());
    }

    #[test]
    fn responses_with_ambiguous_framing_are_rejected() {
        for lines in [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6",
            "HTTP/1.1 200 OK\r\nContent-Length: 5, 5",
            "HTTP/1.1 200 OK\r\nContent-Length: +5",
            "HTTP/1.1 200 OK\r\nContent-Length: -1",
            "HTTP/1.1 200 OK\r\nContent-Length:",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked",
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked",
            "HTTP/1.1 200 OK\r\nX: a\r\n folded",
            "HTTP/1.1 200 OK\r\nX: a\0b",
            "HTTP/1.1 200 OK\r\nX: a\rb",
            "HTTP/1.1 20 OK",
            "HTTP/1.1 099 OK",
            "HTTP/2 200 OK",
            "\r\nHTTP/1.1 200 OK",
            "hello",
        ] {
            let parsed = parse(&format!("{lines}\r\n\r\n"));
            assert!(parsed.is_err(), "{lines:?}: {parsed:?}");
        }
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: a\r\n".repeat(HEADER_LINES_MAX + 1));
        assert!(parse(&many).is_err());
    }
}
