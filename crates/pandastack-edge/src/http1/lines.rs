//! Parsing shared by all heads: lines, up to an empty one.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// A head that violates the grammar (RFC 9112), or that can be read in two ways.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(String);

pub(super) fn malformed(what: impl ToString) -> Malformed {
    Malformed(what.to_string())
}

/// The position after the empty line that ends a head or a block of trailers; `None` if it has not
/// arrived. The bytes before `from` were already searched.
pub(super) fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    // New bytes may complete a line ending that starts in the last two of them.
    let from = from.saturating_sub(2);
    memchr::memchr_iter(b'\n', bytes.get(from..)?).map(|at| from + at + 1).find_map(|line| {
        match bytes.get(line..)? {
            [b'\n', ..] => Some(line + 1),
            [b'\r', b'\n', ..] => Some(line + 2),
            _ => None,
        }
    })
}

/// The lines as a map whose values are pieces of `bytes`.
pub(super) fn header_map(bytes: &Bytes, lines: &[httparse::Header<'_>]) -> Result<HeaderMap, Malformed> {
    let mut headers = HeaderMap::with_capacity(lines.len());
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(malformed)?;
        let value = HeaderValue::from_maybe_shared(bytes.slice_ref(line.value)).map_err(malformed)?;
        headers.append(name, value);
    }
    Ok(headers)
}

pub(super) fn write_line(name: &str, value: &[u8], out: &mut Vec<u8>) {
    for piece in [name.as_bytes(), b": ", value, b"\r\n"] {
        out.extend_from_slice(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_head_is_found_across_any_split() {
        for text in ["a\r\nb\r\n\r\nrest", "a\nb\n\nrest", "a\r\nb\n\r\nrest"] {
            let end = text.len() - "rest".len();
            for seen in 0..end {
                assert_eq!(end_of_head(&text.as_bytes()[..seen], 0), None, "{text:?} {seen}");
                assert_eq!(end_of_head(text.as_bytes(), seen), Some(end), "{text:?} {seen}");
            }
        }
    }
}
