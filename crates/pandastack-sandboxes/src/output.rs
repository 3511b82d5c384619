//! The events of a process from its agent, split into lines.

use std::collections::VecDeque;

use pandastack_types::sse;
use serde::Deserialize;

/// Bytes of one event; an agent sends output in pieces far below it.
pub const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of an incomplete line; beyond it the line is split.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// An event of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputEvent {
    /// Text of standard output or error.
    Text(String),
    /// The process ended.
    Exit(Exit),
    /// The process could not be followed.
    Failed(String),
}

/// The end of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Exit {
    /// 128 + signal when killed by one.
    pub exit_code: i32,
    /// The signal.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Whether the time limit passed.
    #[serde(default)]
    pub timed_out: bool,
    /// Last lines of output, if they were followed.
    #[serde(skip)]
    pub last_lines: Vec<String>,
}

/// Parses server-sent events from a stream of bytes.
pub struct Events {
    reader: sse::Reader,
    ready: VecDeque<OutputEvent>,
    /// Event ID to resume from after a lost stream.
    pub last_id: Option<String>,
}

impl Default for Events {
    fn default() -> Self {
        Self { reader: sse::Reader::new(EVENT_BYTES_MAX), ready: VecDeque::new(), last_id: None }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    chunk: String,
    error: String,
    from: u64,
    to: u64,
}

impl Events {
    /// Takes bytes. `false` when they make no sense.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        self.reader.push(bytes);
        loop {
            match self.reader.next_event() {
                Ok(Some(event)) => self.take(event),
                Ok(None) => return true,
                Err(sse::EventTooLarge { .. }) => return false,
            }
        }
    }

    /// The next event that was read.
    pub fn pop(&mut self) -> Option<OutputEvent> {
        self.ready.pop_front()
    }

    fn take(&mut self, event: sse::Event) {
        let sse::Event { id, name, data } = event;
        self.last_id = id.or_else(|| self.last_id.take());
        let read = || serde_json::from_str::<Data>(&data).unwrap_or_default();
        self.ready.extend(match name.as_str() {
            "stdout" | "stderr" => Some(OutputEvent::Text(read().chunk)),
            "gap" => {
                let gap = read();
                Some(OutputEvent::Text(format!("\n[{} bytes of output were dropped]\n", gap.to - gap.from)))
            }
            "exit" => Some(serde_json::from_str(&data).map_or_else(
                |error| OutputEvent::Failed(format!("the agent sent a malformed exit event: {error}")),
                OutputEvent::Exit,
            )),
            "error" => Some(OutputEvent::Failed(read().error)),
            _ => None,
        });
    }
}

/// Splits pieces of text into lines.
#[derive(Default)]
pub struct Lines(String);

impl Lines {
    /// Takes text; returns the lines that it completes.
    pub fn push(&mut self, text: &str) -> Vec<String> {
        self.0.push_str(text);
        let mut lines = Vec::new();
        while let Some(end) = self.0.find('\n') {
            let line: String = self.0.drain(..=end).collect();
            lines.push(line.trim_end_matches('\n').to_owned());
        }
        if self.0.len() > LINE_BYTES_MAX {
            lines.push(std::mem::take(&mut self.0));
        }
        lines
    }

    /// The remaining text at the end.
    pub fn take_rest(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.0);
        (!rest.is_empty()).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_events_are_parsed_at_any_split() {
        let stream = "id: 3-0\nevent: stdout\ndata: {\"chunk\":\"a\\nb\",\"offset\":0,\"end\":3}\n\n: \n\n\
                      id: 3-1\nevent: exit\ndata: {\"exit_code\":2,\"signal\":null,\"timed_out\":false}\n\n";
        for cut in 0..stream.len() {
            let mut events = Events::default();
            assert!(events.push(&stream.as_bytes()[..cut]) && events.push(&stream.as_bytes()[cut..]));
            assert_eq!(events.pop(), Some(OutputEvent::Text("a\nb".to_owned())));
            assert_eq!(events.pop(), Some(OutputEvent::Exit(Exit { exit_code: 2, ..Exit::default() })));
            assert_eq!((events.pop(), events.last_id.as_deref()), (None, Some("3-1")));
        }
    }

    #[test]
    fn an_oversized_output_event_is_rejected() {
        let mut events = Events::default();
        assert!(events.push(&vec![b'x'; EVENT_BYTES_MAX]));
        assert!(!events.push(b"x"));
    }

    #[test]
    fn an_exit_without_a_code_is_a_failure() {
        for data in ["{}", "nonsense", "{\"exit_code\":null}"] {
            let mut events = Events::default();
            assert!(events.push(format!("event: exit\ndata: {data}\n\n").as_bytes()));
            assert!(matches!(events.pop(), Some(OutputEvent::Failed(_))), "{data}");
        }
    }

    #[test]
    fn output_is_split_into_complete_lines() {
        let mut lines = Lines::default();
        assert_eq!(lines.push("a\nb"), ["a"]);
        assert_eq!(lines.push("c\n\nd"), ["bc", ""]);
        assert_eq!(lines.take_rest().as_deref(), Some("d"));
        assert_eq!(lines.push(&"x".repeat(LINE_BYTES_MAX + 1)).len(), 1);
    }
}
