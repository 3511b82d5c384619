//! What a workspace gives to sandboxes that are created without a value of their own.

use async_trait::async_trait;
use pandastack_types::WorkspaceId;
use pandastack_types::api::{PatchWorkspace, WorkspaceSettings};

use super::Result;

/// Settings of workspaces.
#[async_trait]
pub trait WorkspaceStore: Send + Sync {
    /// The settings of a workspace; the platform's own where nobody set anything.
    async fn workspace_settings(&self, workspace: &WorkspaceId) -> Result<WorkspaceSettings>;
    /// Changes what the patch names, and answers all of them.
    async fn patch_workspace(
        &self,
        workspace: &WorkspaceId,
        patch: &PatchWorkspace,
    ) -> Result<WorkspaceSettings>;
}
