//! Reads server-sent events: push bytes, take events.
//!
//! - Lines end in LF or CRLF, and the bytes may be split anywhere.
//! - Several `data:` lines of an event are joined by `\n`. Comments and unknown fields, `retry:` among them, are skipped.
//! - An event without data is ignored, as is one that the stream's end cuts off.
//! - An event beyond the reader's limit is an error: a server must not make its client grow without bound.
//!
//! `id` is the field of that one event. A client that resumes a stream keeps the last one.

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Event id, if the server gave one.
    pub id: Option<String>,
    /// Event type; `message` if the server named none.
    pub name: String,
    /// Event data.
    pub data: String,
}

/// The server sent an event beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is larger than {bytes_max} bytes")]
pub struct EventTooLarge {
    /// The limit.
    pub bytes_max: usize,
}

/// Splits bytes into events. It holds at most an event of the limit's size and the bytes last pushed.
#[derive(Debug)]
pub struct Reader {
    bytes_max: usize,
    bytes: Vec<u8>,
    /// Offset of the first unread line.
    line: usize,
    /// Number of bytes of that line already searched for its end.
    searched: usize,
    id: Option<Vec<u8>>,
    name: Vec<u8>,
    data: Option<Vec<u8>>,
}

impl Reader {
    /// A reader of events of up to `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        let (bytes, name) = (Vec::new(), Vec::new());
        Reader { bytes_max, bytes, line: 0, searched: 0, id: None, name, data: None }
    }

    /// Adds the stream's next bytes. Take the events they complete before adding more.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.line);
        self.searched -= self.line;
        self.line = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete event; `None` until more bytes are pushed.
    pub fn next_event(&mut self) -> Result<Option<Event>, EventTooLarge> {
        while let Some(length) = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n') {
            let line = self.line..self.searched + length;
            self.line = line.end + 1;
            self.searched = self.line;
            self.check(line.len())?;
            if let Some(event) = self.read_line(line) {
                return Ok(Some(event));
            }
        }
        self.searched = self.bytes.len();
        self.check(self.searched - self.line)?;
        Ok(None)
    }

    /// Checks that the event has room for a line.
    fn check(&self, line_bytes: usize) -> Result<(), EventTooLarge> {
        let id_bytes = self.id.as_ref().map_or(0, Vec::len);
        let data_bytes = self.data.as_ref().map_or(0, Vec::len);
        if id_bytes + self.name.len() + data_bytes + line_bytes > self.bytes_max {
            return Err(EventTooLarge { bytes_max: self.bytes_max });
        }
        Ok(())
    }

    fn read_line(&mut self, line: std::ops::Range<usize>) -> Option<Event> {
        let line = &self.bytes[line];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return self.finish();
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (field, value) = colon.map_or((line, &line[..0]), |at| (&line[..at], &line[at + 1..]));
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"id" => self.id = Some(value.to_vec()),
            b"event" => self.name = value.to_vec(),
            b"data" => match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                none => *none = Some(value.to_vec()),
            },
            _ => {}
        }
        None
    }

    fn finish(&mut self) -> Option<Event> {
        let (id, name) = (self.id.take(), std::mem::take(&mut self.name));
        let data = text(self.data.take()?);
        let name = if name.is_empty() { "message".to_owned() } else { text(name) };
        Some(Event { id: id.map(text), name, data })
    }
}

/// Bytes as text; invalid UTF-8 is replaced.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 64;

    fn read(chunks: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Vec<Event>, EventTooLarge> {
        let mut reader = Reader::new(BYTES_MAX);
        let mut events = Vec::new();
        for chunk in chunks {
            reader.push(chunk.as_ref());
            while let Some(event) = reader.next_event()? {
                events.push(event);
            }
        }
        Ok(events)
    }

    /// Feeds the text whole, byte by byte and split at every place; all must give the same events.
    #[track_caller]
    fn check(text: &str, expect: &[(&str, &str)]) {
        let events = read([text]).unwrap();
        let found: Vec<_> = events.iter().map(|event| (event.name.as_str(), event.data.as_str())).collect();
        assert_eq!(found, expect);
        assert_eq!(read(text.as_bytes().chunks(1)).unwrap(), events);
        for at in 0..text.len() {
            let (head, tail) = text.as_bytes().split_at(at);
            assert_eq!(read([head, tail]).unwrap(), events, "split at {at}");
        }
    }

    #[test]
    fn an_sse_stream_is_split_into_events() {
        check("event: stdout\ndata: {\"chunk\":\"a\"}\n\n", &[("stdout", "{\"chunk\":\"a\"}")]);
        check("data: one\n\ndata: two\n\n", &[("message", "one"), ("message", "two")]);
        check("event: done\r\ndata: end\r\n\r\n", &[("done", "end")]);
        check("data: a\ndata: b\n\n", &[("message", "a\nb")]);
        check("data:no space\n\n", &[("message", "no space")]);
        check("data\n\n", &[("message", "")]);
    }

    #[test]
    fn lines_without_an_event_are_skipped() {
        check(": keep-alive\n\n", &[]);
        check("event: lonely\n\ndata: x\n\n", &[("message", "x")]);
        check("retry: 1\nother: 2\ndata: x\n\n", &[("message", "x")]);
        check("data: unfinished\n", &[]);
    }

    #[test]
    fn an_sse_id_applies_only_to_its_own_event() {
        let events = read(["id: 7-0\ndata: x\n\nid: 8\n\ndata: y\n\n"]).unwrap();
        let ids: Vec<_> = events.iter().map(|event| event.id.as_deref()).collect();
        assert_eq!(ids, [Some("7-0"), None]);
    }

    #[test]
    fn characters_survive_any_split() {
        check("data: käse 🐼\n\n", &[("message", "käse 🐼")]);
        assert_eq!(read([b"data: \xff\n\n"]).unwrap()[0].data, "\u{fffd}");
    }

    #[test]
    fn event_size_is_bounded() {
        let refused = Err(EventTooLarge { bytes_max: BYTES_MAX });
        assert_eq!(read(["a"; BYTES_MAX + 1]), refused, "a line");
        assert_eq!(read(["data: aaaaaaaaaaaaaa\n"; 8]), refused, "many lines");
        assert_eq!(read([format!("data: {}\n\n", "a".repeat(BYTES_MAX))]), refused, "a whole event");
        assert_eq!(read(["data: aaaaaaaaaaaaaa\n\n"; 8]).unwrap().len(), 8, "the limit is one event's");
        assert!(read([": aaaaaaaaaaaaaa\n"; 8]).unwrap().is_empty(), "comments are not kept");
    }

    #[test]
    fn events_before_an_oversized_event_are_read() {
        let mut reader = Reader::new(BYTES_MAX);
        reader.push(format!("data: x\n\n{}", "a".repeat(BYTES_MAX + 1)).as_bytes());
        assert_eq!(reader.next_event().unwrap().unwrap().data, "x");
        assert!(reader.next_event().is_err());
    }
}
