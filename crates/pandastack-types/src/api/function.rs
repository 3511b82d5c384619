//! Functions: code that is called, each version frozen in a snapshot with its handler ready.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FunctionId, RunId, SandboxId, WorkspaceId};

/// What runs a function's code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// Python 3, by our bootstrap.
    #[default]
    #[serde(alias = "python3", alias = "py")]
    Python,
    /// Node, by our bootstrap.
    #[serde(alias = "node", alias = "javascript", alias = "js")]
    Nodejs,
    /// An executable of the bundle that speaks the AWS Lambda runtime API.
    #[serde(alias = "provided")]
    Custom,
}

impl Runtime {
    /// As it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Runtime::Python => "python",
            Runtime::Nodejs => "nodejs",
            Runtime::Custom => "custom",
        }
    }

    /// The entrypoint of a function that names none.
    pub fn entrypoint_default(self) -> &'static str {
        match self {
            Runtime::Python => "main.py",
            Runtime::Nodejs => "index.js",
            Runtime::Custom => "bootstrap",
        }
    }
}

/// Whether a machine serves one call or many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// A machine serves calls one after another until it is idle.
    #[default]
    Reuse,
    /// Every call has a machine of its own that nobody used before.
    Fresh,
}

/// How a function is called. What is absent in a request stays as it is, or has the default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionSettings {
    /// Seconds until a call is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Calls that one machine serves at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Machines that it may have at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_instances: Option<u32>,
    /// Calls that may wait for a machine. Beyond it: 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_max: Option<u32>,
    /// Seconds after which a machine that nobody calls is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
    /// Whether machines are used again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// How often a failed call of type `Event` is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Seconds after which such a call is given up, however often it was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_seconds: Option<u64>,
    /// Processors of its machines; those of the template when absent. Part of a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Memory of its machines in MiB; that of the template when absent. Part of a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// Told by a `POST` of every call of type `Event` that was given up. Empty removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_url: Option<String>,
}

/// `POST /v1/functions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateFunction {
    /// Its name, unique in the workspace.
    pub name: String,
    /// What runs it.
    #[serde(default)]
    pub runtime: Runtime,
    /// What is called: `module.function`, or a file of the bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
    /// Template of its machines; `base` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Whether its URL can be called without a key.
    #[serde(default)]
    pub public: bool,
    /// Environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Environment that is never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<BTreeMap<String, String>>,
    /// The entrypoint's source, in base64, plain or gzip; deployed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// How it is called.
    #[serde(flatten)]
    pub settings: FunctionSettings,
}

/// `PATCH /v1/functions/{id}`. A change of what a version holds (environment, entrypoint, template) deploys the code again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PatchFunction {
    /// New name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// New environment, in place of the old one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// New secrets, in place of the old ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<BTreeMap<String, String>>,
    /// Whether its URL can be called without a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
    /// New entrypoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
    /// New template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// How it is called.
    #[serde(flatten)]
    pub settings: FunctionSettings,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Function {
    /// Its id.
    pub id: FunctionId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Its name.
    pub name: String,
    /// What runs it.
    pub runtime: Runtime,
    /// What is called.
    pub entrypoint: String,
    /// Bytes of the deployed bundle.
    pub code_size: u64,
    /// Template of its machines.
    pub template: String,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Names of its secrets.
    pub secrets: Vec<String>,
    /// Whether its URL can be called without a key.
    pub public: bool,
    /// Where it is called over HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The version that is called; 0 before the first one.
    pub version: u32,
    /// Whether it can be called.
    pub is_ready: bool,
    /// State of the newest version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deploy_status: Option<DeployStatus>,
    /// Why the newest version could not be deployed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deploy_error: Option<String>,
    /// Names that stand for versions.
    pub aliases: BTreeMap<String, Alias>,
    /// How it is called, with every default filled in.
    #[serde(flatten)]
    pub settings: FunctionSettings,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was last changed.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// A name for a version, or for two by weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Alias {
    /// The version.
    pub version: u32,
    /// Another version that gets some of the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary_version: Option<u32>,
    /// How many of 100 calls go there.
    #[serde(default)]
    pub canary_percent: u32,
}

/// How far a deploy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeployStatus {
    /// Dependencies are installed and the handler is imported.
    Building,
    /// It can be called.
    Ready,
    /// It could not be built; `error` and the log say why.
    Failed,
}

impl DeployStatus {
    /// As it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            DeployStatus::Building => "building",
            DeployStatus::Ready => "ready",
            DeployStatus::Failed => "failed",
        }
    }
}

/// One immutable version of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionVersion {
    /// Its number.
    pub version: u32,
    /// How far its deploy is.
    pub status: DeployStatus,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What is called.
    pub entrypoint: String,
    /// SHA-256 of the bundle, in hex.
    pub code_sha256: String,
    /// Bytes of the bundle.
    pub code_size: u64,
    /// How long the deploy took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_ms: Option<u64>,
    /// Whether its dependencies were there already.
    #[serde(default)]
    pub dependencies_reused: bool,
    /// When it was deployed.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// How a call is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// The caller waits for the result.
    #[default]
    Sync,
    /// The caller gets an id; the call is tried until it succeeds or is given up.
    Async,
    /// Over the function's URL.
    Http,
    /// By a schedule.
    Schedule,
    /// Recorded by a client that ran the code itself.
    Recorded,
}

impl RunKind {
    /// As it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            RunKind::Sync => "sync",
            RunKind::Async => "async",
            RunKind::Http => "http",
            RunKind::Schedule => "schedule",
            RunKind::Recorded => "recorded",
        }
    }
}

/// How far a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FunctionRunStatus {
    /// It waits for its first or next attempt.
    Queued,
    /// It runs.
    Running,
    /// The handler answered.
    Success,
    /// The handler failed, or its process ended.
    #[serde(alias = "failed")]
    Error,
    /// It took too long and was killed.
    Timeout,
}

impl FunctionRunStatus {
    /// As it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            FunctionRunStatus::Queued => "queued",
            FunctionRunStatus::Running => "running",
            FunctionRunStatus::Success => "success",
            FunctionRunStatus::Error => "error",
            FunctionRunStatus::Timeout => "timeout",
        }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// One call of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// Its id, the same in all attempts.
    pub id: RunId,
    /// The function.
    pub function_id: FunctionId,
    /// The schedule that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// The machine that served it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// How it was made.
    #[serde(default)]
    pub kind: RunKind,
    /// How far it is.
    pub status: FunctionRunStatus,
    /// 0 for success, 1 for an error of the handler, or the exit code of its process.
    pub exit_code: i32,
    /// What it printed, up to a limit.
    pub stdout: String,
    /// What it printed to standard error, up to a limit.
    pub stderr: String,
    /// What the handler answered, if it is JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output: Option<serde_json::Value>,
    /// Why it failed: the handler's error, or a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Time that the handler took.
    pub duration_ms: f64,
    /// Time that is counted as used: from when the machine was there to the end, in whole milliseconds, of all attempts.
    #[serde(default)]
    pub billed_ms: u64,
    /// Time until a machine was there.
    #[serde(default)]
    pub wait_ms: f64,
    /// The machine was made for this call.
    #[serde(default)]
    pub cold: bool,
    /// Most memory the handler had so far.
    #[serde(default)]
    pub memory_peak_mb: u64,
    /// Version that was called.
    #[serde(default)]
    pub version: u32,
    /// Attempts so far.
    #[serde(default)]
    pub attempt: u32,
    /// It was given up after its last attempt.
    #[serde(default)]
    pub dead_letter: bool,
    /// How often `dead_letter_url` was told of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub notices: u32,
    /// When the next attempt begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_attempt_at: Option<Timestamp>,
    /// When it was asked for.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
}

/// `POST /v1/functions/{id}/redrive`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Redriven {
    /// Calls that were given up and are queued again.
    pub redriven: u64,
    /// Those that are still given up: there are more than one call queues.
    pub left: u64,
}

/// `POST /v1/functions/{id}/invoke` without `X-Invocation-Type`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvokeFunction {
    /// The event.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub input: Option<serde_json::Value>,
    /// Return at once with a queued run.
    #[serde(default, rename = "async")]
    pub is_async: bool,
}

/// `POST /v1/functions/{id}/runs`: a client ran the code itself and tells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecordRun {
    /// Where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// With what result.
    pub status: FunctionRunStatus,
    /// Exit code.
    #[serde(default)]
    pub exit_code: i32,
    /// What it printed.
    #[serde(default)]
    pub stdout: String,
    /// What it printed to standard error.
    #[serde(default)]
    pub stderr: String,
    /// How long it took.
    #[serde(default)]
    pub duration_ms: Option<f64>,
}

/// `GET /v1/functions/{id}/metrics`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionMetrics {
    /// Hours that were looked at.
    pub period: u64,
    /// Calls that ended.
    pub total: u64,
    /// Those that failed.
    pub errors: u64,
    /// Errors by calls.
    pub error_rate: f64,
    /// Half of the calls took no longer.
    pub p50_ms: f64,
    /// 95 of 100 took no longer.
    pub p95_ms: f64,
    /// 99 of 100 took no longer.
    pub p99_ms: f64,
    /// Calls that a machine was made for, by calls.
    pub cold_start_rate: f64,
    /// Time that is counted as used.
    pub billed_ms: u64,
    /// Machines that run now.
    pub instances: u64,
    /// Calls that wait for a machine now.
    pub waiting: u64,
}

/// `POST /v1/functions/{id}/rollback`; the body may be empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RollbackFunction {
    /// The version to call from now on; the newest ready one before the present when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}
