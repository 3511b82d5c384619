//! Metrics of sandboxes, usage of workspaces, and the audit log.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{FunctionId, Owner, SandboxId, SandboxState};

/// Response of `GET /v1/sandboxes/{id}/metrics`: current resource usage. Does not wake the sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SandboxMetrics {
    /// Time of the measurement.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Current state.
    pub status: SandboxState,
    /// Process ID of the machine on its host; absent while it does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Memory that the machine uses on its host, in bytes: `host.memory_bytes` under its other name.
    #[serde(default)]
    pub host_rss_bytes: u64,
    /// Usage as measured by the host.
    pub host: HostView,
    /// Number of connections and host names that the network policy denied since creation, as recorded in the
    /// events.
    #[serde(default)]
    pub egress_denied: u64,
    /// Usage as measured in the guest; absent while the sandbox is not running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestView>,
}

/// Resource usage of a sandbox, as measured by its host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Number of vCPUs.
    pub cpu_count: u32,
    /// CPU time since creation.
    pub cpu_ms: u64,
    /// CPU usage since the previous measurement, or since the sandbox woke; 100 means all vCPUs.
    pub cpu_used_percent: f64,
    /// Private memory of the sandbox's process, in bytes.
    pub memory_bytes: u64,
    /// Memory limit in bytes.
    pub memory_limit_bytes: u64,
    /// Disk space used by the root disk, in bytes.
    pub disk_bytes: u64,
    /// Bytes sent since creation.
    pub sent_bytes: u64,
    /// Bytes received since creation.
    pub received_bytes: u64,
}

/// Resource usage of a sandbox, as measured in the guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct GuestView {
    /// Time since boot on the guest's clock, including the template's boot.
    pub uptime_ms: u64,
    /// Number of CPUs.
    pub cpu_count: u32,
    /// CPU time in user mode since boot.
    pub cpu_user_ms: u64,
    /// CPU time in the kernel since boot.
    pub cpu_system_ms: u64,
    /// Load average over one minute.
    pub load_1m: f64,
    /// Total memory in bytes.
    pub memory_total_bytes: u64,
    /// Memory used by programs and the kernel, in bytes.
    pub memory_used_bytes: u64,
    /// Page cache in bytes.
    pub memory_cached_bytes: u64,
    /// Size of the root file system in bytes.
    pub disk_total_bytes: u64,
    /// Used space of the root file system in bytes.
    pub disk_used_bytes: u64,
    /// Bytes received since boot.
    pub received_bytes: u64,
    /// Bytes sent since boot.
    pub sent_bytes: u64,
    /// Number of running processes that were started through the API.
    pub processes_running: u32,
}

/// Usage totals over a period.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageTotals {
    /// Number of sandboxes created.
    pub creates: u64,
    /// CPU time in milliseconds.
    pub cpu_ms: u64,
    /// Allocated memory in MiB multiplied by seconds awake.
    pub memory_mb_seconds: u64,
    /// Seconds asleep.
    pub asleep_seconds: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Number of function calls; each attempt counts.
    #[serde(default)]
    pub calls: u64,
    /// Billed time of function calls, in milliseconds.
    #[serde(default)]
    pub billed_ms: u64,
}

/// Usage of one function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionUsage {
    /// Function ID. The function may be deleted.
    pub function_id: FunctionId,
    /// Number of calls; each attempt counts.
    pub calls: u64,
    /// Billed time of the calls, in milliseconds.
    pub billed_ms: u64,
}

/// Kind of service that used resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsageKind {
    /// Sandboxes of users.
    Sandbox,
    /// Builds and instances of apps.
    App,
    /// Builds and calls of functions.
    Function,
    /// Databases and their trial restores.
    Database,
    /// Template builds.
    Template,
}

impl UsageKind {
    /// The kind of a machine.
    pub fn of(owner: Option<&Owner>) -> Self {
        match owner {
            None => Self::Sandbox,
            Some(Owner::App(_)) => Self::App,
            Some(Owner::Function(_)) => Self::Function,
            Some(
                Owner::Database(_) | Owner::NextDatabase(_) | Owner::ReplacedDatabase(_) | Owner::Drill(_),
            ) => Self::Database,
            Some(Owner::Build(_)) => Self::Template,
        }
    }

    /// Name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::App => "app",
            Self::Function => "function",
            Self::Database => "database",
            Self::Template => "template",
        }
    }
}

impl std::str::FromStr for UsageKind {
    type Err = UnknownUsageKind;

    fn from_str(text: &str) -> Result<Self, UnknownUsageKind> {
        let kinds = [Self::Sandbox, Self::App, Self::Function, Self::Database, Self::Template];
        kinds.into_iter().find(|kind| kind.as_str() == text).ok_or(UnknownUsageKind)
    }
}

/// A text that names no [`UsageKind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown kind of service")]
pub struct UnknownUsageKind;

/// Usage of one kind of service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KindUsage {
    /// Kind of service.
    pub kind: UsageKind,
    /// Usage totals.
    #[serde(flatten)]
    pub used: UsageTotals,
}

/// Usage of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxUsage {
    /// Sandbox ID. The sandbox may be deleted.
    pub sandbox_id: SandboxId,
    /// Usage totals.
    #[serde(flatten)]
    pub used: UsageTotals,
}

/// Response of `GET /v1/usage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageReport {
    /// Start of the period, inclusive.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// End of the period, exclusive.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// Totals of the workspace.
    pub total: UsageTotals,
    /// Usage by sandbox, most CPU time first.
    pub sandboxes: Vec<SandboxUsage>,
    /// Whether sandboxes beyond the limit were omitted. The total includes them.
    pub truncated: bool,
    /// Usage by kind of service, most CPU time first. Usage of services from before an upgrade counts as that
    /// of sandboxes.
    #[serde(default)]
    pub kinds: Vec<KindUsage>,
    /// Usage by function, most billed time first; limited like `sandboxes`.
    #[serde(default)]
    pub functions: Vec<FunctionUsage>,
}

/// An entry of the audit log: a call that could change something or read contents, or one whose credentials
/// were refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Entry ID, which increases across the installation.
    pub id: i64,
    /// Start time of the call.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Prefix of the API key that made the call.
    pub token_prefix: String,
    /// Label of that key.
    pub token_label: String,
    /// HTTP method.
    pub method: String,
    /// Route of the call, such as `/v1/sandboxes/{id}/exec`.
    pub route: String,
    /// Request path, without the query.
    pub path: String,
    /// Sandbox that the call concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// HTTP status of the response.
    pub status: u16,
    /// Request ID, as in the server's log.
    pub request_id: String,
    /// Time until the response headers were sent.
    pub took_ms: u64,
}

/// Response of `GET /v1/audit/verify`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditVerification {
    /// Number of entries checked by this call.
    pub checked: u64,
    /// ID of the first entry checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<i64>,
    /// Start time of the first entry checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub since: Option<Timestamp>,
    /// Hash of the last entry checked. Keep a copy elsewhere to notice a rewritten log.
    pub head: String,
    /// Pass this as `after` to check the entries that follow; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
    /// How the log was tampered with; absent if all entries checked are intact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Response of `GET /v1/audit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditList {
    /// Entries, newest first.
    pub entries: Vec<AuditEntry>,
}
