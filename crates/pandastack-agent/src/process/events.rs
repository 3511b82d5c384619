//! Events of a process, for a stream.
//!
//! ```text
//! id: 10-0
//! event: stdout
//! data: {"chunk":"0123456789","offset":0,"end":10}
//! ```
//!
//! The id is the pair of offsets to continue from, so that a client that lost its stream names the last one
//! it saw, as every event source does. Text is never cut inside a character: `end` is where the last whole
//! one ends, and the rest comes with what completes it.

use std::collections::VecDeque;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use pandastack_guest_proto::client::ProcessEvent;
use pandastack_guest_proto::message::{ExitStatus, OutputStream};
use pandastack_types::agent_api::OutputEncoding;
use serde_json::{Value, json};

use super::feed::{Feed, Offsets};
use crate::error::AgentError;

/// Format of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// As published clients of `exec/stream` know them: a timeout is an error, a gap a note in the text.
    Exec { timeout_seconds: u64 },
    /// All events unchanged, bytes as text.
    Text,
    /// All events unchanged, bytes in base64.
    Base64,
}

impl From<OutputEncoding> for Style {
    fn from(encoding: OutputEncoding) -> Self {
        match encoding {
            OutputEncoding::Text => Style::Text,
            OutputEncoding::Base64 => Style::Base64,
        }
    }
}

/// Events of one process: output, gaps, then `exit` or `error`.
pub(crate) struct OutputEvents {
    feed: Feed,
    style: Style,
    /// Bytes of an incomplete character, per stream.
    tails: [Vec<u8>; 2],
    /// Position of the first byte that no event had yet, per stream.
    sent: [u64; 2],
    queue: VecDeque<OutputEvent>,
    ended: bool,
}

/// One event.
pub(crate) struct OutputEvent {
    name: &'static str,
    /// Offsets to continue from.
    id: String,
    data: Value,
}

impl OutputEvent {
    /// As a server-sent event.
    pub(crate) fn sse(self) -> axum::response::sse::Event {
        axum::response::sse::Event::default().id(self.id).event(self.name).data(ascii_json(&self.data))
    }

    /// As a message about the command that the caller named `id`.
    pub(crate) fn message(self, id: &str) -> Value {
        let mut message = match self.name {
            "exit" => json!({ "exit": self.data["exit_code"] }),
            "gap" => return json!({ "id": id, "gap": self.data }),
            "error" => json!({}),
            stream => json!({ "stream": stream }),
        };
        if let (Some(message), Value::Object(fields)) = (message.as_object_mut(), self.data) {
            message.insert("id".to_owned(), id.into());
            for (key, value) in fields {
                match key.as_str() {
                    "chunk" => message.insert("data".to_owned(), value),
                    "exit_code" => None,
                    _ => message.insert(key, value),
                };
            }
        }
        message
    }
}

impl OutputEvents {
    pub(crate) fn new(feed: Feed, offsets: Offsets, style: Style) -> Self {
        let sent = [offsets.0, offsets.1];
        Self { feed, style, tails: [Vec::new(), Vec::new()], sent, queue: VecDeque::new(), ended: false }
    }

    pub(crate) fn process(&self) -> u64 {
        self.feed.process().0
    }

    /// The next event; `None` after the end.
    pub(crate) async fn next(&mut self) -> Option<OutputEvent> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            match self.feed.next().await {
                Ok(Some(event)) => self.take(event),
                Ok(None) => self.ended = true,
                Err(error) => self.fail(&error),
            }
        }
    }

    fn take(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Output { stream, bytes, .. } if self.style == Style::Base64 => {
                self.push_output(stream, "data", BASE64.encode(&bytes), bytes.len());
            }
            ProcessEvent::Output { stream, bytes, .. } => {
                let tail = &mut self.tails[index(stream)];
                tail.extend_from_slice(&bytes);
                let held = tail.len();
                let text = take_whole_characters(tail);
                let taken = held - self.tails[index(stream)].len();
                if taken > 0 {
                    self.push_output(stream, "chunk", text, taken);
                }
            }
            ProcessEvent::Gap { stream, from, to } => self.take_gap(stream, from, to),
            ProcessEvent::Exit(exit) => self.end(&exit),
        }
    }

    fn take_gap(&mut self, stream: OutputStream, from: u64, to: u64) {
        self.flush(stream);
        self.sent[index(stream)] = to;
        if matches!(self.style, Style::Exec { .. }) {
            let note = format!("\n[{} bytes of output were dropped]\n", to - from);
            return self.push_output(stream, "chunk", note, 0);
        }
        self.push("gap", json!({ "stream": name(stream), "from": from, "to": to }));
    }

    fn end(&mut self, exit: &ExitStatus) {
        self.flush(OutputStream::Stdout);
        self.flush(OutputStream::Stderr);
        self.ended = true;
        match self.style {
            Style::Exec { timeout_seconds } if exit.timed_out => {
                self.fail(&AgentError::ExecTimeout { seconds: timeout_seconds });
            }
            _ => self.push(
                "exit",
                json!({
                    "exit_code": exit.shell_code(), "signal": exit.signal, "timed_out": exit.timed_out,
                    "duration_ms": exit.duration_ms,
                }),
            ),
        }
    }

    fn fail(&mut self, error: &AgentError) {
        self.flush(OutputStream::Stdout);
        self.flush(OutputStream::Stderr);
        self.ended = true;
        self.push("error", json!({ "error": error.logged_public_text(), "code": error.code() }));
    }

    /// Sends an incomplete character, replaced: nothing will complete it.
    fn flush(&mut self, stream: OutputStream) {
        let tail = std::mem::take(&mut self.tails[index(stream)]);
        if !tail.is_empty() {
            let text = String::from_utf8_lossy(&tail).into_owned();
            self.push_output(stream, "chunk", text, tail.len());
        }
    }

    fn push_output(&mut self, stream: OutputStream, field: &str, content: String, bytes: usize) {
        let sent = &mut self.sent[index(stream)];
        let offset = *sent;
        *sent += bytes as u64;
        let data = json!({ field: content, "offset": offset, "end": *sent });
        self.push(name(stream), data);
    }

    fn push(&mut self, name: &'static str, data: Value) {
        let id = format!("{}-{}", self.sent[0], self.sent[1]);
        self.queue.push_back(OutputEvent { name, id, data });
    }
}

fn index(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
    }
}

/// The name that clients know a stream by.
pub(crate) fn name(stream: OutputStream) -> &'static str {
    ["stdout", "stderr"][index(stream)]
}

/// Takes the complete characters out of `bytes`; invalid ones are replaced, an incomplete last one stays.
pub(crate) fn take_whole_characters(bytes: &mut Vec<u8>) -> String {
    let incomplete = match std::str::from_utf8(bytes) {
        Ok(_) => 0,
        Err(_) => incomplete_suffix(bytes),
    };
    let rest = bytes.split_off(bytes.len() - incomplete);
    let whole = std::mem::replace(bytes, rest);
    String::from_utf8_lossy(&whole).into_owned()
}

/// Length of a character at the end that may still be completed.
pub(crate) fn incomplete_suffix(bytes: &[u8]) -> usize {
    for length in 1..=bytes.len().min(3) {
        let suffix = &bytes[bytes.len() - length..];
        if let Err(error) = std::str::from_utf8(suffix)
            && error.valid_up_to() == 0
            && error.error_len().is_none()
        {
            return length;
        }
    }
    0
}

/// JSON in ASCII: some clients split lines at characters beyond it.
pub(crate) fn ascii_json(value: &serde_json::Value) -> String {
    let mut out = String::new();
    for unit in value.to_string().chars() {
        if unit.is_ascii() {
            out.push(unit);
            continue;
        }
        let mut units = [0u16; 2];
        for half in unit.encode_utf16(&mut units) {
            out.push_str(&format!("\\u{half:04x}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_character_is_reassembled() {
        let mut tail = "a€".as_bytes()[..2].to_vec();
        assert_eq!(take_whole_characters(&mut tail), "a");
        tail.extend_from_slice(&"€".as_bytes()[1..]);
        assert_eq!(take_whole_characters(&mut tail), "€");
        let mut invalid = vec![b'x', 0xff];
        assert_eq!(take_whole_characters(&mut invalid), "x\u{fffd}");
        assert!(invalid.is_empty());
    }

    #[test]
    fn a_message_has_the_callers_id_and_the_events_fields() {
        let event = |name, data| OutputEvent { name, id: String::new(), data };
        for (event, expected) in [
            (
                event("stdout", json!({ "chunk": "x", "offset": 1, "end": 2 })),
                json!({ "id": "a", "stream": "stdout", "data": "x", "offset": 1, "end": 2 }),
            ),
            (
                event("gap", json!({ "stream": "stderr", "from": 1, "to": 2 })),
                json!({ "id": "a", "gap": { "stream": "stderr", "from": 1, "to": 2 } }),
            ),
            (
                event("exit", json!({ "exit_code": 3, "signal": null })),
                json!({ "id": "a", "exit": 3, "signal": null }),
            ),
            (
                event("error", json!({ "error": "e", "code": "c" })),
                json!({ "id": "a", "error": "e", "code": "c" }),
            ),
        ] {
            assert_eq!(event.message("a"), expected);
        }
    }

    #[test]
    fn events_are_ascii() {
        assert_eq!(ascii_json(&serde_json::json!("\u{2028}é😀")), r#""\u2028\u00e9\ud83d\ude00""#);
    }
}
