//! The database operations that apps need.

use async_trait::async_trait;
use pandastack_postgres::Databases;
use pandastack_sandboxes::in_flight::InFlightMark;
use pandastack_types::{DatabaseId, Result, WorkspaceId};

/// The databases that apps are attached to. Connections to them are made as for any other client.
#[async_trait]
pub trait AttachedDatabases: Databases {
    /// Refuses a database that the workspace does not have, or that is being deleted.
    async fn check(&self, workspace: &WorkspaceId, id: &DatabaseId) -> Result<()>;

    /// The connection string by which a machine reaches a database that is attached to its app.
    async fn url(&self, workspace: &WorkspaceId, id: &DatabaseId) -> Result<String>;

    /// Marks a database as in use by one operation: it cannot be deleted until the mark is dropped.
    fn mark(&self, id: &DatabaseId) -> Result<InFlightMark>;
}
