//! Managed databases.

use pandastack_types::DatabaseId;
use pandastack_types::api::{
    CloneDatabase, CreateDatabase, Database, DatabaseBackups, DatabaseBaseBackup, DatabaseConnection,
    DatabaseDrill, DatabaseQuery, DatabaseRows, DatabaseStats, DatabaseWaking, PatchDatabase,
};
use reqwest::Method;

use crate::client::{CHANGE_SECONDS, Call, LOOK_SECONDS, List};
use crate::{Client, Result};

/// Longest wait for a query; the server cancels it before.
const QUERY_SECONDS: u64 = 660;
/// Longest wait for a base backup or a restore that is only tried.
const RESTORE_SECONDS: u64 = 4 * 3600;

impl Client {
    /// Makes a database; it takes queries when this returns.
    pub async fn create_database(&self, request: &CreateDatabase) -> Result<Database> {
        self.call(Method::POST, &["databases"], CHANGE_SECONDS).json(request).receive().await
    }

    /// Every database of the workspace, without credentials.
    pub async fn list_databases(&self) -> Result<Vec<Database>> {
        let list: List<Database> = self.call(Method::GET, &["databases"], LOOK_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// One database.
    pub async fn get_database(&self, id: &DatabaseId) -> Result<Database> {
        self.call(Method::GET, &["databases", id.as_str()], LOOK_SECONDS).receive().await
    }

    /// Changes a database.
    pub async fn change_database(&self, id: &DatabaseId, request: &PatchDatabase) -> Result<Database> {
        self.call(Method::PATCH, &["databases", id.as_str()], CHANGE_SECONDS).json(request).receive().await
    }

    /// Deletes a database.
    pub async fn delete_database(&self, id: &DatabaseId) -> Result<()> {
        self.call(Method::DELETE, &["databases", id.as_str()], CHANGE_SECONDS).finish().await
    }

    /// How to connect to a database.
    pub async fn database_connection(&self, id: &DatabaseId) -> Result<DatabaseConnection> {
        self.call(Method::GET, &["databases", id.as_str(), "connection"], LOOK_SECONDS).receive().await
    }

    /// Runs one statement.
    pub async fn query_database(&self, id: &DatabaseId, request: &DatabaseQuery) -> Result<DatabaseRows> {
        let call = self.call(Method::POST, &["databases", id.as_str(), "query"], QUERY_SECONDS);
        call.json(request).receive().await
    }

    /// Copies a database as it is now.
    pub async fn branch_database(&self, id: &DatabaseId, request: &CloneDatabase) -> Result<Database> {
        self.act_on_database(id, "clone").json(request).receive().await
    }

    /// Gives a database a new password.
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

    /// What a database does.
    pub async fn database_stats(&self, id: &DatabaseId) -> Result<DatabaseStats> {
        self.call(Method::GET, &["databases", id.as_str(), "stats"], LOOK_SECONDS).receive().await
    }

    /// Lets a copy restored from the backups take over from a database whose host does not answer.
    pub async fn fail_over_database(&self, id: &DatabaseId) -> Result<Database> {
        self.call(Method::POST, &["databases", id.as_str(), "failover"], RESTORE_SECONDS).receive().await
    }

    /// What of a database can be restored, and how its backup goes.
    pub async fn database_backups(&self, id: &DatabaseId) -> Result<DatabaseBackups> {
        self.call(Method::GET, &["databases", id.as_str(), "backups"], LOOK_SECONDS).receive().await
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

    /// The end of a database's log.
    pub async fn database_logs(&self, id: &DatabaseId) -> Result<String> {
        self.call(Method::GET, &["databases", id.as_str(), "logs"], LOOK_SECONDS).receive_text().await
    }

    fn act_on_database(&self, id: &DatabaseId, action: &str) -> Call {
        self.call(Method::POST, &["databases", id.as_str(), action], CHANGE_SECONDS)
    }
}
