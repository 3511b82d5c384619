//! A guest's process as the API shows it.

use pandastack_guest_proto::message::{ProcessInfo, Started};
use pandastack_types::api::{Process, ProcessState, TerminalSize};

/// A listed process.
pub(crate) fn process(info: ProcessInfo) -> Process {
    let exit = info.exit;
    Process {
        id: info.process.0,
        pid: info.pid,
        tag: info.tag,
        command: info.command,
        state: if exit.is_some() { ProcessState::Exited } else { ProcessState::Running },
        exit_code: exit.map(|exit| exit.shell_code()),
        signal: exit.and_then(|exit| exit.signal),
        timed_out: exit.is_some_and(|exit| exit.timed_out),
        lingering: info.lingering,
        duration_ms: exit.map(|exit| exit.duration_ms).or(info.elapsed_ms).unwrap_or(0),
        stdout_start: info.stdout_start.unwrap_or(0),
        stdout_end: info.stdout_end,
        stderr_start: info.stderr_start.unwrap_or(0),
        stderr_end: info.stderr_end,
        stdin_offset: info.stdin_offset,
        pty: info.terminal.map(|size| TerminalSize { rows: size.rows, cols: size.cols }),
    }
}

/// A process that was started just now.
pub(crate) fn started(
    started: Started,
    tag: Option<String>,
    command: String,
    pty: Option<TerminalSize>,
) -> Process {
    Process {
        id: started.process.0,
        pid: started.pid,
        tag,
        command,
        state: ProcessState::Running,
        exit_code: None,
        signal: None,
        timed_out: false,
        lingering: false,
        duration_ms: 0,
        stdout_start: 0,
        stdout_end: 0,
        stderr_start: 0,
        stderr_end: 0,
        stdin_offset: 0,
        pty,
    }
}
