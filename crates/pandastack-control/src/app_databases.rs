//! The database operations that the app service uses.

use std::sync::Arc;

use async_trait::async_trait;
use pandastack_apps::AttachedDatabases;
use pandastack_databases::{ManagedDatabases, StoredDatabases, inside_url, take_mark};
use pandastack_postgres::{Backend, ConnectError, Databases, Endpoint};
use pandastack_sandboxes::in_flight::InFlightMark;
use pandastack_store::databases::DatabaseRecord;
use pandastack_types::{DatabaseId, Result};

/// The databases of this server.
pub(crate) struct AppDatabases(pub(crate) Arc<ManagedDatabases>);

impl AppDatabases {
    fn stored(&self) -> StoredDatabases {
        StoredDatabases(Arc::clone(&self.0))
    }
}

#[async_trait]
impl Databases for AppDatabases {
    async fn connect(&self, endpoint: &Endpoint) -> Result<Backend, ConnectError> {
        self.stored().connect(endpoint).await
    }

    async fn explain(&self, endpoint: &Endpoint, code: &str) -> Option<String> {
        self.stored().explain(endpoint, code).await
    }
}

impl AttachedDatabases for AppDatabases {
    fn url(&self, database: &DatabaseRecord) -> String {
        inside_url(&self.0, database)
    }

    fn mark(&self, id: &DatabaseId) -> Result<InFlightMark> {
        take_mark(&self.0, id)
    }
}
