//! Workspaces: their state, quotas, and defaults for new sandboxes.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::WorkspaceId;
use pandastack_types::api::{PatchWorkspace, Quota, WorkspaceSettings, WorkspaceState};

use super::Result;

/// A workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceRecord {
    /// The workspace's name.
    pub id: WorkspaceId,
    /// State of the workspace; only an active one can be used.
    pub state: WorkspaceState,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time of the suspension, while it is suspended.
    pub suspended_at: Option<Timestamp>,
    /// Reason for the suspension.
    pub suspend_reason: Option<String>,
    /// Quotas of the workspace.
    pub quota: Quota,
    /// Defaults of its new sandboxes.
    pub settings: WorkspaceSettings,
}

impl WorkspaceRecord {
    /// A new one.
    pub fn new(id: WorkspaceId, created_at: Timestamp) -> Self {
        Self {
            id,
            state: WorkspaceState::Active,
            created_at,
            suspended_at: None,
            suspend_reason: None,
            quota: Quota::default(),
            settings: WorkspaceSettings::default(),
        }
    }
}

/// A change of whether a workspace may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkspaceMove {
    /// Stop it, for that reason.
    Suspend(Option<String>),
    /// Resume it. Lifetimes that were suspended are extended by the time of the suspension.
    Resume,
    /// Start to delete it: its keys are deleted.
    Delete,
    /// Everything in it is deleted.
    Deleted,
}

/// Workspaces.
#[async_trait]
pub trait WorkspaceStore: Send + Sync {
    /// Adds a workspace. Refuses a name that one has or had.
    async fn insert_workspace(&self, record: &WorkspaceRecord) -> Result<()>;
    /// Returns the workspace, unless it was deleted.
    async fn workspace(&self, id: &WorkspaceId) -> Result<WorkspaceRecord>;
    /// All workspaces but the deleted ones, oldest first.
    async fn workspaces(&self) -> Result<Vec<WorkspaceRecord>>;
    /// Workspaces that are suspended or being deleted.
    async fn closed_workspaces(&self) -> Result<Vec<WorkspaceRecord>>;
    /// Changes whether a workspace may be used. Setting the current state changes nothing; a
    /// workspace that is being deleted is neither suspended nor resumed.
    async fn move_workspace(
        &self,
        id: &WorkspaceId,
        movement: &WorkspaceMove,
        at: Timestamp,
    ) -> Result<WorkspaceRecord>;
    /// The settings of a workspace, with the platform's defaults for absent ones.
    async fn workspace_settings(&self, workspace: &WorkspaceId) -> Result<WorkspaceSettings>;
    /// Changes the settings that the patch names, and returns all settings.
    async fn patch_workspace(
        &self,
        workspace: &WorkspaceId,
        patch: &PatchWorkspace,
    ) -> Result<WorkspaceSettings>;
}
