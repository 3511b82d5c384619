//! Code contexts: interpreters that keep their state between runs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::SandboxId;

/// Prefix of the tag of a context's process. User interfaces can hide such processes.
pub const CONTEXT_TAG: &str = "code-context ";
/// The Python context of runs that name none. It begins with its first run. Those of other languages have
/// the language's name behind it, such as `default-javascript`.
pub const CONTEXT_DEFAULT: &str = "default";

/// Name of the `error` event of a streamed run whose sandbox was deleted.
pub const SANDBOX_GONE_ERROR: &str = "SandboxGone";

/// Request body of `POST /v1/sandboxes/{id}/repl/sessions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateContext {
    /// Language of the code: `python` (the default), `javascript`, `typescript`, `bash`, `r` or `java`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Working directory. Default: the home directory of `user`, who runs the code; in `/root`, root does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A code context: an interpreter that keeps its state while the sandbox exists, including sleep and forks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeContext {
    /// Context ID, unique in its sandbox and the same in forks.
    pub id: String,
    /// Sandbox of the context.
    pub sandbox_id: SandboxId,
    /// Language of the code.
    pub language: String,
    /// Working directory.
    pub cwd: String,
    /// Time of creation or of the last restart.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// Request body of `POST /v1/sandboxes/{id}/repl/sessions/{context}/run`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunCode {
    /// Code to run.
    pub code: String,
    /// Milliseconds until the code is interrupted. The context is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub timeout_ms: Option<u64>,
    /// Environment variables for this run only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
}

/// Result of running code. An exception in the code is a result, not an API error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Execution {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exception with traceback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// 1 after an exception, otherwise 0.
    pub exit: i32,
    /// Duration.
    pub duration_ms: u64,
    /// Number of runs in this context, including this one.
    pub execution_count: u64,
    /// Results that the code displayed, in order. Each maps media types to representations: images are
    /// base64, `application/json` is JSON text.
    pub results: Vec<BTreeMap<String, String>>,
    /// Whether output or results beyond the limit were dropped.
    #[serde(default)]
    pub truncated: bool,
}
