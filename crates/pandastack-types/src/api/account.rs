//! Quotas, settings of a workspace and the server itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::WorkspaceId;
use crate::preview::Visibility;

/// Quotas of a workspace. For omitted quotas, the platform's limits apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Maximum number of sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<u64>,
    /// Maximum vCPUs of all sandboxes together, including sleeping ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u64>,
    /// Maximum memory of all sandboxes together in MiB, including sleeping ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Maximum disk space of all snapshots together, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_mb: Option<u64>,
    /// Maximum API requests per second, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u32>,
}

/// Current usage of a workspace's quotas.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaUse {
    /// Number of sandboxes.
    pub sandboxes: u64,
    /// vCPUs of all sandboxes.
    pub cpu: u64,
    /// Memory of all sandboxes, in MiB.
    pub memory_mb: u64,
    /// Disk space of all snapshots, in MiB.
    pub snapshot_mb: u64,
}

/// Response of `GET /v1/me/quota`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuotaReport {
    /// Workspace ID.
    pub workspace: WorkspaceId,
    /// Quotas of the workspace.
    pub quota: Quota,
    /// Current usage.
    pub used: QuotaUse,
}

/// Response of `GET /v1/me/workspace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Workspace {
    /// Workspace ID.
    pub id: WorkspaceId,
    /// Defaults for new sandboxes.
    #[serde(flatten)]
    pub settings: WorkspaceSettings,
}

/// Defaults of a workspace for new sandboxes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WorkspaceSettings {
    /// Default visibility of sandbox ports.
    pub default_visibility: Visibility,
}

/// Request body of `PATCH /v1/me/workspace`. Omitted settings are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PatchWorkspace {
    /// Default visibility of sandbox ports. Existing sandboxes keep theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_visibility: Option<Visibility>,
}

/// Response of `GET /version`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// Server version.
    pub version: String,
    /// API version.
    pub api: String,
}
