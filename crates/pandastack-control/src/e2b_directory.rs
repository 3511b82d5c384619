//! What the E2B facade must know of sandboxes before anybody is authenticated, read from the record of truth.

use std::cmp::Reverse;
use std::sync::Arc;

use async_trait::async_trait;
use pandastack_e2b::{Directory, DirectoryUnavailable};
use pandastack_sandboxes::{Sandboxes, view};
use pandastack_store::{SandboxRecord, Select, StoreError};
use pandastack_types::api::Sandbox;
use pandastack_types::{SandboxId, SandboxState};

/// Sandboxes of all workspaces.
pub(crate) struct StoredDirectory(pub(crate) Arc<Sandboxes>);

fn unavailable(error: StoreError) -> DirectoryUnavailable {
    DirectoryUnavailable(error.into())
}

fn is_live(record: &SandboxRecord) -> bool {
    !matches!(record.state, SandboxState::Creating | SandboxState::Stopping | SandboxState::Deleted)
}

#[async_trait]
impl Directory for StoredDirectory {
    async fn find(&self, id: &SandboxId) -> Result<Option<Sandbox>, DirectoryUnavailable> {
        match self.0.store.sandbox(None, id).await {
            Ok(record) if is_live(&record) => Ok(Some(view::sandbox(&self.0.hosts, record))),
            Ok(_) | Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(unavailable(error)),
        }
    }

    async fn newest(&self, limit: usize) -> Result<Vec<SandboxId>, DirectoryUnavailable> {
        let mut found = Vec::new();
        for (host, _) in self.0.hosts.clients() {
            let records = self.0.store.sandboxes(&Select::Host(host)).await.map_err(unavailable)?;
            found.extend(records.into_iter().filter(is_live).map(|record| (record.created_at, record.id)));
        }
        found.sort_by_key(|(created_at, _)| Reverse(*created_at));
        Ok(found.into_iter().take(limit).map(|(_, id)| id).collect())
    }
}
