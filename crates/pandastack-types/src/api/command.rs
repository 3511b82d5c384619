//! Commands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ProcessLimits;
use crate::SandboxId;

/// `POST /v1/sandboxes/{id}/exec` and `.../exec/stream`. Exactly one of `cmd` and `argv`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecRequest {
    /// Run by `sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
    /// Program and arguments, no shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Working directory; the user's home when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// User to run as; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The command and everything it started are killed after this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Standard input; it ends after this. Without it the command reads the end at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Limits of the command and all it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ProcessLimits>,
}

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecResult {
    /// Standard output, invalid UTF-8 replaced.
    pub stdout: String,
    /// Standard error, invalid UTF-8 replaced.
    pub stderr: String,
    /// Exit code; 128 + signal when killed by one.
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Time in the guest, from the request's arrival there to the command's end.
    pub duration_ms: u64,
    /// The same in microseconds.
    #[serde(default)]
    pub duration_us: u64,
    /// Output beyond the limit was dropped.
    pub truncated: bool,
}

/// `POST /v1/run`: create, run, return, delete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunRequest {
    /// Template name or alias; `base` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The command.
    #[serde(flatten)]
    pub exec: ExecRequest,
}

/// Answer to a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunResult {
    /// What the command did.
    #[serde(flatten)]
    pub result: ExecResult,
    /// The sandbox it ran in, gone by now.
    pub sandbox_id: SandboxId,
    /// Time to make that sandbox.
    pub create_ms: u64,
    /// Time of the whole call.
    pub total_ms: u64,
    /// Engine that ran it.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
}
