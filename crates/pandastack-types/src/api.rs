//! Requests and responses of the public API under `/v1`.
//!
//! The shapes are the ones that the published clients send and read; fields beyond those are additions of ours.
//! Unknown request fields are ignored, absent ones have defaults, and no response field that a client computes with is
//! ever `null`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{BuildId, HostId, Residency, SandboxId, SandboxState, SnapshotId, TreeId, WorkspaceId};

/// User-chosen labels.
pub type Metadata = BTreeMap<String, String>;

/// `POST /v1/sandboxes`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateSandbox {
    /// Template name or alias; `base` when neither this nor `from_snapshot` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Start from this snapshot instead of a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<SnapshotId>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
    /// Environment of every command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Lifetime in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// No TTL; hibernates when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Idle seconds before a persistent sandbox hibernates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    /// What happens at the end of the TTL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
}

/// What happens at the end of a TTL.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// The sandbox is deleted.
    #[default]
    Kill,
    /// The sandbox goes to sleep.
    Hibernate,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Template it was made from.
    pub template: String,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// Where it stands.
    pub status: SandboxState,
    /// Where a sleeper's memory is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub residency: Option<Residency>,
    /// Address on its host, while awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_ip: Option<String>,
    /// Host it lives on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostId>,
    /// False when its host does not answer; the status is then the last one known.
    pub host_reachable: bool,
    /// Engine that runs it.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// Labels.
    pub metadata: Metadata,
    /// Snapshot it was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<SnapshotId>,
    /// Sandbox it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<SandboxId>,
    /// How it came to be: `fork`, `restore`, or `boot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_mode: Option<String>,
    /// Time from request to ready, as the host saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_ms: Option<u64>,
    /// Where that time went, in microseconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub boot_stages_us: BTreeMap<String, u64>,
    /// How long the parent of a fork stood still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// No TTL.
    pub persistent: bool,
    /// Lifetime in seconds, unless persistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When its TTL ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// `{"items": [...]}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Items<T> {
    /// The elements.
    pub items: Vec<T>,
}

/// `POST /v1/sandboxes/{id}/exec` and `.../exec/stream`. Exactly one of `cmd` and `argv`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecRequest {
    /// Run by `sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmd: Option<String>,
    /// Program and arguments, no shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Working directory; the user's home when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Added to the sandbox's environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// User to run as; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The command and everything it started are killed after this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecResult {
    /// Standard output, invalid UTF-8 replaced.
    pub stdout: String,
    /// Standard error, invalid UTF-8 replaced.
    pub stderr: String,
    /// Exit code; 128 + signal when killed by one.
    pub exit_code: i32,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Time in the guest.
    pub duration_ms: u64,
    /// Output beyond the limit was dropped.
    pub truncated: bool,
}

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Last part of the path.
    pub name: String,
    /// Absolute path.
    pub path: String,
    /// True for directories.
    pub is_dir: bool,
    /// Bytes.
    pub size: u64,
    /// Permissions, such as `-rw-r--r--`.
    pub mode: String,
    /// Modification time, Unix seconds.
    pub mtime: i64,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
}

/// `GET /v1/sandboxes/{id}/fs/dir`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DirectoryListing {
    /// The directory.
    pub path: String,
    /// Its entries, by name.
    pub entries: Vec<FileEntry>,
}

/// Answer of `PUT /v1/sandboxes/{id}/fs`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileWritten {
    /// Where.
    pub path: String,
    /// How much.
    pub bytes: u64,
}

/// `POST /v1/sandboxes/{id}/fs/rename`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RenameFile {
    /// Old absolute path.
    pub from: String,
    /// New absolute path.
    pub to: String,
}

/// `POST /v1/sandboxes/{id}/snapshots`; the body may be empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateSnapshot {
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Sandbox it shows.
    pub sandbox_id: SandboxId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Template of that sandbox.
    pub template: String,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels.
    pub metadata: Metadata,
    /// Bytes written for it.
    pub size_bytes: u64,
    /// How long the sandbox stood still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// Host that holds it.
    pub host: HostId,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

/// `GET /v1/snapshots`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// Newest first.
    pub snapshots: Vec<Snapshot>,
}

/// `POST /v1/sandboxes/{id}/fork`; the body may be empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkSandbox {
    /// Labels of the child, over those of the parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// `POST /v1/sandboxes/{id}/fork-tree`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkTree {
    /// How many children.
    pub count: u32,
    /// Labels of every child, over those of the parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Metadata>,
}

/// Children of one fork-tree call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkTreeResult {
    /// The ones that were made, in order.
    pub children: Vec<Sandbox>,
    /// Names the call; also in each child's `metadata.fork_tree_id`.
    pub tree_id: TreeId,
    /// The parent.
    pub parent_id: SandboxId,
    /// How long the parent stood still.
    pub pause_ms: f64,
    /// The ones that were not made.
    pub errors: Vec<ForkError>,
}

/// One child that was not made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkError {
    /// Its place in the order.
    pub index: u32,
    /// Why.
    pub err: String,
}

/// `POST /v1/sandboxes/{id}/promote`; the body may be empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Promote {
    /// Delete the other children of the tree.
    #[serde(default)]
    pub cleanup_siblings: bool,
    /// The tree; from the sandbox's metadata when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree_id: Option<TreeId>,
}

/// Answer to a promote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Promoted {
    /// The sandbox that stays.
    pub winner: SandboxId,
    /// The tree.
    pub tree_id: TreeId,
    /// Siblings that were deleted.
    pub deleted: Vec<SandboxId>,
    /// Siblings that were not, and why.
    pub failures: BTreeMap<String, String>,
}

/// Answer to hibernate and wake.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatusAnswer {
    /// Where the sandbox stands now.
    pub status: SandboxState,
}

/// `GET` and `PATCH /v1/sandboxes/{id}/lifecycle`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Lifecycle {
    /// Lifetime in seconds, from creation.
    pub ttl_seconds: u64,
    /// No TTL.
    pub persistent: bool,
    /// Seconds since the last activity.
    pub idle_seconds: u64,
    /// Idle seconds before it hibernates, when persistent.
    pub idle_timeout_seconds: u64,
    /// What happens at the end of the TTL.
    pub on_timeout: OnTimeout,
    /// When the TTL ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// Body of `PATCH /v1/sandboxes/{id}/lifecycle`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PatchLifecycle {
    /// New lifetime, counted from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// No TTL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Idle seconds before it hibernates, when persistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_seconds: Option<u64>,
    /// What happens at the end of the TTL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
}

/// A port something listens on in a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Port {
    /// TCP port.
    pub port: u16,
    /// Address it is bound to inside the guest.
    pub address: String,
    /// Always true: only listening ports are listed.
    pub listening: bool,
}

/// `GET /v1/sandboxes/{id}/ports`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PortList {
    /// By number.
    pub ports: Vec<Port>,
}

/// Something that happened to a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Grows with every event of the installation.
    pub id: i64,
    /// The sandbox.
    pub sandbox_id: SandboxId,
    /// What happened: a transition's name, or `snapshot_created` and the like.
    pub kind: String,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// `GET /v1/sandboxes/{id}/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// Oldest first.
    pub events: Vec<Event>,
}

/// A template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Template {
    /// Name to create from.
    pub name: String,
    /// Other names it answers to.
    pub aliases: Vec<String>,
    /// Name for people.
    pub label: String,
    /// What is in it.
    pub description: String,
    /// Group in a catalogue.
    pub category: String,
    /// What it is built from.
    pub base: String,
    /// Programs it offers.
    pub tools: Vec<String>,
    /// Virtual processors.
    pub cpu: u32,
    /// Memory.
    pub memory_mb: u32,
    /// Size of its files on a host that has it; 0 where none does.
    pub size_bytes: u64,
    /// Owned by the installation, not by a workspace.
    pub is_global: bool,
    /// `ready`, `baking`, `unbaked` or `failed`.
    pub status: TemplateStatus,
    /// Why the last bake failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Whether a template can be created from at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateStatus {
    /// Not built on any host; the first create builds it.
    Unbaked,
    /// Being built.
    Baking,
    /// Creates restore it.
    Ready,
    /// The last build failed; the next create tries again.
    Failed,
}

/// One build of a template.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Build {
    /// Its id.
    pub id: BuildId,
    /// Template.
    pub name: String,
    /// `running`, `done` or `failed`.
    pub status: BuildStatus,
    /// What it does now.
    pub phase: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it began.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// Lines logged so far; beyond a bound the oldest are gone.
    #[serde(default)]
    pub log: Vec<String>,
}

/// Where a build stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuildStatus {
    /// Under way.
    Running,
    /// Finished.
    Done,
    /// Failed.
    Failed,
}

/// `POST /v1/run`: create, run, return, delete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunRequest {
    /// Template name or alias; `base` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The command.
    #[serde(flatten)]
    pub exec: ExecRequest,
}

/// Answer to a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunResult {
    /// What the command did.
    #[serde(flatten)]
    pub result: ExecResult,
    /// The sandbox it ran in, gone by now.
    pub sandbox_id: SandboxId,
    /// Time to make that sandbox.
    pub create_ms: u64,
    /// Time of the whole call.
    pub total_ms: u64,
    /// Engine that ran it.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
}

/// `POST /v1/me/tokens`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateToken {
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Days until it stops working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_days: Option<u32>,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// Public part.
    pub prefix: String,
    /// Name for people.
    pub label: String,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it stops working.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

/// A new key; the only time its secret is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenCreated {
    /// `pds_...`.
    pub token: String,
    /// The rest.
    #[serde(flatten)]
    pub info: TokenInfo,
}

/// `GET /v1/me`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Me {
    /// Tenant of the key.
    pub workspace: WorkspaceId,
    /// Public part of the key.
    pub token_prefix: String,
    /// Name of the key.
    pub token_label: String,
    /// Always `api_key`.
    pub auth_method: String,
}

/// A host, as operators see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// Its id.
    pub id: HostId,
    /// Whether its agent answers.
    pub reachable: bool,
    /// Engine of new sandboxes.
    pub engine: String,
    /// `hardware` or `emulated`.
    pub isolation: String,
    /// Sandboxes on it.
    pub sandboxes: u64,
    /// Memory not promised to anyone.
    pub memory_free_mb: u64,
    /// Free space of its store.
    pub disk_free_bytes: u64,
    /// Version of its agent.
    pub version: String,
    /// When it was last heard.
    #[schema(value_type = String, format = DateTime)]
    pub last_seen_at: Timestamp,
}

/// `GET /version`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Of the server.
    pub version: String,
    /// Of the API.
    pub api: String,
}
