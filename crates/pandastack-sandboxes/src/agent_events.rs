//! Parses server-sent events of an agent.

/// Bytes of one event; an agent sends output in pieces far below it.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentEvent {
    /// Event ID to resume from after a lost stream.
    pub id: Option<String>,
    /// Its kind.
    pub name: String,
    /// Its payload.
    pub data: String,
}

/// Bytes that are not read yet.
#[derive(Default)]
pub struct AgentEvents {
    buffer: Vec<u8>,
}

impl AgentEvents {
    /// Takes bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether what is left after [`AgentEvents::pop`] cannot be the beginning of an event.
    pub fn is_nonsense(&self) -> bool {
        self.buffer.len() > EVENT_BYTES_MAX
    }

    /// The next whole event. Comments are skipped.
    pub fn pop(&mut self) -> Option<AgentEvent> {
        while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
            let frame: Vec<u8> = self.buffer.drain(..end + 2).collect();
            if let Some(event) = parse(&String::from_utf8_lossy(&frame)) {
                return Some(event);
            }
        }
        None
    }
}

fn parse(frame: &str) -> Option<AgentEvent> {
    let field = |name: &str| {
        let mut lines = frame.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        lines.next().map(|value| value.strip_prefix(' ').unwrap_or(value).to_owned())
    };
    Some(AgentEvent { id: field("id"), name: field("event")?, data: field("data")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_they_are_cut() {
        let stream = "id: 3-0\nevent: stdout\ndata: {\"chunk\":\"a\"}\n\n: \n\nevent: exit\ndata: {}\n\n";
        let event = |id: Option<&str>, name: &str, data: &str| AgentEvent {
            id: id.map(str::to_owned),
            name: name.to_owned(),
            data: data.to_owned(),
        };
        for cut in 0..stream.len() {
            let mut events = AgentEvents::default();
            let mut seen = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                events.push(part.as_bytes());
                seen.extend(std::iter::from_fn(|| events.pop()));
            }
            assert_eq!(seen, [event(Some("3-0"), "stdout", "{\"chunk\":\"a\"}"), event(None, "exit", "{}")]);
        }
    }

    #[test]
    fn an_endless_event_makes_no_sense() {
        let mut events = AgentEvents::default();
        events.push(&vec![b'x'; EVENT_BYTES_MAX]);
        assert!(events.pop().is_none() && !events.is_nonsense());
        events.push(b"x");
        assert!(events.pop().is_none() && events.is_nonsense());
    }
}
