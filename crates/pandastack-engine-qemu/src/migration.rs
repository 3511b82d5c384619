//! The emulator's migration machinery, which saves and loads device state.
//!
//! States pass through pipes both ways, not through files. The end of a pipe shows that the emulator is done
//! with a state; it would keep a file open for an unknown time. Newer emulators also want to open files
//! themselves, which a confined one cannot.

use std::os::fd::OwnedFd;

use pandastack_engine::{EngineError, Result};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::qmp::{Event, Qmp};

/// Bytes per second: no limit. The default throttles to 128 MiB/s.
const BANDWIDTH_MAX: u64 = 1 << 40;

/// Capacity of a pipe: a whole device state, so that neither side waits for the other. The usual
/// limit of the kernel.
const PIPE_BYTES: usize = 1 << 20;
/// Name of the emulator's end of a pipe in the emulator.
pub(crate) const DESCRIPTOR_NAME: &str = "state";

/// A pipe for a state: the end to read from, and the one to write to.
pub(crate) fn pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (reading, writing) = pipe_with(PipeFlags::CLOEXEC)?;
    // A smaller pipe is only slower.
    let _ = fcntl_setpipe_size(&writing, PIPE_BYTES);
    Ok((reading, writing))
}

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
            // Older events were dropped; the final event is the newest, so it is still queued or
            // still to come.
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
