//! Processes of a sandbox, by id.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ExecRequest;
use crate::InvalidValue;

/// Resource limits for a command and all processes it starts. Without a limit, only those of the sandbox
/// apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProcessLimits {
    /// Memory in MiB. Beyond it, the whole process tree is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Number of processes and threads. Beyond it, no more can be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// Number of CPUs, such as 0.5. Beyond it, the process tree is throttled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
}

/// Size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TerminalSize {
    /// Number of rows.
    pub rows: u16,
    /// Number of columns.
    pub cols: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// Request body of `POST /v1/sandboxes/{id}/processes`, with the fields of `exec`. Without `timeout_seconds`,
/// there is no timeout. With `pty` and no command, the user's login shell is started.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StartProcess {
    /// Command to run.
    #[serde(flatten)]
    pub exec: ExecRequest,
    /// Keep standard input open for `POST .../stdin`. Always true for a terminal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin_open: bool,
    /// Allocate a terminal of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
    /// Custom name, shown in listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// State of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// Running.
    Running,
    /// Ended.
    Exited,
}

/// A process of a sandbox. Ended processes are listed for a while.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    /// Process ID in this API. It is never reused in a sandbox, and is the same in forks.
    pub id: u64,
    /// Process ID in the sandbox's kernel.
    pub pid: i32,
    /// Custom name given by the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Command, truncated to 200 characters.
    pub command: String,
    /// Current state.
    pub state: ProcessState,
    /// Exit code after the end; 128 + the signal number if a signal ended the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Signal that ended the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether the process was killed by its timeout.
    #[serde(default)]
    pub timed_out: bool,
    /// Whether processes that it started still run after its end.
    #[serde(default)]
    pub lingering: bool,
    /// Run time in the guest, without time asleep.
    pub duration_ms: u64,
    /// Offset of the first byte of standard output that can still be read.
    pub stdout_start: u64,
    /// Bytes of standard output so far.
    pub stdout_end: u64,
    /// Offset of the first byte of standard error that can still be read.
    pub stderr_start: u64,
    /// Bytes of standard error so far.
    pub stderr_end: u64,
    /// Bytes of standard input accepted so far.
    pub stdin_offset: u64,
    /// Terminal size, if the process has a terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
}

/// Response of `GET /v1/sandboxes/{id}/processes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProcessList {
    /// Running and recently ended processes, oldest first.
    pub processes: Vec<Process>,
}

/// Request body of `POST /v1/sandboxes/{id}/processes/{process}/signal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignalProcess {
    /// Signal name or number: `TERM`, `SIGTERM` or 15. `KILL` also kills all processes that the process
    /// started.
    #[schema(value_type = String)]
    pub signal: Signal,
}

/// Response of `POST /v1/sandboxes/{id}/processes/{process}/stdin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StdinWritten {
    /// Bytes of standard input accepted so far, which is the offset of the next write.
    pub offset: u64,
}

/// A signal, by name or number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SignalForm", into = "i32")]
pub struct Signal(i32);

#[derive(Deserialize)]
#[serde(untagged)]
enum SignalForm {
    Number(i64),
    Name(String),
}

/// Names of the signals that people send; numbers are those of Linux on x86 and ARM.
const SIGNALS: [(&str, i32); 16] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("TRAP", 5),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("WINCH", 28),
];
/// Highest standard signal.
const SIGNAL_MAX: i64 = 31;

impl Signal {
    /// Ends a process and everything it started, at once.
    pub const KILL: Signal = Signal(9);
    /// Asks a process to end.
    pub const TERM: Signal = Signal(15);
    /// Interrupt, as sent by Ctrl-C.
    pub const INT: Signal = Signal(2);

    /// Linux's number.
    pub fn number(self) -> i32 {
        self.0
    }
}

impl From<Signal> for i32 {
    fn from(signal: Signal) -> i32 {
        signal.0
    }
}

impl std::str::FromStr for Signal {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if let Ok(number) = text.parse() {
            return SignalForm::Number(number).try_into();
        }
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let found = SIGNALS.iter().find(|(known, _)| *known == name);
        let shown: String = text.chars().take(40).collect();
        let invalid = || format!("`{shown}` is not a signal; use a name such as TERM, or a number");
        found.map(|(_, number)| Signal(*number)).ok_or_else(|| InvalidValue::new(invalid()))
    }
}

impl TryFrom<SignalForm> for Signal {
    type Error = InvalidValue;

    fn try_from(form: SignalForm) -> Result<Self, InvalidValue> {
        match form {
            SignalForm::Name(name) => name.parse(),
            SignalForm::Number(number) if (1..=SIGNAL_MAX).contains(&number) => Ok(Signal(number as i32)),
            SignalForm::Number(number) => {
                Err(InvalidValue::new(format!("{number} is not a signal; use 1 to {SIGNAL_MAX}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_parsed_by_name_or_number() {
        for (text, number) in [("TERM", 15), ("SIGKILL", 9), ("int", 2), ("28", 28)] {
            assert_eq!(text.parse::<Signal>().unwrap().number(), number, "{text}");
        }
        for bad in ["", "0", "32", "SIGNOPE", "-1"] {
            assert!(bad.parse::<Signal>().is_err(), "{bad}");
        }
        let json: SignalProcess = serde_json::from_str(r#"{"signal":9}"#).unwrap();
        assert_eq!(json.signal, Signal::KILL);
        assert!(serde_json::from_str::<SignalProcess>(r#"{"signal":true}"#).is_err());
    }

    #[test]
    fn a_process_start_extends_an_exec_request() {
        let start: StartProcess =
            serde_json::from_str(r#"{"cmd":"cat","stdin_open":true,"pty":{"rows":3,"cols":4}}"#).unwrap();
        assert_eq!(start.exec.cmd.as_deref(), Some("cat"));
        assert_eq!((start.stdin_open, start.pty), (true, Some(TerminalSize { rows: 3, cols: 4 })));
    }
}
