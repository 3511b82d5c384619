//! Processes that a sandbox keeps: started, followed, written to and ended by id.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ExecRequest;

/// Limits of one command and all it starts. What is absent is limited by the sandbox alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProcessLimits {
    /// Memory; beyond it the whole tree is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Processes and threads; beyond it none can be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// Processors, such as 0.5; beyond it the tree waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
}

/// Size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// `POST /v1/sandboxes/{id}/processes`. As for exec, but without `timeout_seconds` it runs until it ends; with `pty`
/// and no command it is the user's login shell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StartProcess {
    /// What to run.
    #[serde(flatten)]
    pub exec: ExecRequest,
    /// Leave standard input open for `POST .../stdin`. A terminal's always is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin_open: bool,
    /// Give it a terminal of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
    /// A name of the caller's own, shown in listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Whether a process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// It runs.
    Running,
    /// It ended.
    Exited,
}

/// A process of a sandbox. Ended ones are kept for a while.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    /// Names it in calls; never used again within a sandbox, the same in a fork's children.
    pub id: u64,
    /// The kernel's process id inside the sandbox.
    pub pid: i32,
    /// The caller's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// What runs, cut to 200 characters.
    pub command: String,
    /// Whether it runs.
    pub state: ProcessState,
    /// Exit code once it ended; 128 + signal when killed by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Its timeout ended it.
    #[serde(default)]
    pub timed_out: bool,
    /// It ended, but something that it started still runs.
    #[serde(default)]
    pub lingering: bool,
    /// How long it runs or ran, in the guest; time asleep does not count.
    pub duration_ms: u64,
    /// First byte of standard output that can still be read.
    pub stdout_start: u64,
    /// Bytes of standard output so far.
    pub stdout_end: u64,
    /// First byte of standard error that can still be read.
    pub stderr_start: u64,
    /// Bytes of standard error so far.
    pub stderr_end: u64,
    /// Bytes of standard input taken so far.
    pub stdin_offset: u64,
    /// Its terminal, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
}

/// `GET /v1/sandboxes/{id}/processes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProcessList {
    /// Running ones and those that ended a short while ago, oldest first.
    pub processes: Vec<Process>,
}

/// `POST /v1/sandboxes/{id}/processes/{process}/signal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignalProcess {
    /// `TERM`, `SIGTERM` or 15. `KILL` reaches everything that the process ever started.
    #[schema(value_type = String)]
    pub signal: Signal,
}

/// Answer of `POST /v1/sandboxes/{id}/processes/{process}/stdin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StdinWritten {
    /// Bytes of standard input taken so far: where the next write begins.
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
    /// What Ctrl-C sends.
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(number) = text.parse() {
            return SignalForm::Number(number).try_into();
        }
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let found = SIGNALS.iter().find(|(known, _)| *known == name);
        let shown: String = text.chars().take(40).collect();
        found
            .map(|(_, number)| Signal(*number))
            .ok_or_else(|| format!("`{shown}` is not a signal; use a name such as TERM, or a number"))
    }
}

impl TryFrom<SignalForm> for Signal {
    type Error = String;

    fn try_from(form: SignalForm) -> Result<Self, String> {
        match form {
            SignalForm::Name(name) => name.parse(),
            SignalForm::Number(number) if (1..=SIGNAL_MAX).contains(&number) => Ok(Signal(number as i32)),
            SignalForm::Number(number) => Err(format!("{number} is not a signal; use 1 to {SIGNAL_MAX}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
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
    fn a_start_is_an_exec_and_more() {
        let start: StartProcess =
            serde_json::from_str(r#"{"cmd":"cat","stdin_open":true,"pty":{"rows":3,"cols":4}}"#).unwrap();
        assert_eq!(start.exec.cmd.as_deref(), Some("cat"));
        assert_eq!((start.stdin_open, start.pty), (true, Some(TerminalSize { rows: 3, cols: 4 })));
    }
}
