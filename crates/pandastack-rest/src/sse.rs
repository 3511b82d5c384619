//! Server-sent events as the published clients read them: LF only, `event:` before exactly one
//! `data:` line, ASCII JSON (one client splits lines at U+0085 and U+2028), headers at once, and
//! periodic comments so that clients and proxies do not time out.

use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;
use http::header;
use serde::Serialize;

/// Longest silence on a stream.
pub const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// A comment; every reader ignores it.
pub const COMMENT: &str = ": \n\n";

/// A response of frames.
pub fn respond(frames: impl Stream<Item = String> + Send + 'static) -> Response {
    use futures::StreamExt;
    let bytes = frames.map(|frame| Ok::<_, Infallible>(Bytes::from(frame)));
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8"), (header::CACHE_CONTROL, "no-store")];
    (headers, Body::from_stream(bytes)).into_response()
}

/// A frame with JSON data.
pub fn json_frame(id: i64, event: &str, data: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(format!("id: {id}\nevent: {event}\ndata: {}\n\n", ascii_json(data)?))
}

/// A frame with one raw line.
pub fn line_frame(line: &str) -> String {
    let is_break =
        |c: char| matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    format!("data: {}\n\n", line.replace(is_break, " "))
}

/// JSON without a byte above 0x7f.
pub fn ascii_json(data: &impl Serialize) -> Result<String, serde_json::Error> {
    let text = serde_json::to_string(data)?;
    if text.is_ascii() {
        return Ok(text);
    }
    let mut ascii = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        if c.is_ascii() {
            ascii.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(ascii, "\\u{unit:04x}");
        }
    }
    Ok(ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_json_decodes_to_the_same_text() {
        for text in ["plain", "é\u{2028}", "😀", "\n\"\\"] {
            let ascii = ascii_json(&text).unwrap();
            assert!(ascii.is_ascii(), "{ascii}");
            assert_eq!(serde_json::from_str::<String>(&ascii).unwrap(), text);
        }
    }

    #[test]
    fn a_line_becomes_one_sse_data_line() {
        assert_eq!(line_frame("a\nb\u{2028}c"), "data: a b c\n\n");
    }
}
