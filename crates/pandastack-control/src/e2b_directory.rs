//! Sandbox data that the E2B facade needs before authentication, read from the store.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use pandastack_e2b::{Access, Directory, DirectoryUnavailable, FoundSandbox};
use pandastack_sandboxes::Sandboxes;
use pandastack_store::clock::now;
use pandastack_store::{SandboxRecord, Store, StoreError, TokenRecord};
use pandastack_types::api::Role;
use pandastack_types::{SandboxId, SandboxState};

use crate::auth::Keys;
use crate::key_cache::{check_networks, networks};

/// Sandboxes of all workspaces.
pub(crate) struct StoredDirectory {
    pub(crate) store: Arc<dyn Store>,
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
        match self.store.sandbox(None, id).await {
            Ok(record) => Ok(Some(record).filter(is_live)),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(error) => Err(unavailable(error)),
        }
    }
}

#[async_trait]
impl Directory for StoredDirectory {
    async fn find(&self, id: &SandboxId) -> Result<Option<FoundSandbox>, DirectoryUnavailable> {
        Ok(self.record(id).await?.map(|record| {
            let user = record.spec.user.clone();
            FoundSandbox { sandbox: self.sandboxes.view(record), user }
        }))
    }

    async fn access(
        &self,
        id: &SandboxId,
        from: Option<IpAddr>,
    ) -> Result<Option<Access>, DirectoryUnavailable> {
        let Some(record) = self.record(id).await? else { return Ok(None) };
        let tokens = self.store.tokens(&record.workspace).await.map_err(unavailable)?;
        let at = now();
        // A key whose network list is unreadable is refused everywhere.
        let is_there = |token: &TokenRecord| {
            let networks = networks(&token.allow_from);
            networks.and_then(|networks| check_networks(&token.prefix, &networks, from)).is_ok()
        };
        let may = tokens
            .into_iter()
            .filter(|token| token.role >= Role::Developer && token.expires_at.is_none_or(|end| at < end))
            .filter(is_there);
        let keys = may.map(|token| token.prefix).collect();
        Ok(Some(Access { revision: record.spec.preview_revision, keys }))
    }

    async fn check_key(&self, key: &str, from: Option<IpAddr>) -> pandastack_types::Result<()> {
        self.keys.check_from(from, key).await.map(drop)
    }

    fn admits(&self, from: Option<IpAddr>) -> bool {
        self.keys.admit_stranger(from).is_ok()
    }

    fn count_invalid_key(&self, from: Option<IpAddr>) {
        self.keys.count_invalid_key(from);
    }
}
