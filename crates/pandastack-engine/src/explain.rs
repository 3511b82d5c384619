//! Errors of processes that failed to start a machine, including their own messages.

use pandastack_types::chain;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use crate::EngineError;
use crate::process::Process;

/// End of a process's log that goes into an error message.
const LOG_TAIL_BYTES: u64 = 2_000;

/// Ends a process that failed to become a machine and adds the end of its log to the error.
pub async fn explain(error: EngineError, process: &Process, log: &Path) -> EngineError {
    if let Err(error) = process.kill().await {
        tracing::error!(
            pid = process.pid, error = %chain(&error),
            "the process of a failed machine is still running"
        );
    }
    let log = log_tail(log);
    if log.is_empty() {
        return error;
    }
    match error {
        EngineError::Vmm { step, detail } => {
            EngineError::Vmm { step, detail: format!("{detail}; its log: {log}") }
        }
        EngineError::Exited(detail) => EngineError::Exited(format!("{detail}; its log: {log}")),
        late @ EngineError::Deadline { step, .. } => {
            EngineError::Vmm { step, detail: format!("{late}; its log: {log}") }
        }
        error => error,
    }
}

/// The end of a log on one line.
fn log_tail(path: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = fs::File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    String::from_utf8_lossy(&bytes).split_whitespace().collect::<Vec<_>>().join(" ")
}
