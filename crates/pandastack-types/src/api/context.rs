//! Code contexts: interpreters that keep their state between runs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::SandboxId;

/// What the tag of a context's process begins with. Listings for people may leave such processes out.
pub const CONTEXT_TAG: &str = "code-context ";
/// The context of runs that name none. It begins with its first run.
pub const CONTEXT_DEFAULT: &str = "default";

/// `POST /v1/sandboxes/{id}/repl/sessions`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateContext {
    /// `python`, which is also the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// Where code runs; the home of `user` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// An interpreter in a sandbox. It lives as long as the sandbox, asleep and in forks too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeContext {
    /// Names it within its sandbox; the same in a fork.
    pub id: String,
    /// Whose it is.
    pub sandbox_id: SandboxId,
    /// What it understands.
    pub language: String,
    /// Where code runs.
    pub cwd: String,
    /// When it was made, or begun anew.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// `POST /v1/sandboxes/{id}/repl/sessions/{context}/run`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunCode {
    /// What to run.
    pub code: String,
    /// After so long the code is interrupted; the context stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Environment variables of this run only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
}

/// What came of a run. Code that raised an exception was run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Execution {
    /// What it printed.
    pub stdout: String,
    /// What it printed to standard error.
    pub stderr: String,
    /// The exception with its traceback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// 1 after an exception, else 0.
    pub exit: i32,
    /// How long it took.
    pub duration_ms: u64,
    /// How many runs the context has seen, this one included.
    pub execution_count: u64,
    /// What the code showed, in order: each in one or several representations by media type. Pictures are in base64,
    /// `application/json` is JSON text.
    pub results: Vec<BTreeMap<String, String>>,
    /// Output or results were more than an answer holds, and cut.
    #[serde(default)]
    pub truncated: bool,
}
