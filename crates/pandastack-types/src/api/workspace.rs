//! Workspaces as operators manage them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::account::{Quota, QuotaUse, WorkspaceSettings};
use crate::preview::Visibility;
use crate::{InvalidValue, WorkspaceId};

/// State of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceState {
    /// In use.
    #[default]
    Active,
    /// Suspended: its machines sleep, its keys are rejected, and its apps respond with a notice.
    Suspended,
    /// Being deleted, with everything in it.
    Deleting,
    /// Deleted. The name is not reused, because usage and audit entries refer to it.
    Deleted,
}

impl WorkspaceState {
    const ALL: [WorkspaceState; 4] = [Self::Active, Self::Suspended, Self::Deleting, Self::Deleted];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Suspended => "suspended",
            Self::Deleting => "deleting",
            Self::Deleted => "deleted",
        }
    }
}

impl std::str::FromStr for WorkspaceState {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let known = Self::ALL.into_iter().find(|state| state.as_str() == text);
        known.ok_or_else(|| InvalidValue::new(format!("{text:?} is not a state of a workspace")))
    }
}

/// A workspace, as shown to operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceInfo {
    /// Workspace name.
    pub id: WorkspaceId,
    /// Current state.
    pub state: WorkspaceState,
    /// Creation time.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time of the suspension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub suspended_at: Option<Timestamp>,
    /// Reason for the suspension, shown to its users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend_reason: Option<String>,
    /// Quotas of the workspace.
    pub quota: Quota,
    /// Current usage.
    pub used: QuotaUse,
    /// Defaults for new sandboxes.
    #[serde(flatten)]
    pub settings: WorkspaceSettings,
}

/// Request body of `POST /v1/workspaces`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWorkspace {
    /// Workspace name: lowercase letters, digits and `-`.
    pub id: WorkspaceId,
    /// Quotas of the workspace. Default: the platform's limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Default visibility of sandbox ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_visibility: Option<Visibility>,
}

/// Request body of `POST /v1/workspaces/{id}/suspend`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SuspendWorkspace {
    /// Reason, shown to the users of the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
