//! The emulator's migration machinery, which saves and loads device state.

use pandastack_engine::{EngineError, Result};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::qmp::{Event, Qmp};

/// Bytes per second: no limit. The default throttles to 128 MiB/s.
const BANDWIDTH_MAX: u64 = 1 << 40;

/// Prepares a new process: memory that claims to be shared stays out of states, and their end is an event.
pub(crate) async fn configure(qmp: &Qmp) -> Result<()> {
    let capability = |name: &str| json!({ "capability": name, "state": true });
    let capabilities = json!({ "capabilities": [capability("x-ignore-shared"), capability("events")] });
    qmp.command("migrate-set-capabilities", capabilities).await?;
    qmp.command("migrate-set-parameters", json!({ "max-bandwidth": BANDWIDTH_MAX })).await.map(drop)
}

/// Waits for the end of a migration that was started after the subscription.
pub(crate) async fn wait(events: &mut broadcast::Receiver<Event>, step: &'static str) -> Result<()> {
    loop {
        let event = match events.recv().await {
            Ok(event) => event,
            // Older events were dropped; the final one is the newest and still to come, or among those kept.
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => {
                return Err(EngineError::Exited(format!("the control connection closed while {step}")));
            }
        };
        if event.name != "MIGRATION" {
            continue;
        }
        match event.data.get("status").and_then(Value::as_str) {
            Some("completed") => return Ok(()),
            Some(status @ ("failed" | "cancelled")) => {
                return Err(EngineError::Vmm { step, detail: format!("the emulator reports: {status}") });
            }
            _ => {}
        }
    }
}
