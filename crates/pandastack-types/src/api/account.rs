//! Keys, hosts and the server itself.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::preview::Visibility;
use crate::{HostId, WorkspaceId};

/// Permissions of an API key. Each scope includes those before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Read everything in its workspace, files included.
    Read,
    /// Create, use and delete sandboxes, snapshots and templates.
    #[default]
    Sandboxes,
    /// Manage keys, and see the installation.
    Admin,
}

impl Scope {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Sandboxes => "sandboxes",
            Scope::Admin => "admin",
        }
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Scope::Read, Scope::Sandboxes, Scope::Admin]
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or_else(|| format!("{text:?} is not a scope; use `read`, `sandboxes` or `admin`"))
    }
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
    /// What it may do; `sandboxes` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// Public part.
    pub prefix: String,
    /// Name for people.
    pub label: String,
    /// What it may do.
    #[serde(default)]
    pub scope: Scope,
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
    /// What the key may do.
    #[serde(default)]
    pub token_scope: Scope,
    /// Always `api_key`.
    pub auth_method: String,
}

/// What a workspace may have and ask for. What is absent has the platform's own limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<u64>,
    /// Processors of all sandboxes together, asleep or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u64>,
    /// Memory of all sandboxes together, asleep or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Snapshots on disk, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_mb: Option<u64>,
    /// Requests per second, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
}

/// What a workspace has of what its quota counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaUse {
    /// Sandboxes.
    pub sandboxes: u64,
    /// Their processors.
    pub cpu: u64,
    /// Their memory.
    pub memory_mb: u64,
    /// Snapshots on disk, in MiB.
    pub snapshot_mb: u64,
}

/// `GET /v1/me/quota`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaReport {
    /// Whose.
    pub workspace: WorkspaceId,
    /// What it may have.
    pub quota: Quota,
    /// What it has.
    pub used: QuotaUse,
}

/// `GET /v1/me/workspace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Workspace {
    /// Which.
    pub id: WorkspaceId,
    /// What it gives to sandboxes that are created without a value of their own.
    #[serde(flatten)]
    pub settings: WorkspaceSettings,
}

/// What a workspace gives to sandboxes that are created without a value of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WorkspaceSettings {
    /// Who may open the ports of a new sandbox.
    pub default_visibility: Visibility,
}

/// Body of `PATCH /v1/me/workspace`. What is absent stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchWorkspace {
    /// Who may open the ports of sandboxes created from now on; those that exist keep what they have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_visibility: Option<Visibility>,
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
