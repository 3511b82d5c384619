//! Databases as apps see them.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use pandastack_apps::AttachedDatabases;
use pandastack_postgres::{Backend, ConnectError, Databases, Endpoint};
use pandastack_types::{DatabaseId, Error, Result};

use crate::app::App;
use crate::databases::{StoredDatabases, inside_url, take_mark};
use crate::sandboxes::in_flight::InFlightMark;
use crate::store::databases::DatabaseRecord;

/// The databases of this server. It is weak because the server's state holds the apps, which hold this.
pub(crate) struct AppDatabases(pub(crate) Weak<App>);

impl AppDatabases {
    /// Fails when the server has ended.
    fn app(&self) -> Result<Arc<App>> {
        self.0.upgrade().ok_or_else(|| Error::internal("the server has stopped"))
    }

    fn stored(&self) -> Result<StoredDatabases> {
        self.app().map(StoredDatabases)
    }
}

#[async_trait]
impl Databases for AppDatabases {
    async fn connect(&self, endpoint: &Endpoint) -> Result<Backend, ConnectError> {
        let stored = self.stored().map_err(|error| ConnectError::Unavailable(error.to_string()))?;
        stored.connect(endpoint).await
    }

    async fn explain(&self, endpoint: &Endpoint, code: &str) -> Option<String> {
        self.stored().ok()?.explain(endpoint, code).await
    }
}

impl AttachedDatabases for AppDatabases {
    fn url(&self, database: &DatabaseRecord) -> Result<String> {
        Ok(inside_url(&*self.app()?, database))
    }

    fn mark(&self, id: &DatabaseId) -> Result<InFlightMark> {
        take_mark(&*self.app()?, id)
    }
}
