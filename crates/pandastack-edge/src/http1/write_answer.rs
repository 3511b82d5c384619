//! Writes the head of a response to a client.

use http::StatusCode;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::response::Parts;
use hyper::body::Body;
use jiff::Timestamp;

use super::downstream::ResponseForm;
use super::lines::write_line;
use super::send::Length;
use crate::body::ResponseBody;

/// The time as heads have it, made once a second.
#[derive(Default)]
pub(super) struct Date {
    second: i64,
    text: String,
}

impl Date {
    fn at(&mut self, now: Timestamp) -> &str {
        if self.second != now.as_second() || self.text.is_empty() {
            self.second = now.as_second();
            self.text = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        }
        &self.text
    }
}

/// The body to send after a head, and the length in the head, if any.
pub(super) fn body_of(
    head: &Parts,
    body: ResponseBody,
    form: ResponseForm,
) -> (Option<ResponseBody>, Option<Length>) {
    let length = body.size_hint().exact().map_or(Length::Chunked, Length::Known);
    match head.status {
        StatusCode::NO_CONTENT => (None, None),
        StatusCode::NOT_MODIFIED => (None, declared_length(head)),
        // The length that another method would get.
        _ if form.asked_for_head => match (declared_length(head), length) {
            (None, Length::Known(length)) if length > 0 => (None, Some(Length::Known(length))),
            (told, _) => (None, told),
        },
        _ => (Some(body), Some(length)),
    }
}

/// The length that the guest stated, for answers without a body.
fn declared_length(head: &Parts) -> Option<Length> {
    head.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok().map(Length::Known)
}

/// Writes an answer's head. The body's length is set here, regardless of the headers.
pub(super) fn write_answer(
    head: &Parts,
    length: Option<Length>,
    form: ResponseForm,
    date: &mut Date,
    out: &mut Vec<u8>,
) {
    let reason = head.status.canonical_reason().unwrap_or_default();
    for piece in ["HTTP/1.1 ", head.status.as_str(), " ", reason, "\r\n"] {
        out.extend_from_slice(piece.as_bytes());
    }
    let mut is_dated = false;
    for (name, value) in &head.headers {
        if name == CONTENT_LENGTH || name == TRANSFER_ENCODING || name == CONNECTION {
            continue;
        }
        is_dated |= name == DATE;
        write_line(name.as_str(), value.as_bytes(), out);
    }
    match length {
        None => {}
        Some(Length::Known(length)) => write_line("content-length", length.to_string().as_bytes(), out),
        Some(Length::Chunked) => write_line("transfer-encoding", b"chunked", out),
    }
    if form.is_last {
        write_line("connection", b"close", out);
    }
    if !is_dated {
        write_line("date", date.at(Timestamp::now()).as_bytes(), out);
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Response;
    use http_body_util::Full;

    use super::*;

    const PLAIN: ResponseForm = ResponseForm { asked_for_head: false, is_last: false };
    const HEAD: ResponseForm = ResponseForm { asked_for_head: true, is_last: false };

    #[track_caller]
    fn check(
        status: u16,
        lines: &[(&str, &str)],
        body: &'static str,
        form: ResponseForm,
        expect: &str,
        sent: bool,
    ) {
        let mut response = Response::builder().status(status).header("date", "now");
        for (name, value) in lines {
            response = response.header(*name, *value);
        }
        let body = ResponseBody::Own(Full::new(Bytes::from(body)));
        let (head, body) = response.body(body).unwrap().into_parts();
        let (body, length) = body_of(&head, body, form);
        let mut out = Vec::new();
        write_answer(&head, length, form, &mut Date::default(), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), format!("HTTP/1.1 {expect}\r\n\r\n"));
        assert_eq!(body.is_some(), sent);
    }

    #[test]
    fn content_length_is_computed_from_the_body() {
        let wrong = [("content-length", "9"), ("transfer-encoding", "x"), ("connection", "x")];
        check(200, &[], "five!", PLAIN, "200 OK\r\ndate: now\r\ncontent-length: 5", true);
        check(200, &wrong, "five!", PLAIN, "200 OK\r\ndate: now\r\ncontent-length: 5", true);
        check(200, &[], "", PLAIN, "200 OK\r\ndate: now\r\ncontent-length: 0", true);
        let last = ResponseForm { is_last: true, ..PLAIN };
        check(
            404,
            &[],
            "",
            last,
            "404 Not Found\r\ndate: now\r\ncontent-length: 0\r\nconnection: close",
            true,
        );
        check(299, &[], "", PLAIN, "299 \r\ndate: now\r\ncontent-length: 0", true);
    }

    #[test]
    fn bodyless_responses_are_written_without_a_body() {
        check(204, &[("content-length", "9")], "", PLAIN, "204 No Content\r\ndate: now", false);
        check(
            304,
            &[("content-length", "9")],
            "",
            PLAIN,
            "304 Not Modified\r\ndate: now\r\ncontent-length: 9",
            false,
        );
        check(304, &[], "", PLAIN, "304 Not Modified\r\ndate: now", false);
        check(200, &[("content-length", "9")], "", HEAD, "200 OK\r\ndate: now\r\ncontent-length: 9", false);
        check(200, &[], "", HEAD, "200 OK\r\ndate: now", false);
        check(404, &[], "five!", HEAD, "404 Not Found\r\ndate: now\r\ncontent-length: 5", false);
    }

    #[test]
    fn http_dates_use_the_imf_fixdate_format() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut date = Date::default();
        assert_eq!(date.at(at(784_111_777)), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date.at(at(784_111_778)), "Sun, 06 Nov 1994 08:49:38 GMT");
    }
}
