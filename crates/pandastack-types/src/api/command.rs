//! Commands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ProcessLimits;
use crate::SandboxId;

/// Request body of `POST /v1/sandboxes/{id}/exec` and `.../exec/stream`. Set exactly one of `cmd` and `argv`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecRequest {
    /// Command, run by `sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
    /// Program and arguments, run without a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Working directory. Default: the user's home directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment variables, in addition to those of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// User to run as. Default: root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Seconds until the command and all processes it started are killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub timeout_seconds: Option<u64>,
    /// Standard input, followed by end of file. Default: empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Resource limits for the command and all processes it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ProcessLimits>,
}

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecResult {
    /// Standard output, with invalid UTF-8 replaced.
    pub stdout: String,
    /// Standard error, with invalid UTF-8 replaced.
    pub stderr: String,
    /// Exit code; 128 + the signal number if a signal ended the command.
    pub exit_code: i32,
    /// Signal that ended the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Time in the guest, from the arrival of the request to the end of the command.
    pub duration_ms: u64,
    /// `duration_ms` in microseconds.
    #[serde(default)]
    pub duration_us: u64,
    /// Whether output beyond the limit was dropped.
    pub truncated: bool,
}

/// Request body of `POST /v1/run`, which runs a command in a temporary sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunRequest {
    /// Template name or alias. Default: `base`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Command to run.
    #[serde(flatten)]
    pub exec: ExecRequest,
}

/// Response of `POST /v1/run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunResult {
    /// Result of the command.
    #[serde(flatten)]
    pub result: ExecResult,
    /// Sandbox that ran the command; it is deleted by now.
    pub sandbox_id: SandboxId,
    /// Time to create the sandbox.
    pub create_ms: u64,
    /// Total time of the call.
    pub total_ms: u64,
    /// Engine that ran the sandbox.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
}
