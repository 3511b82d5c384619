//! Writes the head of a request to a guest.

use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;

use super::lines::write_line;
use super::send::Length;
use crate::headers::{Client, client_host};

/// Writes a request's head, with the headers that describe the client. The body's length comes from
/// `length`, not from the headers.
pub(super) fn write_request(parts: &Parts, client: &Client, length: Length, out: &mut Vec<u8>) {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    for piece in [parts.method.as_str(), " ", path, " HTTP/1.1\r\n"] {
        out.extend_from_slice(piece.as_bytes());
    }
    let mut names_length = false;
    for (name, value) in &parts.headers {
        if name == CONTENT_LENGTH {
            names_length = true;
        } else if name != TRANSFER_ENCODING {
            write_line(name.as_str(), value.as_bytes(), out);
        }
    }
    match length {
        Length::Known(0) if !names_length => {}
        Length::Known(length) => write_line("content-length", length.to_string().as_bytes(), out),
        Length::Chunked => write_line("transfer-encoding", b"chunked", out),
    }
    client.write_lines(client_host(parts).unwrap_or(&NO_HOST), out);
    out.extend_from_slice(b"\r\n");
}

static NO_HOST: HeaderValue = HeaderValue::from_static("");

#[cfg(test)]
mod tests {
    use http::Request;
    use http::header::HOST;

    use super::*;

    #[track_caller]
    fn check_request(lines: &[(&str, &str)], length: Length, expect: &str) {
        let mut request = Request::post("/x?y=1");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let mut out = Vec::new();
        let client = Client::new([203, 0, 113, 9].into(), 80, false);
        write_request(&parts, &client, length, &mut out);
        let mut told = Vec::new();
        client.write_lines(parts.headers.get(HOST).unwrap_or(&NO_HOST), &mut told);
        let told = String::from_utf8(told).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), format!("POST /x?y=1 HTTP/1.1\r\n{expect}{told}\r\n"));
    }

    #[test]
    fn a_request_head_has_one_length_header() {
        check_request(&[("host", "a")], Length::Known(0), "host: a\r\n");
        check_request(&[("content-length", "0")], Length::Known(0), "content-length: 0\r\n");
        check_request(&[("content-length", "9")], Length::Known(0), "content-length: 0\r\n");
        check_request(
            &[("content-length", "9"), ("host", "a")],
            Length::Known(7),
            "host: a\r\ncontent-length: 7\r\n",
        );
        check_request(&[("content-length", "9")], Length::Chunked, "transfer-encoding: chunked\r\n");
        check_request(&[("transfer-encoding", "gzip")], Length::Known(7), "content-length: 7\r\n");
    }
}
