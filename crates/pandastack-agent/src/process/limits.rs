//! Sizes and limits of processes, checked and in the guest's units.

use pandastack_guest_proto::message::{ProcessLimits, TerminalSize};
use pandastack_types::{api, limits};

use crate::error::{AgentError, Result};

/// Checks a terminal's size.
pub(crate) fn terminal_size(size: api::TerminalSize) -> Result<TerminalSize> {
    let sides = 1..=limits::TERMINAL_SIDE_MAX;
    if !sides.contains(&size.rows) || !sides.contains(&size.cols) {
        return Err(AgentError::BadRequest(format!(
            "a terminal has 1 to {} rows and columns",
            limits::TERMINAL_SIDE_MAX
        )));
    }
    Ok(TerminalSize { rows: size.rows, cols: size.cols })
}

/// Checks limits and converts them to the guest's units.
pub(crate) fn limits_of(wanted: api::ProcessLimits) -> Result<ProcessLimits> {
    let refuse = |what: String| Err(AgentError::BadRequest(what));
    let memory = limits::PROCESS_MEMORY_MB_MIN..=limits::PROCESS_MEMORY_MB_MAX;
    if wanted.memory_mb.is_some_and(|mb| !memory.contains(&mb)) {
        return refuse(format!("`limits.memory_mb` must be {} to {}", memory.start(), memory.end()));
    }
    if wanted.pids == Some(0) {
        return refuse("`limits.pids` must be at least 1".to_owned());
    }
    let cpu = limits::PROCESS_CPU_RANGE;
    if wanted.cpu.is_some_and(|processors| !cpu.contains(&processors)) {
        return refuse(format!("`limits.cpu` must be {} to {}", cpu.start(), cpu.end()));
    }
    Ok(ProcessLimits {
        memory_bytes_max: wanted.memory_mb.map(|mb| mb * 1024 * 1024),
        pids_max: wanted.pids,
        cpu_milli_max: wanted.cpu.map(|processors| (processors * 1000.0).round() as u32),
    })
}
