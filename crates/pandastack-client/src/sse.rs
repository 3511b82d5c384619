//! A parser for server-sent events.
//!
//! Accepts LF and CRLF, comments, several `data:` lines and chunks of any size; ignores `id:` and
//! `retry:`. A line or event longer than [`EVENT_BYTES_MAX`] is an error, so that a server cannot
//! exhaust the client's memory.

/// Maximum size of an event.
pub const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Event type; `message` by default.
    pub name: String,
    /// Event data, lines joined by `\n`.
    pub data: String,
}

/// The server sent an event beyond [`EVENT_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event is larger than {EVENT_BYTES_MAX} bytes")]
pub struct EventTooLarge;

/// Splits bytes into events.
#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    name: String,
    data: Vec<u8>,
    has_data: bool,
}

impl Parser {
    /// Takes the next bytes and returns the events they complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, EventTooLarge> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.grow(&rest[..end])?;
            rest = &rest[end + 1..];
            let mut line = std::mem::take(&mut self.line);
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            events.extend(self.take_line(&line)?);
            line.clear();
            self.line = line;
        }
        self.grow(rest)?;
        Ok(events)
    }

    fn grow(&mut self, bytes: &[u8]) -> Result<(), EventTooLarge> {
        if self.line.len() + bytes.len() > EVENT_BYTES_MAX {
            return Err(EventTooLarge);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn take_line(&mut self, line: &[u8]) -> Result<Option<Event>, EventTooLarge> {
        if line.is_empty() {
            return Ok(self.finish());
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            b"data" => {
                if self.data.len() + value.len() > EVENT_BYTES_MAX {
                    return Err(EventTooLarge);
                }
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            _ => {}
        }
        Ok(None)
    }

    fn finish(&mut self) -> Option<Event> {
        let name = std::mem::take(&mut self.name);
        let data = std::mem::take(&mut self.data);
        if !std::mem::take(&mut self.has_data) {
            return None;
        }
        let name = if name.is_empty() { "message".to_owned() } else { name };
        Some(Event { name, data: String::from_utf8_lossy(&data).into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the text whole and byte by byte; both must give the same events.
    #[track_caller]
    fn check(text: &str, expect: &[(&str, &str)]) {
        let expect: Vec<Event> =
            expect.iter().map(|(n, d)| Event { name: (*n).into(), data: (*d).into() }).collect();
        assert_eq!(Parser::default().push(text.as_bytes()).unwrap(), expect);
        let mut parser = Parser::default();
        let single: Vec<Event> =
            text.as_bytes().iter().flat_map(|byte| parser.push(&[*byte]).unwrap()).collect();
        assert_eq!(single, expect);
    }

    #[test]
    fn events_are_split() {
        check("event: stdout\ndata: {\"chunk\":\"a\"}\n\n", &[("stdout", "{\"chunk\":\"a\"}")]);
        check("data: one\n\ndata: two\n\n", &[("message", "one"), ("message", "two")]);
        check("event: done\r\ndata: end\r\n\r\n", &[("done", "end")]);
        check("data: a\ndata: b\n\n", &[("message", "a\nb")]);
        check("data:no space\n\n", &[("message", "no space")]);
        check("data\n\n", &[("message", "")]);
    }

    #[test]
    fn other_lines_are_ignored() {
        check(": keep-alive\n\n", &[]);
        check("event: lonely\n\ndata: x\n\n", &[("message", "x")]);
        check("id: 7\nretry: 1\ndata: x\n\n", &[("message", "x")]);
        check("data: unfinished\n", &[]);
    }

    #[test]
    fn characters_can_span_chunks() {
        check("data: käse 🐼\n\n", &[("message", "käse 🐼")]);
    }

    #[test]
    fn size_is_bounded() {
        let mut parser = Parser::default();
        let chunk = vec![b'a'; 1024 * 1024];
        let result = (0..8).try_for_each(|_| parser.push(&chunk).map(|_| ()));
        assert_eq!(result, Err(EventTooLarge));
        let mut parser = Parser::default();
        let line = [b"data: ".as_slice(), &vec![b'a'; 1024 * 1024], b"\n"].concat();
        let result = (0..8).try_for_each(|_| parser.push(&line).map(|_| ()));
        assert_eq!(result, Err(EventTooLarge));
    }
}
