//! Fuzz targets: heads and bodies of HTTP/1, in pieces of any size.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HeaderMap, SET_COOKIE, TRANSFER_ENCODING};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::chunks::Chunks;
use super::lines::end_of_head;
use super::plain_head::PlainHead;
use super::request_head::write_request;
use super::send::Length;
use super::upstream::Upstream;
use crate::body::BodyError;
use crate::headers::Client;
use crate::limits::HEADER_LINES_MAX;
use crate::{confine_cookies, destination};

/// Header lines that the edge adds to a request.
const OWN_LINES_MAX: usize = 16;

/// A guest that sends these bytes in pieces, and closes.
struct Guest<'a> {
    bytes: &'a [u8],
    piece_bytes: usize,
}

impl AsyncRead for Guest<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let taken = self.piece_bytes.min(self.bytes.len()).min(buffer.remaining());
        let (piece, rest) = self.bytes.split_at(taken);
        buffer.put_slice(piece);
        self.bytes = rest;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guest<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Received {
    head: Option<(StatusCode, HeaderMap)>,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    is_whole: bool,
}

fn receive(bytes: &[u8], piece_bytes: usize, method: Method) -> Received {
    let none = Empty::new().map_err(|never: Infallible| -> BodyError { match never {} }).boxed_unsync();
    let mut upstream: Upstream<_, UnsyncBoxBody<Bytes, BodyError>> =
        Upstream::new(Guest { bytes, piece_bytes });
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = method;
    upstream.begin(&parts, &client(), none);
    let mut context = Context::from_waker(Waker::noop());
    let mut received = Received::default();
    let Poll::Ready(answer) = upstream.poll_answer(&mut context) else { unreachable!("it never waits") };
    let Ok(answer) = answer else { return received };
    received.head = Some((answer.status(), answer.headers().clone()));
    loop {
        let Poll::Ready(frame) = upstream.poll_frame(&mut context) else { unreachable!("it never waits") };
        match frame.map(|frame| frame.map(|frame| frame.into_data())) {
            Some(Ok(Ok(data))) => received.body.extend_from_slice(&data),
            Some(Ok(Err(frame))) => received.trailers = frame.into_trailers().ok(),
            Some(Err(_)) => return received,
            None => break,
        }
    }
    received.is_whole = true;
    received
}

fn client() -> Client {
    Client::new([203, 0, 113, 9].into(), 443, true)
}

/// A guest's response. The first byte is the size of the pieces and whether the request was HEAD.
/// The response is the same for any split, and its cookies are confined.
pub fn answer(data: &[u8]) {
    let Some((first, bytes)) = data.split_first() else { return };
    let method = if first & 0x80 != 0 { Method::HEAD } else { Method::GET };
    let whole = receive(bytes, bytes.len().max(1), method.clone());
    assert_eq!(whole, receive(bytes, usize::from(first & 0x7f) + 1, method.clone()));
    assert!(whole.body.len() <= bytes.len() && (method != Method::HEAD || whole.body.is_empty()));
    let Some((_, headers)) = whole.head else { return };
    assert!(!headers.contains_key(TRANSFER_ENCODING) || !headers.contains_key(CONTENT_LENGTH));
    check_cookies(&headers);
}

fn check_cookies(headers: &HeaderMap) {
    let mut confined = headers.clone();
    confine_cookies(&mut confined, false);
    let has_domain = |cookie: &HeaderValue| {
        let attributes = cookie.as_bytes().split(|byte| *byte == b';').skip(1);
        attributes.map(<[u8]>::trim_ascii).any(|attribute| {
            let name = attribute.split(|byte| *byte == b'=').next().unwrap_or_default();
            name.trim_ascii().eq_ignore_ascii_case(b"domain")
        })
    };
    assert!(!confined.get_all(SET_COOKIE).iter().any(has_domain), "{confined:?}");
    let mut again = confined.clone();
    confine_cookies(&mut again, false);
    assert_eq!(confined, again);
}

/// A client's request. A plain request reaches the guest as exactly one request, with one length.
pub fn request(data: &[u8]) {
    let Some(end) = end_of_head(data, 0) else { return };
    for seen in [end / 3, end.saturating_sub(1)] {
        assert_eq!(end_of_head(data, seen), Some(end), "{seen} bytes seen");
    }
    let Some(head) = PlainHead::parse(&Bytes::copy_from_slice(&data[..end])) else { return };
    let _ = destination(&head.parts.uri, &head.parts.headers);
    let mut out = Vec::new();
    write_request(&head.parts, &client(), Length::Known(head.length as u64), &mut out);
    let mut lines = [httparse::EMPTY_HEADER; HEADER_LINES_MAX + OWN_LINES_MAX];
    let mut written = httparse::Request::new(&mut lines);
    assert_eq!(written.parse(&out), Ok(httparse::Status::Complete(out.len())), "{head:?}");
    assert_eq!(written.method, Some(head.parts.method.as_str()));
    assert_eq!(written.path, head.parts.uri.path_and_query().map(|path| path.as_str()));
    let named = |name: &str| {
        let lines = written.headers.iter().filter(|line| line.name.eq_ignore_ascii_case(name));
        lines.map(|line| line.value).collect::<Vec<_>>()
    };
    assert!(named("transfer-encoding").is_empty());
    match named("content-length").as_slice() {
        [] => assert_eq!(head.length, 0),
        [length] => assert_eq!(*length, head.length.to_string().as_bytes()),
        more => unreachable!("{} lengths", more.len()),
    }
}

fn read_chunks(bytes: &[u8], piece_bytes: usize) -> (Vec<u8>, bool, Chunks) {
    let (mut chunks, mut input, mut data) = (Chunks::Size, BytesMut::new(), Vec::new());
    for piece in bytes.chunks(piece_bytes) {
        input.extend_from_slice(piece);
        loop {
            match chunks.take(&mut input) {
                Ok(Some(frame)) => data.extend(frame.into_data().unwrap_or_default()),
                Ok(None) => break,
                Err(_) => return (data, false, Chunks::Over),
            }
        }
    }
    (data, true, chunks)
}

/// A chunked body. The first byte is the size of the pieces: the body is the same however it is cut.
pub fn chunks(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let whole = read_chunks(bytes, bytes.len().max(1));
    assert_eq!(whole, read_chunks(bytes, usize::from(*piece) + 1));
    assert!(whole.0.len() <= bytes.len());
}
