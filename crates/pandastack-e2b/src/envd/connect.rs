//! The Connect protocol, JSON codec: unary bodies, and streams of enveloped messages.
//!
//! ```text
//!   message: 0x00, length (4 bytes, big-endian), JSON        end: 0x02, length, {} or {"error": {"code", "message"}}
//! ```
//!
//! Every stream ends with the end frame, also after an error: a client that misses it reports a
//! broken connection.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::{BodyExt, Limited};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::error::{RpcCode, RpcError, RpcResult};
use crate::limits::{BODY_WAIT, KEEPALIVE_SECONDS, MESSAGE_BYTES_MAX};

const STREAM_TYPE: HeaderValue = HeaderValue::from_static("application/connect+json");
/// Flag byte and length.
const HEAD_BYTES: usize = 5;
const FLAG_COMPRESSED: u8 = 1;
const FLAG_END: u8 = 2;

/// Reads a unary request.
pub(super) async fn read_unary<T: DeserializeOwned>(body: Body) -> RpcResult<T> {
    let read = timeout(BODY_WAIT, Limited::new(body, MESSAGE_BYTES_MAX).collect()).await;
    let collected = read.map_err(|_| cut_off())?.map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() { too_long() } else { cut_off() }
    })?;
    let bytes = collected.to_bytes();
    parse(if bytes.is_empty() { b"{}" } else { &bytes })
}

/// Reads the one message of a request whose answer is a stream.
pub(super) async fn read_first<T: DeserializeOwned>(body: Body) -> RpcResult<T> {
    let mut messages = Messages::new(body);
    let first = timeout(BODY_WAIT, messages.next())
        .await
        .map_err(|_| cut_off())??
        .ok_or_else(|| RpcError::invalid("the request has no message"))?;
    parse(&first)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> RpcResult<T> {
    serde_json::from_slice(bytes).map_err(|error| RpcError::invalid(format!("invalid message: {error}")))
}

fn too_long() -> RpcError {
    RpcError::new(RpcCode::ResourceExhausted, format!("a message must be at most {MESSAGE_BYTES_MAX} bytes"))
}

fn cut_off() -> RpcError {
    RpcError::invalid("the request is incomplete; send it again")
}

/// Messages of a streaming request, until its end.
pub(super) struct Messages {
    body: BodyDataStream,
    buffer: BytesMut,
}

impl Messages {
    pub(super) fn new(body: Body) -> Self {
        Self { body: body.into_data_stream(), buffer: BytesMut::new() }
    }

    /// The next message, parsed.
    pub(super) async fn next_as<T: DeserializeOwned>(&mut self) -> RpcResult<Option<T>> {
        self.next().await?.map(|bytes| parse(&bytes)).transpose()
    }

    async fn next(&mut self) -> RpcResult<Option<Bytes>> {
        loop {
            if let Some((flags, message)) = self.take()? {
                match flags {
                    flags if flags & FLAG_END != 0 => return Ok(None),
                    flags if flags & FLAG_COMPRESSED != 0 => {
                        return Err(RpcError::new(
                            RpcCode::Unimplemented,
                            "compressed messages are not supported",
                        ));
                    }
                    _ => return Ok(Some(message)),
                }
            }
            match self.body.next().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                None if self.buffer.is_empty() => return Ok(None),
                _ => return Err(cut_off()),
            }
        }
    }

    fn take(&mut self) -> RpcResult<Option<(u8, Bytes)>> {
        let Some(head) = self.buffer.get(..HEAD_BYTES) else { return Ok(None) };
        let (flags, mut length) = (head[0], &head[1..]);
        let length = usize::try_from(length.get_u32()).unwrap_or(usize::MAX);
        if length > MESSAGE_BYTES_MAX {
            return Err(too_long());
        }
        if self.buffer.len() < HEAD_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(HEAD_BYTES);
        Ok(Some((flags, self.buffer.split_to(length).freeze())))
    }
}

/// A message of a stream.
pub(super) fn message(value: &Value) -> Bytes {
    frame(0, value)
}

/// The end of a stream.
pub(super) fn end(result: RpcResult<()>) -> Bytes {
    match result {
        Ok(()) => frame(FLAG_END, &json!({})),
        Err(error) => frame(FLAG_END, &json!({ "error": error.json() })),
    }
}

fn frame(flags: u8, value: &Value) -> Bytes {
    let text = value.to_string();
    let mut frame = BytesMut::with_capacity(HEAD_BYTES + text.len());
    frame.put_u8(flags);
    // Our JSON never approaches 4 GiB: its contents are bounded where they are read.
    frame.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
    frame.put_slice(text.as_bytes());
    frame.freeze()
}

/// A streaming answer; its head is sent at once.
pub(super) fn stream(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let body = Body::from_stream(frames.map(Ok::<_, std::convert::Infallible>));
    let mut response = body.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, STREAM_TYPE);
    response
}

/// A streaming answer that is over before it began.
pub(super) fn refused(error: RpcError) -> Response {
    stream(futures::stream::iter([end(Err(error))]))
}

/// Timing options of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace {
    /// Longest duration of the call.
    pub(super) timeout: Option<Duration>,
    /// Silence after which a keepalive is sent.
    pub(super) keepalive: Duration,
}

impl Pace {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let number = |name: &str| headers.get(name)?.to_str().ok()?.parse::<u64>().ok().filter(|n| *n > 0);
        Self {
            timeout: number("connect-timeout-ms").map(Duration::from_millis),
            keepalive: Duration::from_secs(number("keepalive-ping-interval").unwrap_or(KEEPALIVE_SECONDS)),
        }
    }
}

/// Sleeps until the deadline; forever without one.
pub(super) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(chunks: Vec<Vec<u8>>) -> Body {
        Body::from_stream(futures::stream::iter(chunks.into_iter().map(Ok::<_, std::convert::Infallible>)))
    }

    #[tokio::test]
    async fn connect_messages_are_parsed_across_chunk_boundaries() {
        let mut bytes = message(&json!({ "a": 1 })).to_vec();
        bytes.extend_from_slice(&message(&json!({ "a": 2 })));
        bytes.extend_from_slice(&end(Ok(())));
        for cut in 0..bytes.len() {
            let mut messages = Messages::new(body(vec![bytes[..cut].to_vec(), bytes[cut..].to_vec()]));
            let mut seen = Vec::new();
            while let Some(value) = messages.next_as::<Value>().await.unwrap() {
                seen.push(value["a"].as_i64().unwrap());
            }
            assert_eq!(seen, [1, 2], "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn bad_messages_are_refused() {
        let code = async |bytes: Vec<u8>| read_first::<Value>(body(vec![bytes])).await.unwrap_err().code;
        assert_eq!(code(vec![]).await, RpcCode::InvalidArgument);
        assert_eq!(code(vec![0, 0, 0, 0, 9, b'{']).await, RpcCode::InvalidArgument);
        assert_eq!(code(vec![1, 0, 0, 0, 2, b'{', b'}']).await, RpcCode::Unimplemented);
        assert_eq!(code(vec![0, 0, 0, 0, 2, b'{', b'x']).await, RpcCode::InvalidArgument);
        let mut long = vec![0];
        long.extend_from_slice(&u32::try_from(MESSAGE_BYTES_MAX + 1).unwrap().to_be_bytes());
        assert_eq!(code(long).await, RpcCode::ResourceExhausted);
        let unary = read_unary::<Value>(Body::from(vec![b' '; MESSAGE_BYTES_MAX + 1])).await;
        assert_eq!(unary.unwrap_err().code, RpcCode::ResourceExhausted);
    }

    #[test]
    fn the_end_of_stream_message_contains_the_error() {
        assert_eq!(&end(Ok(()))[..], b"\x02\0\0\0\x02{}");
        let error = end(Err(RpcError::new(RpcCode::NotFound, "x")));
        assert!(String::from_utf8_lossy(&error).contains(r#""code":"not_found""#));
    }
}
