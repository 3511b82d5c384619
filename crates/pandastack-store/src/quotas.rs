//! Quotas of workspaces: set by the operator, checked where resources are added.

use async_trait::async_trait;
use pandastack_types::WorkspaceId;
use pandastack_types::api::{Quota, QuotaUse};

use super::Result;

/// Quotas of workspaces.
#[async_trait]
pub trait QuotaStore: Send + Sync {
    /// Quotas of a workspace; empty if none are set.
    async fn quota(&self, workspace: &WorkspaceId) -> Result<Quota>;
    /// Replaces it. Existing resources stay, also above the new quota.
    async fn set_quota(&self, workspace: &WorkspaceId, quota: &Quota) -> Result<()>;
    /// Current usage of a workspace's quotas.
    async fn quota_use(&self, workspace: &WorkspaceId) -> Result<QuotaUse>;
}
