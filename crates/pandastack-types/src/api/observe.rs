//! What a sandbox uses, what a workspace used, and who did what.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FunctionId, SandboxId, SandboxState};

/// `GET /v1/sandboxes/{id}/metrics`: now, seen from both sides. Never wakes a sleeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SandboxMetrics {
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Where it stands.
    pub status: SandboxState,
    /// What its host sees.
    pub host: HostView,
    /// Connections and names that its network policy refused, over its whole life, as far as its events tell of them.
    #[serde(default)]
    pub egress_denied: u64,
    /// What the machine itself sees; absent while it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestView>,
}

/// What a sandbox costs its host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Virtual processors.
    pub cpu_count: u32,
    /// Processor time of its process, over its whole life.
    pub cpu_ms: u64,
    /// Share of its processors in use since the last look, at most a second ago or since it woke; 100 is all of them.
    pub cpu_used_percent: f64,
    /// Memory of its process that is its own.
    pub memory_bytes: u64,
    /// Memory it was given.
    pub memory_limit_bytes: u64,
    /// Space of its root disk that is filled.
    pub disk_bytes: u64,
    /// Bytes it sent, over its whole life.
    pub sent_bytes: u64,
    /// Bytes it received, over its whole life.
    pub received_bytes: u64,
}

/// What a machine says about itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GuestView {
    /// Time since it booted, on its own clock; its template's boot counts.
    pub uptime_ms: u64,
    /// Processors.
    pub cpu_count: u32,
    /// Time in user code since boot.
    pub cpu_user_ms: u64,
    /// Time in the kernel since boot.
    pub cpu_system_ms: u64,
    /// Runnable tasks, averaged over a minute.
    pub load_1m: f64,
    /// All memory.
    pub memory_total_bytes: u64,
    /// Memory that programs and the kernel use.
    pub memory_used_bytes: u64,
    /// File pages.
    pub memory_cached_bytes: u64,
    /// Size of the root file system.
    pub disk_total_bytes: u64,
    /// Used of it.
    pub disk_used_bytes: u64,
    /// Bytes that came in since boot.
    pub received_bytes: u64,
    /// Bytes that went out since boot.
    pub sent_bytes: u64,
    /// Processes that were started through the API and still run.
    pub processes_running: u32,
}

/// Sums over a period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageTotals {
    /// Sandboxes made.
    pub creates: u64,
    /// Processor time, in milliseconds.
    pub cpu_ms: u64,
    /// Memory given times seconds awake.
    pub memory_mb_seconds: u64,
    /// Seconds asleep.
    pub asleep_seconds: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Calls of functions; each attempt is one.
    #[serde(default)]
    pub calls: u64,
    /// Time of these calls, in milliseconds.
    #[serde(default)]
    pub billed_ms: u64,
}

/// Calls of one function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionUsage {
    /// Which; it may be gone.
    pub function_id: FunctionId,
    /// Calls; each attempt is one.
    pub calls: u64,
    /// Their time, in milliseconds.
    pub billed_ms: u64,
}

/// Sums of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxUsage {
    /// Which; it may be gone.
    pub sandbox_id: SandboxId,
    /// What it used.
    #[serde(flatten)]
    pub used: UsageTotals,
}

/// `GET /v1/usage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageReport {
    /// Begin of the period, included.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// End of the period, not included.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// Of the whole workspace.
    pub total: UsageTotals,
    /// By sandbox, most processor time first.
    pub sandboxes: Vec<SandboxUsage>,
    /// There are more sandboxes than are shown; the total counts them all.
    pub truncated: bool,
    /// By function, most time first, as many as there are sandboxes at most.
    #[serde(default)]
    pub functions: Vec<FunctionUsage>,
}

/// A call that could change something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Grows with every entry of the installation.
    pub id: i64,
    /// When the call began.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Public part of the key that called.
    pub token_prefix: String,
    /// Name of that key.
    pub token_label: String,
    /// HTTP method.
    pub method: String,
    /// The call, such as `/v1/sandboxes/{id}/exec`.
    pub route: String,
    /// The path as it was called, without its query.
    pub path: String,
    /// The sandbox it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// What came of it.
    pub status: u16,
    /// Names the request in the logs.
    pub request_id: String,
    /// Time to the head of the answer.
    pub took_ms: u64,
}

/// `GET /v1/audit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    /// Newest first.
    pub entries: Vec<AuditEntry>,
}
