//! Server errors to which the platform adds a hint: the server's own message about a full disk, or
//! about a query cancelled because of it, does not say what to do.
//!
//! [`Errors`] splits a server's stream, in chunks of any size, into bytes that pass unchanged and
//! whole `ErrorResponse` messages. Only these are buffered until they are complete, up to
//! [`ERROR_BYTES_MAX`].

use bytes::{BufMut, Bytes, BytesMut};

use crate::backend::Databases;
use crate::endpoint::Endpoint;
use crate::limits::{ERROR_BYTES_MAX, EXPLAIN_WAIT};
use crate::query::SqlError;
use crate::wire::{HEAD_BYTES, body_bytes, message};

const ERROR: u8 = b'E';
/// Errors that [`Databases::explain`](crate::Databases::explain) may explain: a read-only
/// transaction, a full disk, a cancelled query.
const EXPLAINED: [&str; 3] = ["25006", "53100", "57014"];

/// A part of a server's stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// Passes unchanged.
    Other(&'a [u8]),
    /// A whole message, head included.
    Error(Bytes),
    /// The start of an error that is too long to buffer; the rest passes unchanged.
    TooLong(Bytes),
}

/// Follows a server's side of a session.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// Remaining bytes of the message's body.
    body_left: usize,
    /// Bytes of an error received so far.
    held: BytesMut,
}

impl Errors {
    /// Cuts a chunk.
    pub(crate) fn cut<'a>(&mut self, chunk: &'a [u8]) -> Vec<Piece<'a>> {
        let (mut pieces, mut passed, mut at) = (Vec::with_capacity(1), 0, 0);
        while at < chunk.len() {
            if self.body_left == 0 && self.head_bytes == 0 && chunk[at] == ERROR && at > passed {
                pieces.push(Piece::Other(&chunk[passed..at]));
                passed = at;
            }
            let taken = self.advance(&chunk[at..]);
            if self.is_error() {
                self.held.extend_from_slice(&chunk[at..at + taken]);
                passed = at + taken;
                pieces.extend(self.release());
            }
            at += taken;
            if self.head_bytes == HEAD_BYTES && self.body_left == 0 {
                self.head_bytes = 0;
            }
        }
        if passed < chunk.len() {
            pieces.push(Piece::Other(&chunk[passed..]));
        }
        pieces
    }

    /// Continues with a part of a head or of a body, and returns its length.
    fn advance(&mut self, rest: &[u8]) -> usize {
        if self.head_bytes == HEAD_BYTES {
            let taken = self.body_left.min(rest.len());
            self.body_left -= taken;
            return taken;
        }
        let taken = (HEAD_BYTES - self.head_bytes).min(rest.len());
        self.head[self.head_bytes..self.head_bytes + taken].copy_from_slice(&rest[..taken]);
        self.head_bytes += taken;
        if self.head_bytes == HEAD_BYTES {
            self.body_left = body_bytes(&self.head).unwrap_or(0);
        }
        taken
    }

    /// Returns whether the message in progress is an error that is held back.
    fn is_error(&self) -> bool {
        self.head[0] == ERROR
            && !(self.head_bytes == HEAD_BYTES
                && self.held.is_empty()
                && body_bytes(&self.head).is_none_or(|bytes| bytes > ERROR_BYTES_MAX))
    }

    /// An error that is complete, or will be too long.
    fn release(&mut self) -> Option<Piece<'static>> {
        if self.head_bytes < HEAD_BYTES {
            return None;
        }
        if body_bytes(&self.head).is_none_or(|bytes| bytes > ERROR_BYTES_MAX) {
            return Some(Piece::TooLong(self.held.split().freeze()));
        }
        (self.body_left == 0).then(|| Piece::Error(self.held.split().freeze()))
    }
}

/// Returns an explanation of an error for the client, if the platform knows more than the server reports.
pub(crate) async fn explain(databases: &dyn Databases, endpoint: &Endpoint, code: &str) -> Option<String> {
    if !EXPLAINED.contains(&code) {
        return None;
    }
    tokio::time::timeout(EXPLAIN_WAIT, databases.explain(endpoint, code)).await.ok().flatten()
}

/// The SQLSTATE of an error.
pub(crate) fn code_of(error: &[u8]) -> String {
    SqlError::parse(error.get(HEAD_BYTES..).unwrap_or_default()).code
}

/// The same error with another hint.
pub(crate) fn with_hint(error: &[u8], hint: &str) -> Bytes {
    let body = error.get(HEAD_BYTES..).unwrap_or_default();
    let mut amended = BytesMut::with_capacity(body.len() + hint.len() + 2);
    for field in body.split(|byte| *byte == 0).filter(|field| !field.is_empty() && field[0] != b'H') {
        amended.put_slice(field);
        amended.put_u8(0);
    }
    amended.put_u8(b'H');
    amended.put_slice(hint.replace('\0', "").as_bytes());
    amended.put_slice(&[0, 0]);
    message(ERROR, &amended)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream_with_errors() -> (Vec<u8>, Bytes) {
        let error = message(ERROR, b"SERROR\0VERROR\0C25006\0Mread only\0Hold\0\0");
        let mut stream = message(b'D', &[ERROR; 40]).to_vec();
        stream.extend_from_slice(&error);
        stream.extend_from_slice(&message(b'n', b""));
        stream.extend_from_slice(&error);
        stream.extend_from_slice(&message(b'Z', b"I"));
        (stream, error)
    }

    #[test]
    fn errors_are_found_at_any_split_without_losing_bytes() {
        let (stream, error) = stream_with_errors();
        for size in [1, 2, 3, 5, 7, 11, 64, stream.len()] {
            let (mut errors, mut found, mut all) = (Errors::default(), 0, Vec::new());
            for chunk in stream.chunks(size) {
                for piece in errors.cut(chunk) {
                    match piece {
                        Piece::Other(bytes) => all.extend_from_slice(bytes),
                        Piece::Error(bytes) => {
                            assert_eq!(bytes, error, "cut by {size}");
                            found += 1;
                            all.extend_from_slice(&bytes);
                        }
                        Piece::TooLong(_) => panic!("none is"),
                    }
                }
            }
            assert_eq!((found, &all), (2, &stream), "cut by {size}");
        }
    }

    #[test]
    fn oversized_error_messages_pass_through_unparsed() {
        let mut stream = message(ERROR, &vec![b'M'; ERROR_BYTES_MAX + 1]).to_vec();
        stream.extend_from_slice(&message(b'Z', b"I"));
        let exact = message(ERROR, &vec![b'M'; ERROR_BYTES_MAX]);
        stream.extend_from_slice(&exact);
        for size in [3, 1000, stream.len()] {
            let (mut errors, mut all, mut whole) = (Errors::default(), Vec::new(), Vec::new());
            for chunk in stream.chunks(size) {
                for piece in errors.cut(chunk) {
                    match piece {
                        Piece::Other(bytes) => all.extend_from_slice(bytes),
                        Piece::TooLong(bytes) => all.extend_from_slice(&bytes),
                        Piece::Error(bytes) => {
                            whole.push(bytes.clone());
                            all.extend_from_slice(&bytes);
                        }
                    }
                }
            }
            assert_eq!(whole, std::slice::from_ref(&exact));
            assert!(all == stream, "cut by {size}");
        }
    }

    #[test]
    fn a_hint_replaces_the_previous_hint() {
        let (_, error) = stream_with_errors();
        assert_eq!(code_of(&error), "25006");
        let amended = with_hint(&error, "grow it");
        assert_eq!(amended, message(ERROR, b"SERROR\0VERROR\0C25006\0Mread only\0Hgrow it\0\0"));
    }
}
