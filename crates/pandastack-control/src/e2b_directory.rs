//! What the E2B facade must know of sandboxes before anybody is authenticated, read from the record of truth.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use pandastack_e2b::{Access, Directory, DirectoryUnavailable};
use pandastack_sandboxes::{Sandboxes, view};
use pandastack_store::clock::now;
use pandastack_store::{SandboxRecord, StoreError};
use pandastack_types::api::{Sandbox, Scope};
use pandastack_types::{SandboxId, SandboxState};

use crate::auth::Keys;

/// Sandboxes of all workspaces.
pub(crate) struct StoredDirectory {
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) keys: Arc<Keys>,
}

fn unavailable(error: StoreError) -> DirectoryUnavailable {
    DirectoryUnavailable(error.into())
}

fn is_live(record: &SandboxRecord) -> bool {
    !matches!(record.state, SandboxState::Creating | SandboxState::Stopping | SandboxState::Deleted)
}

impl StoredDirectory {
    async fn record(&self, id: &SandboxId) -> Result<Option<SandboxRecord>, DirectoryUnavailable> {
        match self.sandboxes.store.sandbox(None, id).await {
            Ok(record) => Ok(Some(record).filter(is_live)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(unavailable(error)),
        }
    }
}

#[async_trait]
impl Directory for StoredDirectory {
    async fn find(&self, id: &SandboxId) -> Result<Option<Sandbox>, DirectoryUnavailable> {
        Ok(self.record(id).await?.map(|record| view::sandbox(&self.sandboxes.hosts, record)))
    }

    async fn access(&self, id: &SandboxId) -> Result<Option<Access>, DirectoryUnavailable> {
        let Some(record) = self.record(id).await? else { return Ok(None) };
        let tokens = self.sandboxes.store.tokens(&record.workspace).await.map_err(unavailable)?;
        let at = now();
        let may = tokens
            .into_iter()
            .filter(|token| token.scope >= Scope::Sandboxes && token.expires_at.is_none_or(|end| at < end));
        let keys = may.map(|token| token.prefix).collect();
        Ok(Some(Access { revision: record.spec.preview_revision, keys }))
    }

    fn admits(&self, from: Option<IpAddr>) -> bool {
        self.keys.admit_stranger(from).is_ok()
    }

    fn note_wrong(&self, from: Option<IpAddr>) {
        self.keys.note_wrong(from);
    }
}
