//! Detects that a machine stopped because the host's disk is full.

use serde_json::Value;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio_util::task::TaskTracker;

use crate::qmp::Event;

/// Run state of a machine that was stopped by a failed write.
pub(crate) const RUN_STATE: &str = "io-error";

/// Follows the emulator's events for as long as it is connected. `now` is its current state.
pub(crate) fn follow(
    mut events: broadcast::Receiver<Event>,
    now: bool,
    tasks: &TaskTracker,
) -> watch::Receiver<bool> {
    let (sender, starved) = watch::channel(now);
    tasks.spawn(async move {
        loop {
            match events.recv().await {
                Ok(event) => {
                    if let Some(starved) = meaning(&event) {
                        sender.send_replace(starved);
                    }
                }
                // Hundreds of events occur only while a state is saved, when the machine is paused
                // anyway.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
    starved
}

/// Whether an event reports that the machine is starved; `None` for other events.
fn meaning(event: &Event) -> Option<bool> {
    match event.name.as_str() {
        "BLOCK_IO_ERROR" => {
            let stopped = event.data.get("action").and_then(Value::as_str) == Some("stop");
            let no_space = event.data.get("nospace").and_then(Value::as_bool) == Some(true);
            (stopped && no_space).then_some(true)
        }
        "RESUME" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_full_disk_starves_a_machine() {
        let event = |name: &str, data: Value| Event { name: name.to_owned(), data };
        let error = |action: &str, nospace: bool| {
            event("BLOCK_IO_ERROR", json!({ "action": action, "nospace": nospace, "operation": "write" }))
        };
        for (event, expected) in [
            (error("stop", true), Some(true)),
            (error("report", true), None),
            (error("stop", false), None),
            (event("STOP", Value::Null), None),
            (event("RESUME", Value::Null), Some(false)),
        ] {
            assert_eq!(meaning(&event), expected, "{event:?}");
        }
    }
}
