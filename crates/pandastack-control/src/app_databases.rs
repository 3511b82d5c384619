//! The database operations that the app service uses, and the app operations that databases use.

use std::sync::Arc;

use async_trait::async_trait;
use pandastack_apps::AttachedDatabases;
use pandastack_databases::{Attachments, ManagedDatabases, StoredDatabases, inside_url, take_mark};
use pandastack_postgres::{Backend, ConnectError, Databases, Endpoint};
use pandastack_sandboxes::in_flight::InFlightMark;
use pandastack_store::apps::AppStore;
use pandastack_types::{DatabaseId, Result, WorkspaceId};

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

#[async_trait]
impl AttachedDatabases for AppDatabases {
    async fn check(&self, workspace: &WorkspaceId, id: &DatabaseId) -> Result<()> {
        self.0.check_attachable(workspace, id).await
    }

    async fn url(&self, workspace: &WorkspaceId, id: &DatabaseId) -> Result<String> {
        Ok(inside_url(&self.0, &self.0.find(workspace, id).await?))
    }

    fn mark(&self, id: &DatabaseId) -> Result<InFlightMark> {
        take_mark(&self.0, id)
    }
}

/// Apps as databases see them.
pub(crate) struct DatabaseApps(pub(crate) Arc<dyn AppStore>);

#[async_trait]
impl Attachments for DatabaseApps {
    async fn attached_app(&self, workspace: &WorkspaceId, id: &DatabaseId) -> Result<Option<String>> {
        pandastack_apps::attached_app(self.0.as_ref(), workspace, id).await
    }
}
