//! Processes. The guest owns them: they outlive the connection that started them, and their output waits
//! in a ring with absolute offsets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A process that the guest keeps, never reused within a machine's life. Not the kernel's process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProcessId(pub u64);

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Command to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A command line for `/bin/sh -c`.
    Shell(String),
    /// A program, looked up in `PATH`, and its arguments.
    Argv(Vec<String>),
}

/// Limits of one process and all it starts. Unset means the machine's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// Bytes of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes_max: Option<u64>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids_max: Option<u32>,
    /// Processor time, in thousandths of one processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_milli_max: Option<u32>,
}

impl ProcessLimits {
    /// True when nothing is limited.
    #[must_use]
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

/// A process to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSpec {
    /// Command to run.
    pub command: Command,
    /// Working directory; the user's home when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables on top of the machine's and the user's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// User that runs it; root when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Give it a standard input to write to; otherwise it reads the end of file at once.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub stdin: bool,
    /// Kill it and everything it started after that long. The guest's own clock counts, so that the time a
    /// machine is asleep does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Limits of its control group.
    #[serde(default, skip_serializing_if = "ProcessLimits::is_unset")]
    pub limits: ProcessLimits,
    /// The caller's own name for it, shown in listings; finds a process again whose reply was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Run the process in a terminal instead of on pipes: all its output is standard output, and it
    /// always has an input. A guest that supports terminals confirms it in [`Started::terminal`];
    /// an older one uses pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
}

impl ProcessSpec {
    /// A command line for the shell, everything else as default.
    #[must_use]
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(Command::Shell(line.into()))
    }

    /// A program with arguments, everything else as default.
    pub fn argv<I, S>(argv: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<String>,
    {
        Self::new(Command::Argv(argv.into_iter().map(Into::into).collect()))
    }

    fn new(command: Command) -> Self {
        Self {
            command,
            cwd: None,
            env: BTreeMap::new(),
            user: None,
            stdin: false,
            timeout_ms: None,
            limits: ProcessLimits::default(),
            tag: None,
            terminal: None,
        }
    }
}

/// A process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The guest's name for it.
    pub process: ProcessId,
    /// The kernel's process id inside the machine.
    pub pid: i32,
    /// Whether the process has a terminal.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub terminal: bool,
}

/// Follow a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attach {
    /// The process.
    pub process: ProcessId,
    /// First byte of standard output that is wanted.
    #[serde(default)]
    pub stdout_offset: u64,
    /// First byte of standard error that is wanted.
    #[serde(default)]
    pub stderr_offset: u64,
    /// Only the end is wanted, no output: does not hold the process back. An older guest sends output all the same.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub exit_only: bool,
}

/// An output stream of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Write to a process's standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StdinWrite {
    /// The process.
    pub process: ProcessId,
    /// Position of the first byte in the whole input. The guest skips bytes that it already has, so
    /// that a write whose reply was lost can be sent again; unset appends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Close the input after these bytes.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub close: bool,
}

/// The process's input took the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StdinWritten {
    /// Position after them.
    pub offset: u64,
}

/// The end of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitStatus {
    /// Exit code, if it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Signal, if one ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether the timeout expired.
    #[serde(default)]
    pub timed_out: bool,
    /// From the request's arrival to the exit, on the guest's clock.
    pub duration_ms: u64,
    /// The same, in finer units. Older guests do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// Bytes of standard output when it ended.
    #[serde(default)]
    pub stdout_end: u64,
    /// Bytes of standard error when it ended.
    #[serde(default)]
    pub stderr_end: u64,
}

impl ExitStatus {
    /// The number a shell would show: the exit code, or 128 plus the signal.
    #[must_use]
    pub fn shell_code(&self) -> i32 {
        self.code.unwrap_or_else(|| 128_i32.saturating_add(self.signal.unwrap_or(0)))
    }
}

/// A process in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// The guest's name for it.
    pub process: ProcessId,
    /// The kernel's process id inside the machine.
    pub pid: i32,
    /// The caller's name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Command line, cut to a bounded length.
    pub command: String,
    /// Exit status, if the process ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitStatus>,
    /// Whether processes that it started still run after its end.
    #[serde(default, skip_serializing_if = "super::is_false")]
    pub lingering: bool,
    /// Bytes of standard output so far.
    pub stdout_end: u64,
    /// Bytes of standard error so far.
    pub stderr_end: u64,
    /// Bytes of standard input that it took so far.
    #[serde(default)]
    pub stdin_offset: u64,
    /// Size of the terminal, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Run time on the guest's clock; older guests do not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_ms: Option<u64>,
    /// Offset of the first kept byte of standard output; older guests do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_start: Option<u64>,
    /// Offset of the first kept byte of standard error; older guests do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_start: Option<u64>,
}
