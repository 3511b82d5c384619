//! Functions, their versions and calls. Each version is a snapshot with its handler loaded.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FunctionId, RunId, SandboxId, WorkspaceId};

/// Runtime of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// Python 3, with the built-in bootstrap.
    #[default]
    #[serde(alias = "python3", alias = "py")]
    Python,
    /// Node.js, with the built-in bootstrap.
    #[serde(alias = "node", alias = "javascript", alias = "js")]
    Nodejs,
    /// An executable in the bundle that implements the AWS Lambda runtime API.
    #[serde(alias = "provided")]
    Custom,
}

impl Runtime {
    /// Its value in JSON.
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

/// Whether instances are reused between calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// An instance serves one call after another until it is idle.
    #[default]
    Reuse,
    /// Every call gets a new instance.
    Fresh,
}

/// Settings of a function. On create, omitted settings have their defaults; on update, they are kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionSettings {
    /// Seconds until a call is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
    /// Maximum concurrent calls per instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Maximum number of instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_instances: Option<u32>,
    /// Maximum number of calls that wait for an instance. Further calls fail with status 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_max: Option<u32>,
    /// Seconds until an idle instance is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_seconds: Option<u64>,
    /// Whether instances are reused between calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// Maximum retries of a failed asynchronous call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Seconds after which a failed asynchronous call is not retried, regardless of `retries`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_age_seconds: Option<u64>,
    /// vCPUs per instance. Part of a version. Default: from the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Memory per instance in MiB. Part of a version. Default: from the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
    /// URL that receives a `POST` for every asynchronous call that failed all its retries. An empty string
    /// removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_url: Option<String>,
}

/// Request body of `POST /v1/functions`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateFunction {
    /// Function name, unique in the workspace.
    pub name: String,
    /// Runtime of the code.
    #[serde(default)]
    pub runtime: Runtime,
    /// Entry point: `module.function` or a file of the bundle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
    /// Template of the instances. Default: `base`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Whether the URL can be called without an API key.
    #[serde(default)]
    pub public: bool,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Secret environment variables, never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<BTreeMap<String, String>>,
    /// Source of the entry point to deploy, encoded as base64 and optionally compressed with gzip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Other settings.
    #[serde(flatten)]
    pub settings: FunctionSettings,
}

/// Request body of `PATCH /v1/functions/{id}`. A change of environment, entry point or template deploys a new
/// version.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PatchFunction {
    /// New name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Environment variables, replacing all existing ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Secret environment variables, replacing all existing ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<BTreeMap<String, String>>,
    /// Whether the URL can be called without an API key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
    /// New entry point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<String>,
    /// New template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Other settings to change.
    #[serde(flatten)]
    pub settings: FunctionSettings,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Function {
    /// Function ID.
    pub id: FunctionId,
    /// Workspace of the function.
    pub workspace: WorkspaceId,
    /// Function name.
    pub name: String,
    /// Runtime of the code.
    pub runtime: Runtime,
    /// Entry point: `module.function` or a file of the bundle.
    pub entrypoint: String,
    /// Size of the deployed bundle in bytes.
    pub code_size: u64,
    /// Template of the instances.
    pub template: String,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Names of the secret environment variables.
    pub secrets: Vec<String>,
    /// Whether the URL can be called without an API key.
    pub public: bool,
    /// URL of the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Current version; 0 before the first deployment.
    pub version: u32,
    /// Whether the function can be called.
    pub is_ready: bool,
    /// Status of the newest version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deploy_status: Option<DeployStatus>,
    /// Reason why the newest version could not be deployed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deploy_error: Option<String>,
    /// Aliases by name.
    pub aliases: BTreeMap<String, Alias>,
    /// Other settings, including defaults.
    #[serde(flatten)]
    pub settings: FunctionSettings,
    /// Creation time.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time of the last change.
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
}

/// An alias for one version, or for two versions by weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Alias {
    /// Version that the alias points to.
    pub version: u32,
    /// Second version that receives a share of the calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary_version: Option<u32>,
    /// Share of calls that go to the canary version, in percent.
    #[serde(default)]
    pub canary_percent: u32,
}

/// Status of a function version's deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeployStatus {
    /// Installing dependencies and importing the handler.
    Building,
    /// Ready to be called.
    Ready,
    /// Failed; `error` and the log show the reason.
    Failed,
}

impl DeployStatus {
    /// Its value in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            DeployStatus::Building => "building",
            DeployStatus::Ready => "ready",
            DeployStatus::Failed => "failed",
        }
    }
}

/// An immutable version of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionVersion {
    /// Version number.
    pub version: u32,
    /// Status of the deployment.
    pub status: DeployStatus,
    /// Reason for the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Entry point: `module.function` or a file of the bundle.
    pub entrypoint: String,
    /// SHA-256 of the bundle, in hex.
    pub code_sha256: String,
    /// Size of the bundle in bytes.
    pub code_size: u64,
    /// Duration of the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_ms: Option<u64>,
    /// Whether dependencies were reused from an earlier deployment.
    #[serde(default)]
    pub dependencies_reused: bool,
    /// Time of the deployment.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// How a call was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// Synchronous: the caller waits for the result.
    #[default]
    Sync,
    /// Asynchronous: the caller receives a run ID, and failed attempts are retried.
    Async,
    /// Through the function URL.
    Http,
    /// By a schedule.
    Schedule,
    /// Recorded by a client that ran the code itself.
    Recorded,
}

impl RunKind {
    /// Its value in JSON.
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

/// Status of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FunctionRunStatus {
    /// Waiting for its first or next attempt.
    Queued,
    /// Running.
    Running,
    /// The handler returned a response.
    Success,
    /// The handler failed, or its process exited.
    #[serde(alias = "failed")]
    Error,
    /// Killed by its timeout.
    Timeout,
}

impl FunctionRunStatus {
    /// Its value in JSON.
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

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Run {
    /// Run ID, the same for all attempts.
    pub id: RunId,
    /// Function ID.
    pub function_id: FunctionId,
    /// Schedule that made the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// Sandbox of the instance that served the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// How the call was made.
    #[serde(default)]
    pub kind: RunKind,
    /// Current status.
    pub status: FunctionRunStatus,
    /// 0 for success, 1 for a handler error, or the exit code of the process.
    pub exit_code: i32,
    /// Standard output, up to a limit.
    pub stdout: String,
    /// Standard error, up to a limit.
    pub stderr: String,
    /// Response of the handler, if it is JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub output: Option<serde_json::Value>,
    /// Error of the handler, or the reason for the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Run time of the handler.
    pub duration_ms: f64,
    /// Billed time of all attempts in whole milliseconds, from when the instance was ready to the end.
    #[serde(default)]
    pub billed_ms: u64,
    /// Time until an instance was ready.
    #[serde(default)]
    pub wait_ms: f64,
    /// Whether a new instance was created for this call.
    #[serde(default)]
    pub cold: bool,
    /// Peak memory of the handler so far, in MiB.
    #[serde(default)]
    pub memory_peak_mb: u64,
    /// Version that was called.
    #[serde(default)]
    pub version: u32,
    /// Number of attempts so far.
    #[serde(default)]
    pub attempt: u32,
    /// Whether the call failed all its retries.
    #[serde(default)]
    pub dead_letter: bool,
    /// Number of notifications sent to `dead_letter_url`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub notices: u32,
    /// Time of the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_attempt_at: Option<Timestamp>,
    /// Time of the request.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// End time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
}

/// Response of `POST /v1/functions/{id}/redrive`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Redriven {
    /// Number of dead-lettered calls that were queued again.
    pub redriven: u64,
    /// Number of dead-lettered calls that remain, because a request queues a limited number.
    pub left: u64,
}

/// Request body of `POST /v1/functions/{id}/invoke` without `X-Invocation-Type`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvokeFunction {
    /// Event for the handler.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub input: Option<serde_json::Value>,
    /// Return immediately with a queued run.
    #[serde(default, rename = "async")]
    pub is_async: bool,
}

/// Request body of `POST /v1/functions/{id}/runs`, which records a run that the client made itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecordRun {
    /// Sandbox that ran the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Result of the run.
    pub status: FunctionRunStatus,
    /// Exit code.
    #[serde(default)]
    pub exit_code: i32,
    /// Standard output.
    #[serde(default)]
    pub stdout: String,
    /// Standard error.
    #[serde(default)]
    pub stderr: String,
    /// Duration.
    #[serde(default)]
    pub duration_ms: Option<f64>,
}

/// Response of `GET /v1/functions/{id}/metrics`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FunctionMetrics {
    /// Period in hours.
    pub period: u64,
    /// Number of finished calls.
    pub total: u64,
    /// Number of failed calls.
    pub errors: u64,
    /// Share of calls that failed, 0 to 1.
    pub error_rate: f64,
    /// Median duration.
    pub p50_ms: f64,
    /// 95th percentile of the duration.
    pub p95_ms: f64,
    /// 99th percentile of the duration.
    pub p99_ms: f64,
    /// Share of calls that needed a new instance, 0 to 1.
    pub cold_start_rate: f64,
    /// Total billed time.
    pub billed_ms: u64,
    /// Number of running instances.
    pub instances: u64,
    /// Number of calls that wait for an instance.
    pub waiting: u64,
}

/// Request body of `POST /v1/functions/{id}/rollback`, or empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RollbackFunction {
    /// Version to roll back to. Default: the newest ready version before the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}
