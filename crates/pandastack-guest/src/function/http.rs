//! A minimal HTTP/1.1 server for the handler's process.

use std::io::{self, BufRead, Read};

/// Bytes of a request's head. Beyond it the connection ends.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Header lines of a request. Beyond it the connection ends.
const HEADERS_MAX: usize = 64;

/// The head of a request.
#[derive(Debug, Default)]
pub(super) struct RequestHead {
    pub(super) method: String,
    pub(super) path: String,
    headers: Vec<(String, String)>,
}

impl RequestHead {
    /// A header, by its name in small letters.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns whether the client closes the connection after this request.
    pub(super) fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    /// The body, with its framing.
    pub(super) fn body(&self) -> io::Result<Body> {
        if self.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
            return Ok(Body { left: 0, chunked: true, ended: false, trailers: Vec::new() });
        }
        let length = self.header("content-length").map_or(Ok(0), str::parse);
        let left = length.map_err(|_| malformed("the content length is not a number"))?;
        Ok(Body { left, chunked: false, ended: left == 0, trailers: Vec::new() })
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads a head; `None` when the connection ended before one began.
pub(super) fn read_head(reader: &mut impl BufRead) -> io::Result<Option<RequestHead>> {
    let mut bytes = Vec::new();
    loop {
        let before = bytes.len();
        let room = HEAD_BYTES_MAX.saturating_sub(before);
        let count = reader.by_ref().take(room as u64).read_until(b'\n', &mut bytes)?;
        if count == 0 && before == 0 {
            return Ok(None);
        }
        if count == 0 {
            return Err(malformed("a head that is too long or broken off"));
        }
        if matches!(bytes.get(before..), Some(b"\r\n" | b"\n")) {
            break;
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(&bytes).map_err(|error| malformed(&error.to_string()))?;
    let text = |value: &[u8]| String::from_utf8_lossy(value).trim().to_owned();
    let headers = request.headers.iter().map(|line| (line.name.to_ascii_lowercase(), text(line.value)));
    Ok(Some(RequestHead {
        headers: headers.collect(),
        method: request.method.unwrap_or_default().to_owned(),
        path: request.path.unwrap_or_default().to_owned(),
    }))
}

/// A body that is being read.
#[derive(Debug)]
pub(super) struct Body {
    left: u64,
    chunked: bool,
    ended: bool,
    trailers: Vec<String>,
}

impl Body {
    /// Reads a part; empty at its end.
    pub(super) fn read_part(&mut self, reader: &mut impl BufRead, most: usize) -> io::Result<Vec<u8>> {
        if self.chunked && self.left == 0 && !self.ended {
            self.begin_chunk(reader)?;
        }
        if self.ended {
            return Ok(Vec::new());
        }
        let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(most);
        let available = reader.fill_buf()?;
        let count = count.min(available.len());
        if count == 0 {
            return Err(malformed("the body was broken off"));
        }
        let part = available.get(..count).unwrap_or_default().to_vec();
        reader.consume(count);
        self.left -= count as u64;
        match (self.left, self.chunked) {
            (0, true) => drop(read_line(reader)?),
            (0, false) => self.ended = true,
            _ => {}
        }
        Ok(part)
    }

    fn begin_chunk(&mut self, reader: &mut impl BufRead) -> io::Result<()> {
        let line = read_line(reader)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        self.left = u64::from_str_radix(size, 16).map_err(|_| malformed("a chunk without a size"))?;
        if self.left == 0 {
            self.ended = true;
            loop {
                let trailer = read_line(reader)?;
                if trailer.is_empty() {
                    return Ok(());
                }
                if self.trailers.len() == HEADERS_MAX {
                    return Err(malformed("too many trailers"));
                }
                self.trailers.push(trailer);
            }
        }
        Ok(())
    }

    /// A trailer of a chunked body, by its lowercase name.
    pub(super) fn trailer(&self, name: &str) -> Option<&str> {
        self.trailers.iter().find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.trim().eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    reader.by_ref().take(HEAD_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        return Err(malformed("a line that is too long or broken off"));
    }
    Ok(String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned())
}

/// An answer with a JSON body, and `extra` header lines that each end in CRLF. Whole, so that it is one write and one packet.
pub(super) fn answer(status: &str, extra: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{extra}\r\n"
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
