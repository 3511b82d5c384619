//! Wire messages: their boundaries, and our own errors in their format.
//!
//! A message is one byte of kind, four of length (itself included), and a body. [`Frames`] finds the kinds in a stream of any
//! chunks without keeping bodies, so a session of gigabytes costs five bytes of state.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::limits::LOGIN_MESSAGE_BYTES_MAX;

/// Kind and length.
pub(crate) const HEAD_BYTES: usize = 5;
/// Memory reserved for announced bytes of a message that have not arrived.
const RESERVED_BYTES_MAX: usize = 64 * 1024;
/// States of a transaction in `ReadyForQuery`.
pub(crate) const IDLE: u8 = b'I';

/// Follows one direction of a session.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that are there.
    head_bytes: usize,
    /// Remaining bytes of the body.
    body_left: usize,
    /// The next byte is the body's first.
    at_first: bool,
}

/// Header of a message that passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageHead {
    pub(crate) kind: u8,
    /// First byte of its body, for `ReadyForQuery`.
    pub(crate) first: Option<u8>,
}

impl Frames {
    /// Calls `see` for every message whose head (and first byte, if it has a body) is complete with
    /// this chunk.
    pub(crate) fn pass(&mut self, mut chunk: &[u8], mut see: impl FnMut(MessageHead)) {
        while !chunk.is_empty() {
            if self.body_left > 0 {
                if std::mem::take(&mut self.at_first) {
                    see(MessageHead { kind: self.head[0], first: chunk.first().copied() });
                }
                let taken = self.body_left.min(chunk.len());
                self.body_left -= taken;
                chunk = &chunk[taken..];
                continue;
            }
            let taken = (HEAD_BYTES - self.head_bytes).min(chunk.len());
            self.head[self.head_bytes..self.head_bytes + taken].copy_from_slice(&chunk[..taken]);
            self.head_bytes += taken;
            chunk = &chunk[taken..];
            if self.head_bytes == HEAD_BYTES {
                self.head_bytes = 0;
                self.body_left = body_bytes(&self.head).unwrap_or(0);
                self.at_first = self.body_left > 0;
                if !self.at_first {
                    see(MessageHead { kind: self.head[0], first: None });
                }
            }
        }
    }
}

/// Bytes after the head; `None` for an invalid length.
pub(crate) fn body_bytes(head: &[u8; HEAD_BYTES]) -> Option<usize> {
    let [_, a, b, c, d] = *head;
    usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?.checked_sub(4)
}

/// Takes a whole message off the front: its kind and body. `Ok(None)` while it is incomplete.
pub(crate) fn take(buffer: &mut BytesMut, bytes_max: usize) -> Result<Option<(u8, Bytes)>, TooLong> {
    let Some(head) = buffer.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let kind = head[0];
    let body = body_bytes(head).filter(|bytes| *bytes <= bytes_max).ok_or(TooLong)?;
    if buffer.len() < HEAD_BYTES + body {
        // Do not reserve a whole message at once: a head is cheap to send.
        buffer.reserve((HEAD_BYTES + body - buffer.len()).min(RESERVED_BYTES_MAX));
        return Ok(None);
    }
    let mut message = buffer.split_to(HEAD_BYTES + body).freeze();
    Ok(Some((kind, message.split_off(HEAD_BYTES))))
}

/// Reads one message of a login and not a byte more: what follows may belong to another.
pub(crate) async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u8, Vec<u8>)> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).await?;
    let bytes = body_bytes(&head).filter(|bytes| *bytes <= LOGIN_MESSAGE_BYTES_MAX);
    let mut body = vec![0; bytes.ok_or_else(|| std::io::Error::other(TooLong))?];
    stream.read_exact(&mut body).await?;
    Ok((head[0], body))
}

/// A message is longer than it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message is too long")]
pub(crate) struct TooLong;

/// Writes a message.
pub(crate) fn message(kind: u8, body: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEAD_BYTES + body.len());
    bytes.put_u8(kind);
    bytes.put_u32(u32::try_from(body.len() + 4).unwrap_or(u32::MAX));
    bytes.put_slice(body);
    bytes.freeze()
}

/// An error of ours that ends a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fatal {
    /// SQLSTATE.
    pub(crate) code: Cow<'static, str>,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Fatal {
    pub(crate) fn new(code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), hint: None }
    }

    /// Error for clients with work in progress when the machine stops.
    pub(crate) fn asleep() -> Self {
        Self::new("57P01", "the database went to sleep or was stopped")
            .hint("connect again; connecting wakes a sleeping database")
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// As an `ErrorResponse`.
    pub(crate) fn encode(&self) -> Bytes {
        let mut body = BytesMut::new();
        let mut field = |kind: u8, text: &str| {
            body.put_u8(kind);
            body.put_slice(text.replace('\0', "").as_bytes());
            body.put_u8(0);
        };
        field(b'S', "FATAL");
        field(b'V', "FATAL");
        field(b'C', &self.code);
        field(b'M', &self.message);
        if let Some(hint) = &self.hint {
            field(b'H', hint);
        }
        body.put_u8(0);
        message(b'E', &body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(chunks: &[&[u8]]) -> Vec<(u8, Option<u8>)> {
        let (mut frames, mut all) = (Frames::default(), Vec::new());
        for chunk in chunks {
            frames.pass(chunk, |seen| all.push((seen.kind, seen.first)));
        }
        all
    }

    #[test]
    fn messages_are_found_across_any_chunk_boundaries() {
        let mut stream = message(b'D', &[7; 300]).to_vec();
        stream.extend(message(b'n', b""));
        stream.extend(message(b'Z', b"T"));
        let expect = vec![(b'D', Some(7)), (b'n', None), (b'Z', Some(b'T'))];
        assert_eq!(seen(&[&stream]), expect);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(seen(&bytes), expect);
        let odd: Vec<&[u8]> = stream.chunks(7).collect();
        assert_eq!(seen(&odd), expect);
    }

    #[test]
    fn complete_messages_are_read_and_oversized_ones_rejected() {
        let mut buffer = BytesMut::from(&message(b'S', b"abc")[..]);
        assert_eq!(take(&mut buffer, 3), Ok(Some((b'S', Bytes::from_static(b"abc")))));
        assert_eq!(take(&mut buffer, 3), Ok(None));
        buffer.extend_from_slice(&message(b'S', b"abcd"));
        assert_eq!(take(&mut buffer, 3), Err(TooLong));
        let mut announced = BytesMut::from(&b"S\x7f\0\0\0"[..]);
        assert_eq!(take(&mut announced, usize::MAX), Ok(None));
        assert!(announced.capacity() < 4 * RESERVED_BYTES_MAX, "{} bytes reserved", announced.capacity());
        let mut nonsense = BytesMut::from(&b"S\0\0\0\x01"[..]);
        assert_eq!(take(&mut nonsense, 3), Err(TooLong));
    }

    #[test]
    fn a_fatal_error_encodes_its_fields() {
        let bytes = Fatal::new("3D000", "no").hint("do").encode();
        assert_eq!(&bytes[5..], b"SFATAL\0VFATAL\0C3D000\0Mno\0Hdo\0\0");
    }
}
