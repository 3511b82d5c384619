//! Managed databases.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{DatabaseId, SandboxId};

/// `POST /v1/databases`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateDatabase {
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Memory: `1g` unless said, `2g`, `4g`, `8g` or `16g`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Never sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub always_on: Option<bool>,
    /// Cannot be deleted until this is taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<bool>,
    /// Virtual processors; 1 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Memory in MiB, in place of `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
}

/// `PATCH /v1/databases/{id}`. What is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PatchDatabase {
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Never sleeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub always_on: Option<bool>,
    /// Cannot be deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protected: Option<bool>,
    /// Room for data in MiB; it can only grow, while the database is awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_mb: Option<u64>,
    /// Memory: `1g`, `2g`, `4g`, `8g` or `16g`. The server stops and goes on in another machine; sessions end, new ones wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
}

/// `POST /v1/databases/{id}/clone`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CloneDatabase {
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The instant to copy; now when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub target_time: Option<Timestamp>,
    /// Memory; as the original's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
}

/// Where a database stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DatabaseStatus {
    /// It is being made.
    Provisioning,
    /// It takes connections.
    Running,
    /// It takes connections, and reads only: its disk is full. `error` says what to do.
    ReadOnly,
    /// It sleeps; a connection wakes it.
    Hibernated,
    /// Its machine was lost and is replaced by one with the same data; connections wait.
    Recovering,
    /// It cannot be used; `error` says why.
    Failed,
    /// It is being deleted.
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

/// A database. Lists are without credentials.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Database {
    /// Its id, and the first label of its host name.
    pub id: DatabaseId,
    /// Where it stands.
    pub status: DatabaseStatus,
    /// Engine and version.
    pub template: String,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Memory.
    pub size: String,
    /// Never sleeps.
    pub always_on: bool,
    /// Cannot be deleted.
    pub protected: bool,
    /// How to connect; absent in lists, and until it is ready.
    #[serde(flatten)]
    pub connection: Option<DatabaseConnection>,
    /// Machine it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Database it is a copy of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloned_from: Option<DatabaseId>,
    /// Why it failed, is being recovered or takes reads only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether another copy could take over.
    pub failover_available: bool,
}

/// How to connect to a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseConnection {
    /// Host name or address.
    pub host: String,
    /// Port there.
    pub port: u16,
    /// Database in the server.
    pub database: String,
    /// Role.
    pub username: String,
    /// Its password.
    pub password: String,
    /// All of it in one.
    pub connection_url: String,
    /// The same through the pooler, for many short connections.
    pub pooled_url: String,
    /// Where queries over HTTP go, with `broker_token` as bearer token.
    pub broker_url: String,
    /// Good for this database's broker and nothing else.
    pub broker_token: String,
}

/// `POST /v1/databases/{id}/query`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseQuery {
    /// One statement, with `$1`, `$2`, ... for parameters.
    pub sql: String,
    /// Their values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub params: Vec<serde_json::Value>,
    /// Database in the server; `app` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// Cancelled after this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// At most so many rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rows: Option<u32>,
}

/// A column of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseColumn {
    /// Name.
    pub name: String,
    /// Type, such as `int4`, `text[]`; its number where it has no common name.
    #[serde(rename = "type")]
    pub type_name: String,
}

/// Rows of a result. Numbers that JSON cannot hold exactly (`int8`, `numeric`) are text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseRows {
    /// Columns.
    pub columns: Vec<DatabaseColumn>,
    /// Values, row by row.
    #[schema(value_type = Vec<Vec<Object>>)]
    pub rows: Vec<Vec<serde_json::Value>>,
    /// Rows returned or changed.
    pub count: u64,
    /// First word of what was done: `SELECT`, `INSERT`.
    pub command: String,
    /// There are more rows.
    pub truncated: bool,
    /// Time in the server and on the way.
    pub duration_ms: u64,
}

/// Answer to a wake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseWaking {
    /// The database.
    pub id: DatabaseId,
    /// `running`: it is awake when the call returns.
    pub status: DatabaseStatus,
}

/// What a database does. Asking wakes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseStats {
    /// Bytes of all databases of the server.
    pub size_bytes: u64,
    /// Sessions, ours included.
    pub connections: u32,
    /// Sessions that run a statement.
    pub active: u32,
    /// Most sessions.
    pub connections_max: u32,
    /// Transactions committed since the server's statistics began.
    pub commits: u64,
    /// Transactions rolled back.
    pub rollbacks: u64,
    /// Of all blocks read, how many were in memory: 0 to 100.
    pub cache_hit_percent: u32,
    /// The server's version.
    pub version: String,
    /// Room for data.
    pub storage_bytes: u64,
    /// Of it, what is taken on the host's disk; a branch shares with its original until either is written.
    pub storage_used_bytes: u64,
}

/// `GET /v1/databases/{id}/backups`: what can be restored, and how the backup goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseBackups {
    /// Something can be restored, and nothing keeps the rest from being archived.
    pub healthy: bool,
    /// The log is being followed right now; that of a sleeping database is not.
    pub following: bool,
    /// Everything before this position of the log is in the archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_archived_wal: Option<String>,
    /// When something was put into the archive last, since this server started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_archived_at: Option<Timestamp>,
    /// Bytes of the log that the archive does not have yet.
    pub lag_bytes: u64,
    /// Since when nothing could be archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub failing_since: Option<Timestamp>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The earliest instant that can be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub earliest_restorable: Option<Timestamp>,
    /// The latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub latest_restorable: Option<Timestamp>,
    /// Every instant in these can be restored; more than one only where log was lost.
    pub restorable: Vec<RestorablePeriod>,
    /// Base backups, oldest first.
    pub base_backups: Vec<DatabaseBaseBackup>,
    /// For how long what is archived is kept.
    pub retention_days: u16,
    /// The last restore that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_drill: Option<DatabaseDrill>,
}

/// A period without gaps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestorablePeriod {
    /// From then on.
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    /// Until then.
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
}

/// All files of a database, from which its log leads to later instants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseBaseBackup {
    /// Its name.
    pub name: String,
    /// When it was begun.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// When it was complete: the earliest instant that it leads to.
    #[schema(value_type = String, format = DateTime)]
    pub finished_at: Timestamp,
    /// Bytes, before compression.
    pub size_bytes: u64,
    /// Version of the server.
    pub version: String,
}

/// A restore that was only tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatabaseDrill {
    /// When it ended.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The latest state was restored, and every table and index of it is sound.
    pub ok: bool,
    /// How long it took.
    pub took_ms: u64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
