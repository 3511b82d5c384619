//! Managed databases.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::RestorePoint;
use crate::{DatabaseId, SandboxId};

/// Request body of `POST /v1/databases`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateDatabase {
    /// Name, unique in the workspace: 1 to 63 lowercase letters, digits and `-`. It can be used in the place
    /// of the ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Human-readable label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Memory size: `1g`, `2g`, `4g`, `8g` or `16g`. Default: `1g`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Whether the database stays awake: it sleeps after 30 idle days instead of 300 idle seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub always_on: Option<bool>,
    /// Whether the database is protected from deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<bool>,
    /// Number of vCPUs. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub cpu: Option<u32>,
    /// Memory in MiB, instead of `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub memory_mb: Option<u32>,
}

/// Request body of `PATCH /v1/databases/{id}`. Omitted settings are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PatchDatabase {
    /// Human-readable label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Whether the database stays awake: it sleeps after 30 idle days instead of 300 idle seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub always_on: Option<bool>,
    /// Whether the database is protected from deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<bool>,
    /// Storage size in MiB. It can only grow, and only while the database is awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub storage_mb: Option<u64>,
    /// Memory size: `1g`, `2g`, `4g`, `8g` or `16g`. A change moves the server to another machine: open
    /// sessions end, and new ones wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
}

/// Request body of `POST /v1/databases/{id}/clone`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CloneDatabase {
    /// Name, unique in the workspace: 1 to 63 lowercase letters, digits and `-`. It can be used in the place
    /// of the ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Human-readable label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Point in time to restore from backups, at most the current time: a time, or `latest` for everything
    /// that was committed. A sleeping database is woken if backups lack something. Default: copy the running
    /// database, without backups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "2026-01-31T12:00:00Z")]
    pub target_time: Option<RestorePoint>,
    /// Memory size. Default: the size of the original.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
}

/// Status of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DatabaseStatus {
    /// Being created.
    Provisioning,
    /// Accepting connections.
    Running,
    /// Accepting connections, but read-only because the disk is full. `error` shows what to do.
    ReadOnly,
    /// Asleep; the next connection wakes it.
    Hibernated,
    /// The machine was lost and is being replaced, with the same data. Connections wait.
    Recovering,
    /// Unusable; `error` shows the reason.
    Failed,
    /// Being deleted.
    Deleting,
}

impl DatabaseStatus {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            DatabaseStatus::Provisioning => "provisioning",
            DatabaseStatus::Running => "running",
            DatabaseStatus::ReadOnly => "read_only",
            DatabaseStatus::Hibernated => "hibernated",
            DatabaseStatus::Recovering => "recovering",
            DatabaseStatus::Failed => "failed",
            DatabaseStatus::Deleting => "deleting",
        }
    }
}

/// A database. Lists omit credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Database {
    /// Database ID, which is also the first label of its host name.
    pub id: DatabaseId,
    /// Current status.
    pub status: DatabaseStatus,
    /// Database engine and version.
    pub template: String,
    /// Name, unique in the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Human-readable label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Creation time.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Memory size.
    pub size: String,
    /// Whether the database stays awake: it sleeps after 30 idle days instead of 300 idle seconds.
    pub always_on: bool,
    /// Whether the database is protected from deletion.
    pub protected: bool,
    /// Connection details; omitted in lists and until the database is ready.
    #[serde(flatten)]
    pub connection: Option<DatabaseConnection>,
    /// Sandbox that runs the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Database that this one was cloned from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloned_from: Option<DatabaseId>,
    /// Current step while the database is being restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Reason why the database failed, is recovering or is read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the database can be failed over to a restored copy.
    pub failover_available: bool,
}

/// Connection details of a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseConnection {
    /// Host name or address.
    pub host: String,
    /// Port number.
    pub port: u16,
    /// Name of the database in the server.
    pub database: String,
    /// User name.
    pub username: String,
    /// Password of the user.
    pub password: String,
    /// Connection string.
    pub connection_url: String,
    /// Connection string through the pooler, for many short connections.
    pub pooled_url: String,
    /// URL for queries over HTTP, with `broker_token` as the bearer token.
    pub broker_url: String,
    /// Token for `broker_url`; valid for this database only.
    pub broker_token: String,
}

/// Request body of `POST /v1/databases/{id}/query`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseQuery {
    /// One SQL statement, with `$1`, `$2`, ... for parameters.
    pub sql: String,
    /// Parameter values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub params: Vec<serde_json::Value>,
    /// Name of the database in the server. Default: `app`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// Milliseconds until the statement is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub timeout_ms: Option<u64>,
    /// Maximum number of rows to return.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_rows: Option<u32>,
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseColumn {
    /// Column name.
    pub name: String,
    /// Column type, such as `int4` or `text[]`; the type's OID if it has no common name.
    #[serde(rename = "type")]
    pub type_name: String,
}

/// Rows of a result. Numbers that JSON cannot represent exactly (`int8`, `numeric`) are strings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseRows {
    /// Columns of the result.
    pub columns: Vec<DatabaseColumn>,
    /// Values, row by row.
    #[schema(value_type = Vec<Vec<Object>>)]
    pub rows: Vec<Vec<serde_json::Value>>,
    /// Number of rows returned or changed.
    pub count: u64,
    /// Command tag, such as `SELECT` or `INSERT`.
    pub command: String,
    /// Whether rows beyond the limit were omitted.
    pub truncated: bool,
    /// Execution time, including the network.
    pub duration_ms: u64,
}

/// Response of `POST /v1/databases/{id}/wake`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseWaking {
    /// Database ID.
    pub id: DatabaseId,
    /// Always `running`: the database is awake when the call returns.
    pub status: DatabaseStatus,
}

/// Statistics of a database. Reading them wakes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseStats {
    /// Total size of all databases in the server, in bytes.
    pub size_bytes: u64,
    /// Number of sessions, including internal ones.
    pub connections: u32,
    /// Number of sessions that are running a statement.
    pub active: u32,
    /// Maximum number of sessions.
    pub connections_max: u32,
    /// Number of transactions committed since the statistics were reset.
    pub commits: u64,
    /// Number of transactions rolled back since the statistics were reset.
    pub rollbacks: u64,
    /// Share of block reads served from memory, 0 to 100.
    pub cache_hit_percent: u32,
    /// Server version.
    pub version: String,
    /// Storage size in bytes.
    pub storage_bytes: u64,
    /// Storage used on the host's disk, in bytes. A branch shares blocks with its original until either
    /// changes them.
    pub storage_used_bytes: u64,
}

/// Response of `GET /v1/databases/{id}/backups`: the restorable period and the state of the backups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseBackups {
    /// Whether the database can be restored and archiving is not failing.
    pub healthy: bool,
    /// Whether the WAL is being streamed now. It is not while the database sleeps.
    pub following: bool,
    /// WAL position up to which everything is archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_archived_wal: Option<String>,
    /// Time of the last upload to the archive since this server started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_archived_at: Option<Timestamp>,
    /// Bytes of WAL that are not archived yet.
    pub lag_bytes: u64,
    /// Time since when archiving has been failing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub failing_since: Option<Timestamp>,
    /// Reason why the backups are not healthy, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Earliest point in time that can be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub earliest_restorable: Option<Timestamp>,
    /// Latest point in time that can be restored. While the database sleeps and backups have everything, it
    /// is the current time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub latest_restorable: Option<Timestamp>,
    /// Periods that can be restored without gaps. There is more than one only if WAL was lost.
    pub restorable: Vec<RestorablePeriod>,
    /// Base backups, oldest first.
    pub base_backups: Vec<DatabaseBaseBackup>,
    /// Days that backups are kept.
    pub retention_days: u16,
    /// Result of the last backup drill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_drill: Option<DatabaseDrill>,
}

/// A restorable period without gaps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestorablePeriod {
    /// Start of the period.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// End of the period.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
}

/// A base backup: a copy of all files, from which WAL is replayed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseBaseBackup {
    /// Name of the base backup.
    pub name: String,
    /// Start time.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// Completion time, which is the earliest point in time that it can restore.
    #[schema(value_type = String, format = DateTime)]
    pub finished_at: Timestamp,
    /// Size in bytes, before compression.
    pub size_bytes: u64,
    /// Server version.
    pub version: String,
}

/// Result of a backup drill, which restores the database and deletes the copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseDrill {
    /// End time.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Whether the latest state was restored and all its tables and indexes are intact.
    pub ok: bool,
    /// Duration.
    pub took_ms: u64,
    /// Reason for the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
