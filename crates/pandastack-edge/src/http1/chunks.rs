//! Parser of the chunked transfer coding (RFC 9112, 7.1).
//!
//! ```text
//!   size --n--> data --all of it--> its end --> size
//!    +----0--> trailers --empty line--> over
//! ```

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use hyper::body::Frame;

use super::lines::{Malformed, end_of_head, header_map, malformed};
use crate::limits::HEADER_LINES_MAX;

/// Longest line with a chunk's size and its extensions, which are not used in practice.
const SIZE_LINE_BYTES_MAX: usize = 1024;
/// All trailers of an answer.
const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// The state of the chunk parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunks {
    /// A chunk's size.
    Size,
    /// Number of bytes of a chunk.
    Data(u64),
    /// The end of line after a chunk.
    DataEnd,
    /// Trailers, or the empty line at the end.
    Trailers,
    /// The body is complete.
    Over,
}

impl Chunks {
    /// The next piece of the body that is in `input`. `None` if more input is needed, or if it is over.
    pub(super) fn take(&mut self, input: &mut BytesMut) -> Result<Option<Frame<Bytes>>, Malformed> {
        loop {
            match *self {
                Chunks::Size => match take_size(input)? {
                    Some(0) => *self = Chunks::Trailers,
                    Some(size) => *self = Chunks::Data(size),
                    None => return Ok(None),
                },
                Chunks::Data(left) => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
                    let left = left - taken as u64;
                    *self = if left == 0 { Chunks::DataEnd } else { Chunks::Data(left) };
                    return Ok(Some(Frame::data(input.split_to(taken).freeze())));
                }
                Chunks::DataEnd => match &input[..] {
                    [b'\r', b'\n', ..] => {
                        input.advance(2);
                        *self = Chunks::Size;
                    }
                    [] | [b'\r'] => return Ok(None),
                    _ => return Err(malformed("a chunk is longer than its size")),
                },
                Chunks::Trailers => {
                    let Some(trailers) = take_trailers(input)? else { return Ok(None) };
                    *self = Chunks::Over;
                    return Ok((!trailers.is_empty()).then(|| Frame::trailers(trailers)));
                }
                Chunks::Over => return Ok(None),
            }
        }
    }
}

fn take_size(input: &mut BytesMut) -> Result<Option<u64>, Malformed> {
    let seen = &input[..input.len().min(SIZE_LINE_BYTES_MAX)];
    let Some(end) = memchr::memchr(b'\n', seen) else {
        if seen.len() == SIZE_LINE_BYTES_MAX {
            return Err(malformed("a chunk size is too long"));
        }
        return Ok(None);
    };
    let line =
        seen[..end].strip_suffix(b"\r").ok_or_else(|| malformed("a chunk size ends in a bare line feed"))?;
    let size = parse_size(line).ok_or_else(|| malformed("a chunk size is not a number"))?;
    input.advance(end + 1);
    Ok(Some(size))
}

/// Hexadecimal digits, then blanks, then extensions, which mean nothing to us.
fn parse_size(line: &[u8]) -> Option<u64> {
    let end = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (digits, rest) = line.split_at(end);
    let rest = rest.trim_ascii_start();
    let is_extended = rest.first() == Some(&b';') && !rest.contains(&b'\r');
    if !rest.is_empty() && !is_extended {
        return None;
    }
    // Only hexadecimal digits are left: no sign, which this would accept. Empty text is an error.
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn take_trailers(input: &mut BytesMut) -> Result<Option<HeaderMap>, Malformed> {
    let end = match &input[..] {
        [b'\r', b'\n', ..] => {
            input.advance(2);
            return Ok(Some(HeaderMap::new()));
        }
        [] | [b'\r'] => None,
        bytes => end_of_head(bytes, 0),
    };
    if end.unwrap_or(input.len()) > TRAILER_BYTES_MAX {
        return Err(malformed("its trailers are too long"));
    }
    let Some(end) = end else { return Ok(None) };
    let block = input.split_to(end).freeze();
    let mut lines = [httparse::EMPTY_HEADER; HEADER_LINES_MAX];
    match httparse::parse_headers(&block, &mut lines) {
        Ok(httparse::Status::Complete((_, lines))) => header_map(&block, lines).map(Some),
        _ => Err(malformed("its trailers are not valid headers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a body that arrives in the given pieces: its bytes, its trailers, and the rest of the
    /// input.
    fn read<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(String, HeaderMap, Chunks), Malformed> {
        let (mut chunks, mut input) = (Chunks::Size, BytesMut::new());
        let (mut data, mut trailers) = (Vec::new(), HeaderMap::new());
        for piece in pieces {
            input.extend_from_slice(piece);
            while let Some(frame) = chunks.take(&mut input)? {
                match frame.into_data() {
                    Ok(bytes) => data.extend_from_slice(&bytes),
                    Err(frame) => trailers = frame.into_trailers().unwrap(),
                }
            }
        }
        Ok((String::from_utf8(data).unwrap(), trailers, chunks))
    }

    const BODY: &[u8] =
        b"5\r\nhello\r\n1;a=\"b\"\r\n,\r\n0006 \t\r\n world\r\n0\r\nX-Sum: 9\r\nX-B: c\r\n\r\n";

    #[test]
    fn a_chunked_body_parses_at_any_split() {
        for at in 0..BODY.len() {
            let (data, trailers, chunks) = read([&BODY[..at], &BODY[at..]]).unwrap();
            assert_eq!((data.as_str(), chunks), ("hello, world", Chunks::Over), "{at}");
            assert_eq!(trailers["x-sum"], "9");
        }
        let (data, trailers, chunks) = read(BODY.chunks(1)).unwrap();
        assert_eq!((data.as_str(), trailers.len(), chunks), ("hello, world", 2, Chunks::Over));
    }

    #[test]
    fn truncated_chunked_bodies_are_incomplete() {
        for at in 0..BODY.len() {
            let (_, _, chunks) = read([&BODY[..at]]).unwrap();
            assert_ne!(chunks, Chunks::Over, "{at}");
        }
    }

    #[test]
    fn malformed_chunks_are_rejected() {
        let long = format!("1;{}\r\n", "a".repeat(SIZE_LINE_BYTES_MAX));
        let trailers = format!("0\r\nX: {}\r\n\r\n", "a".repeat(TRAILER_BYTES_MAX));
        for text in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\n",
            "0x1\r\n",
            " 1\r\n",
            "1 1\r\n",
            "1\n",
            "1;a\rb\r\n",
            "1,\r\n",
            "10000000000000000\r\n",
            "1\r\nab\r\n",
            "1\r\na\n",
            "1\r\na\rb",
            "0\r\nX : a\r\n\r\n",
            "0\r\n\0\r\n\r\n",
            &long,
            &trailers,
        ] {
            let found = read([text.as_bytes()]);
            assert!(found.is_err(), "{text:?}: {found:?}");
        }
    }
}
