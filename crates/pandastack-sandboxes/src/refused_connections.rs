//! Connections of a build that the network policy refused, for its log.

use std::time::Duration;

use jiff::Timestamp;
use pandastack_types::api::Event;
use pandastack_types::{SandboxId, chain};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout_at};

use crate::EventNotice;
use crate::machine::Machine;

/// Kind of the event of a refused connection or name query.
const EGRESS_DENIED: &str = "egress_denied";
/// Time for the report of a host, which gathers refusals for half a second.
const REPORT_WAIT: Duration = Duration::from_secs(2);
/// Destinations that are listed; a build that tries many fails for the first.
const LISTED_MAX: usize = 5;
/// Events that are read, the newest.
const EVENTS_READ_MAX: u32 = 100;
/// How to open a destination.
const HINT: &str = "builds reach private addresses only if the operator lists them as `allow` in [guests] \
                    (--guest-allow), and mail servers only with `mail` in [network] (--mail)";

impl Machine {
    /// Lines for the log of a failed step: connections that the network policy refused since the
    /// step began, and the setting that opens them. Empty if nothing was refused.
    pub async fn refused_connections(&self, since: Timestamp) -> Vec<String> {
        let mut notices = self.sandboxes().subscribe();
        let deadline = Instant::now() + REPORT_WAIT;
        loop {
            let (workspace, id) = (&self.record.workspace, self.id());
            match self.sandboxes().store.events_tail(workspace, id, EVENTS_READ_MAX).await {
                Ok(events) => {
                    let lines = describe(&events, since);
                    if !lines.is_empty() {
                        return lines;
                    }
                }
                Err(error) => {
                    tracing::warn!(
                        sandbox = %id, error = %chain(&error),
                        "cannot read the events of a build"
                    );
                    return Vec::new();
                }
            }
            if timeout_at(deadline, refused(&mut notices, id)).await != Ok(true) {
                return Vec::new();
            }
        }
    }
}

/// Waits until a connection of a sandbox was refused, or events were missed. False at the end of
/// the events.
async fn refused(notices: &mut Receiver<EventNotice>, id: &SandboxId) -> bool {
    loop {
        match notices.recv().await {
            Ok(EventNotice::Event { event, .. })
                if event.kind == EGRESS_DENIED && event.sandbox_id == *id =>
            {
                return true;
            }
            Ok(EventNotice::Event { .. }) => {}
            Ok(EventNotice::Missed) | Err(RecvError::Lagged(_)) => return true,
            Err(RecvError::Closed) => return false,
        }
    }
}

fn describe(events: &[Event], since: Timestamp) -> Vec<String> {
    let denied = events.iter().filter(|event| event.kind == EGRESS_DENIED && event.at >= since);
    let mut lines: Vec<String> = Vec::new();
    for detail in denied.filter_map(|event| event.detail.as_ref()) {
        let line = format!("the network policy refused {detail}");
        if !lines.contains(&line) && lines.len() < LISTED_MAX {
            lines.push(line);
        }
    }
    if !lines.is_empty() {
        lines.push(HINT.to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, second: i64, detail: &str) -> Event {
        let event = serde_json::json!({
            "id": 1, "at": Timestamp::from_second(second).unwrap().to_string(), "sandbox_id": "a",
            "kind": kind, "type": kind, "detail": detail,
        });
        serde_json::from_value(event).unwrap()
    }

    #[test]
    fn a_failed_step_lists_refused_connections_and_the_setting() {
        let since = Timestamp::from_second(10).unwrap();
        let mut events = vec![
            event(EGRESS_DENIED, 5, "tcp 10.0.0.1:80"),
            event(EGRESS_DENIED, 11, "tcp 10.7.0.5:443 (pypi.corp)"),
            event(EGRESS_DENIED, 12, "tcp 10.7.0.5:443 (pypi.corp)"),
            event("woken", 12, "because"),
        ];
        let lines = describe(&events, since);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[0], "the network policy refused tcp 10.7.0.5:443 (pypi.corp)");
        assert!(lines[1].contains("`allow` in [guests]"), "{lines:?}");
        assert!(describe(&events, Timestamp::from_second(20).unwrap()).is_empty());
        events.extend((0..9).map(|at| event(EGRESS_DENIED, 13, &format!("tcp 10.0.1.{at}:80"))));
        assert_eq!(describe(&events, since).len(), LISTED_MAX + 1);
    }
}
