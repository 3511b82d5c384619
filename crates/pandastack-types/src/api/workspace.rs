//! Workspaces as operators manage them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::account::{Quota, QuotaUse, WorkspaceSettings};
use crate::WorkspaceId;
use crate::preview::Visibility;

/// Whether a workspace may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceState {
    /// It may.
    #[default]
    Active,
    /// Its machines sleep, its keys are refused and its apps answer with a notice.
    Suspended,
    /// Everything in it is being deleted.
    Deleting,
    /// It is gone. Its name is not used again, because usage and audit entries still bear it.
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
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|state| state.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not a state of a workspace"))
    }
}

/// A workspace, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceInfo {
    /// Its name.
    pub id: WorkspaceId,
    /// Whether it may be used.
    pub state: WorkspaceState,
    /// When it was created.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub suspended_at: Option<Timestamp>,
    /// Why it was suspended, as its users are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend_reason: Option<String>,
    /// What it may have.
    pub quota: Quota,
    /// What it has.
    pub used: QuotaUse,
    /// Defaults of its new sandboxes.
    #[serde(flatten)]
    pub settings: WorkspaceSettings,
}

/// `POST /v1/workspaces`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWorkspace {
    /// Its name: lowercase letters, digits and `-`.
    pub id: WorkspaceId,
    /// What it may have; the platform's own limits when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Who may open the ports of its new sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_visibility: Option<Visibility>,
}

/// `POST /v1/workspaces/{id}/suspend`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SuspendWorkspace {
    /// Why, as its users are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
