//! The interface that databases need of apps.

use async_trait::async_trait;
use pandastack_types::{DatabaseId, Result, WorkspaceId};

/// Looks up the apps that databases are attached to.
#[async_trait]
pub trait Attachments: Send + Sync {
    /// Name of an app of the workspace that a database is attached to.
    async fn attached_app(&self, workspace: &WorkspaceId, id: &DatabaseId) -> Result<Option<String>>;
}
