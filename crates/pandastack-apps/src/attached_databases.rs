//! The database operations that apps need.

use pandastack_postgres::Databases;
use pandastack_sandboxes::in_flight::InFlightMark;
use pandastack_store::databases::DatabaseRecord;
use pandastack_types::{DatabaseId, Result};

/// The databases that apps are attached to. Connections to them are made as for any other client.
pub trait AttachedDatabases: Databases {
    /// The connection string by which a machine reaches a database that is attached to its app.
    fn url(&self, database: &DatabaseRecord) -> String;

    /// Marks a database as in use by one operation: nobody deletes it until the mark is dropped.
    fn mark(&self, id: &DatabaseId) -> Result<InFlightMark>;
}
