//! Managed databases.

use pandastack_types::DatabaseId;
use pandastack_types::api::{
    CloneDatabase, CreateDatabase, Database, DatabaseBackups, DatabaseBaseBackup, DatabaseConnection,
    DatabaseDrill, DatabaseQuery, DatabaseRows, DatabaseStats, DatabaseWaking, PatchDatabase,
};
use reqwest::Method;

use crate::client::{Call, Client, List, READ_SECONDS, WRITE_SECONDS};
use crate::error::Result;

/// Timeout of a query; the server cancels it earlier.
const QUERY_SECONDS: u64 = 660;
/// Timeout of a base backup, a test restore or a failover.
const RESTORE_SECONDS: u64 = 4 * 3600;

impl Client {
    /// Creates a database; it accepts queries when this returns.
    pub async fn create_database(&self, request: &CreateDatabase) -> Result<Database> {
        self.call(Method::POST, &["databases"], WRITE_SECONDS).json(request).receive().await
    }

    /// Every database of the workspace, without credentials.
    pub async fn list_databases(&self) -> Result<Vec<Database>> {
        let list: List<Database> = self.call(Method::GET, &["databases"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Returns the database.
    pub async fn get_database(&self, id: &DatabaseId) -> Result<Database> {
        self.call(Method::GET, &["databases", id.as_str()], READ_SECONDS).receive().await
    }

    /// Changes a database.
    pub async fn change_database(&self, id: &DatabaseId, request: &PatchDatabase) -> Result<Database> {
        self.call(Method::PATCH, &["databases", id.as_str()], WRITE_SECONDS).json(request).receive().await
    }

    /// Deletes a database.
    pub async fn delete_database(&self, id: &DatabaseId) -> Result<()> {
        self.call(Method::DELETE, &["databases", id.as_str()], WRITE_SECONDS).finish().await
    }

    /// Connection details of a database.
    pub async fn database_connection(&self, id: &DatabaseId) -> Result<DatabaseConnection> {
        self.call(Method::GET, &["databases", id.as_str(), "connection"], READ_SECONDS).receive().await
    }

    /// Runs one statement.
    pub async fn query_database(&self, id: &DatabaseId, request: &DatabaseQuery) -> Result<DatabaseRows> {
        let call = self.call(Method::POST, &["databases", id.as_str(), "query"], QUERY_SECONDS);
        call.json(request).receive().await
    }

    /// Branches a database.
    pub async fn branch_database(&self, id: &DatabaseId, request: &CloneDatabase) -> Result<Database> {
        self.act_on_database(id, "clone").json(request).receive().await
    }

    /// Generates a new password for a database.
    pub async fn reset_database_credentials(&self, id: &DatabaseId) -> Result<Database> {
        self.act_on_database(id, "reset-credentials").receive().await
    }

    /// Puts a database to sleep.
    pub async fn pause_database(&self, id: &DatabaseId) -> Result<DatabaseWaking> {
        self.act_on_database(id, "pause").receive().await
    }

    /// Wakes a database.
    pub async fn wake_database(&self, id: &DatabaseId) -> Result<DatabaseWaking> {
        self.act_on_database(id, "wake").receive().await
    }

    /// Statistics of a database.
    pub async fn database_stats(&self, id: &DatabaseId) -> Result<DatabaseStats> {
        self.call(Method::GET, &["databases", id.as_str(), "stats"], READ_SECONDS).receive().await
    }

    /// Fails over a database whose host is unreachable to a copy restored from backups.
    pub async fn fail_over_database(&self, id: &DatabaseId) -> Result<Database> {
        self.call(Method::POST, &["databases", id.as_str(), "failover"], RESTORE_SECONDS).receive().await
    }

    /// State of a database's backups and the restorable period.
    pub async fn database_backups(&self, id: &DatabaseId) -> Result<DatabaseBackups> {
        self.call(Method::GET, &["databases", id.as_str(), "backups"], READ_SECONDS).receive().await
    }

    /// Takes a base backup.
    pub async fn back_up_database(&self, id: &DatabaseId) -> Result<DatabaseBaseBackup> {
        self.call(Method::POST, &["databases", id.as_str(), "backups"], RESTORE_SECONDS).receive().await
    }

    /// Restores the latest state of a database, checks it, and deletes it.
    pub async fn drill_database(&self, id: &DatabaseId) -> Result<DatabaseDrill> {
        self.call(Method::POST, &["databases", id.as_str(), "backups", "drill"], RESTORE_SECONDS)
            .receive()
            .await
    }

    /// Latest log lines of a database.
    pub async fn database_logs(&self, id: &DatabaseId) -> Result<String> {
        self.call(Method::GET, &["databases", id.as_str(), "logs"], READ_SECONDS).receive_text().await
    }

    fn act_on_database(&self, id: &DatabaseId, action: &str) -> Call {
        self.call(Method::POST, &["databases", id.as_str(), action], WRITE_SECONDS)
    }
}
