//! Records of functions, their versions and calls.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::{
    Alias, DeployStatus, FunctionRunStatus, FunctionSettings, Run, RunKind, Runtime,
};
use pandastack_types::{ErrorCode, FunctionId, HostId, RunId, SnapshotId, WorkspaceId};
use serde::{Deserialize, Serialize};

use super::Result;

/// A function.
#[derive(Debug, Clone, PartialEq)]
pub struct FunctionRecord {
    /// The function's id.
    pub id: FunctionId,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// Unique in the workspace.
    pub name: String,
    /// The version that is called; 0 before the first.
    pub version: u32,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
    /// The other fields.
    pub spec: FunctionSpec,
}

/// Fields that no query selects on, stored as JSON. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FunctionSpec {
    /// Runtime.
    pub runtime: Runtime,
    /// Entry point.
    pub entrypoint: String,
    /// Template of the machines.
    pub template: String,
    /// Whether the function's URL can be called without a key.
    pub public: bool,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Environment that is never shown.
    pub secrets: BTreeMap<String, String>,
    /// Settings for calls; absent ones have their defaults.
    pub settings: FunctionSettings,
    /// Names for versions.
    pub aliases: BTreeMap<String, Alias>,
}

/// A version of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionRecord {
    /// The function.
    pub function: FunctionId,
    /// Version number.
    pub version: u32,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// Progress of the deploy.
    pub state: DeployStatus,
    /// Key of the dependency layer; `None` without dependencies.
    pub layer_key: Option<String>,
    /// Time of the deployment.
    pub created_at: Timestamp,
    /// The other fields.
    pub spec: VersionSpec,
}

/// Fields that no query selects on, stored as JSON. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VersionSpec {
    /// Runtime.
    pub runtime: Runtime,
    /// Entry point.
    pub entrypoint: String,
    /// Template of the machines.
    pub template: String,
    /// Environment, secrets included.
    pub env: BTreeMap<String, String>,
    /// Calls that one machine serves at once.
    pub concurrency: u32,
    /// Processors of its machines, where they are not the template's.
    pub cpu: Option<u32>,
    /// Memory of its machines, where it is not the template's.
    pub memory_mb: Option<u32>,
    /// SHA-256 of the bundle, in hex.
    pub bundle: String,
    /// Bytes of the bundle.
    pub bundle_bytes: u64,
    /// The machine with its handler ready.
    pub snapshot: Option<SnapshotId>,
    /// The machine with its dependencies, and without its code.
    pub layer_snapshot: Option<SnapshotId>,
    /// Whether that layer already existed.
    pub layer_reused: bool,
    /// Host of both.
    pub host: Option<HostId>,
    /// Reason for the failure.
    pub error: Option<String>,
    /// Error code of the failure; not every failure is caused by the bundle.
    pub error_code: Option<ErrorCode>,
    /// Log of the deployment.
    pub log: String,
    /// Duration of the build.
    pub build_ms: Option<u64>,
}

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRecord {
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// The run, as in API responses.
    pub run: Run,
    /// The queue runs it.
    pub queued: bool,
    /// Start of its next attempt; `None` while one runs.
    pub due_at: Option<Timestamp>,
    /// The event, while queued and after the call was dead-lettered.
    pub event: Option<Vec<u8>>,
    /// Milliseconds of an attempt that ended since it was last written; they become usage with it.
    pub used_ms: Option<u64>,
}

impl RunRecord {
    /// A new asynchronous call that is due at once.
    pub fn queued(function: &FunctionRecord, id: RunId, version: u32, event: Vec<u8>, at: Timestamp) -> Self {
        let run = Run {
            id,
            function_id: function.id.clone(),
            schedule_id: None,
            sandbox_id: None,
            kind: RunKind::Async,
            status: FunctionRunStatus::Queued,
            exit_code: 0,
            stdout: String::new(),
            stderr: String::new(),
            output: None,
            error: None,
            duration_ms: 0.0,
            billed_ms: 0,
            wait_ms: 0.0,
            cold: false,
            memory_peak_mb: 0,
            version,
            attempt: 0,
            dead_letter: false,
            notices: 0,
            next_attempt_at: Some(at),
            started_at: at,
            ended_at: None,
        };
        Self {
            workspace: function.workspace.clone(),
            run,
            queued: true,
            due_at: Some(at),
            event: Some(event),
            used_ms: None,
        }
    }
}

/// Filter of a function's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunSelect {
    /// Only dead letters: calls that are no longer retried.
    pub dead_letters: bool,
    /// At most this many.
    pub limit: u32,
}

/// Inputs of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunFigures {
    /// Time that the handler took.
    pub duration_us: u64,
    /// Time that is counted as used.
    pub billed_ms: u64,
    /// A machine was made for it.
    pub cold: bool,
    /// Whether the call failed.
    pub failed: bool,
}

/// Functions and calls.
#[async_trait]
pub trait FunctionStore: Send + Sync {
    /// Adds a function. Quota: `FUNCTIONS_PER_WORKSPACE_MAX`; the name must be free.
    async fn insert_function(&self, record: &FunctionRecord) -> Result<()>;
    /// Returns the function of a workspace, or of any.
    async fn function(&self, workspace: Option<&WorkspaceId>, id: &FunctionId) -> Result<FunctionRecord>;
    /// The function of a workspace with that id or, if none has it, that name.
    async fn function_named(&self, workspace: &WorkspaceId, text: &str) -> Result<Option<FunctionRecord>>;
    /// Functions of a workspace by name, or of all workspaces.
    async fn functions(&self, workspace: Option<&WorkspaceId>) -> Result<Vec<FunctionRecord>>;
    /// Writes name and spec, but not the version: a concurrent deploy may set it.
    async fn update_function(&self, record: &FunctionRecord) -> Result<()>;
    /// Number of changes of functions that this process has committed. Records read at another
    /// count may be stale.
    fn function_changes(&self) -> u64;
    /// Makes a version the current one.
    async fn call_version(&self, id: &FunctionId, version: u32, at: Timestamp) -> Result<()>;
    /// Removes a function with its versions and calls.
    async fn delete_function(&self, id: &FunctionId) -> Result<()>;
    /// Adds a version in `building` and gives it the next number.
    async fn insert_version(&self, record: &VersionRecord) -> Result<u32>;
    /// Returns the version.
    async fn version(&self, function: &FunctionId, version: u32) -> Result<VersionRecord>;
    /// Versions of a function, newest first.
    async fn versions(&self, function: &FunctionId) -> Result<Vec<VersionRecord>>;
    /// Versions that are being built.
    async fn versions_building(&self) -> Result<Vec<VersionRecord>>;
    /// Ready versions with the same dependencies, newest first.
    async fn versions_with_layer(&self, workspace: &WorkspaceId, key: &str) -> Result<Vec<VersionRecord>>;
    /// Writes a version's state and spec; a ready one becomes the current one if it is the newest.
    async fn finish_version(&self, record: &VersionRecord, at: Timestamp) -> Result<()>;
    /// Removes a version.
    async fn delete_version(&self, function: &FunctionId, version: u32) -> Result<()>;
    /// Keeps a bundle.
    async fn put_bundle(
        &self,
        workspace: &WorkspaceId,
        sha256: &str,
        bytes: &[u8],
        at: Timestamp,
    ) -> Result<()>;
    /// A bundle.
    async fn bundle(&self, workspace: &WorkspaceId, sha256: &str) -> Result<Vec<u8>>;
    /// Removes bundles that no version names.
    async fn prune_bundles(&self, workspace: &WorkspaceId) -> Result<()>;
}

/// Calls of functions.
#[async_trait]
pub trait FunctionRunStore: Send + Sync {
    /// Adds or replaces calls, with their usage, in one transaction. Calls of deleted functions are
    /// not stored, but their usage is.
    async fn put_runs(&self, records: &[RunRecord]) -> Result<()>;
    /// Adds a call for the queue. Quota: `QUEUED_RUNS_PER_WORKSPACE_MAX`.
    async fn enqueue_run(&self, record: &RunRecord) -> Result<()>;
    /// Returns the call.
    async fn function_run(
        &self,
        workspace: &WorkspaceId,
        function: &FunctionId,
        id: &RunId,
    ) -> Result<RunRecord>;
    /// Calls of a function, newest first.
    async fn function_runs(&self, function: &FunctionId, select: RunSelect) -> Result<Vec<RunRecord>>;
    /// Number of dead letters of a function.
    async fn count_dead_letters(&self, function: &FunctionId) -> Result<u64>;
    /// Due queued calls, oldest first, except those of some functions.
    async fn runs_due(&self, at: Timestamp, limit: u32, except: &[FunctionId]) -> Result<Vec<RunRecord>>;
    /// Queued calls that ran when the last server ended.
    async fn runs_interrupted(&self) -> Result<Vec<RunRecord>>;
    /// When the next queued call is due, of all functions but some.
    async fn next_run_due(&self, except: &[FunctionId]) -> Result<Option<Timestamp>>;
    /// Figures of calls that ended since then, newest first, at most `limit`.
    async fn run_figures(
        &self,
        function: &FunctionId,
        since: Timestamp,
        limit: u32,
    ) -> Result<Vec<RunFigures>>;
    /// Forgets the oldest ended calls of each function beyond `kept`.
    async fn prune_function_runs(&self, kept: u32) -> Result<u64>;
}
