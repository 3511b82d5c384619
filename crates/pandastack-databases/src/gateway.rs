//! The edge's access to databases: through the grant of their machine, which wakes it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pandastack_edge::EdgeError;
use pandastack_postgres::{Backend, ConnectError, Databases, Endpoint};
use pandastack_sandboxes::lost;
use pandastack_store::StoreError;
use pandastack_store::databases::DatabaseState;
use pandastack_types::{DatabaseId, SandboxId};
use tokio::time::Instant;

use crate::connector::{connect, explain};
use crate::service::ManagedDatabases;
use crate::{disk_guard, revive};

/// Longest time for the report of a loss.
const REPORT_WAIT: Duration = Duration::from_secs(5);

/// Every database that is ready.
pub struct StoredDatabases(pub Arc<ManagedDatabases>);

#[async_trait]
impl Databases for StoredDatabases {
    async fn connect(&self, endpoint: &Endpoint) -> Result<Backend, ConnectError> {
        let unknown = || ConnectError::Unknown(endpoint.database.clone());
        let id: DatabaseId = endpoint.database.parse().map_err(|_| unknown())?;
        let record = match self.0.store.database(None, &id).await {
            Ok(record) => record,
            Err(StoreError::NotFound { .. }) => return Err(unknown()),
            Err(error) => return Err(ConnectError::Unavailable(error.to_string())),
        };
        match (record.state, record.sandbox) {
            (DatabaseState::Ready, Some(sandbox)) => match connect(&self.0, &sandbox, endpoint).await {
                Ok(backend) => Ok(backend),
                Err(error) => self.connect_again(&id, endpoint, error, &sandbox).await,
            },
            (DatabaseState::Creating, _) => {
                Err(ConnectError::NotReady(format!("database `{id}` is still being created")))
            }
            (DatabaseState::Deleting, _) => {
                Err(ConnectError::NotReady(format!("database `{id}` is being deleted")))
            }
            (DatabaseState::Failed | DatabaseState::Ready, _) => {
                let why = record.spec.failure.unwrap_or_else(|| "its creation did not finish".to_owned());
                Err(ConnectError::NotReady(format!("database `{id}` failed: {why}")))
            }
        }
    }

    fn domain(&self) -> Option<&str> {
        self.0.address.as_ref()?.domain.as_deref()
    }

    async fn explain(&self, endpoint: &Endpoint, code: &str) -> Option<String> {
        disk_guard::explain(&self.0, &endpoint.database.parse().ok()?, code).await
    }
}

impl StoredDatabases {
    /// Once more, if the machine was lost and is replaced, or its server is started again; until
    /// then the client is held.
    async fn connect_again(
        &self,
        id: &DatabaseId,
        endpoint: &Endpoint,
        error: EdgeError,
        tried: &SandboxId,
    ) -> Result<Backend, ConnectError> {
        let machine = match error {
            EdgeError::InsideOnly(_) => None,
            EdgeError::PortClosed => {
                let started = revive::restart(&self.0, id, tried).await;
                Some(started.map_err(|error| ConnectError::Unavailable(error.to_string())))
            }
            _ => self.successor(id, tried).await,
        };
        let machine = machine.unwrap_or_else(|| Err(explain(&error, tried, endpoint)))?;
        match connect(&self.0, &machine, endpoint).await {
            // The machine is recorded before it exists.
            Err(EdgeError::Unknown) => {
                let machine = revive::await_machine(&self.0, id).await;
                let machine = machine.map_err(|error| ConnectError::Unavailable(error.to_string()))?;
                connect(&self.0, &machine, endpoint)
                    .await
                    .map_err(|error| explain(&error, &machine, endpoint))
            }
            connected => connected.map_err(|error| explain(&error, &machine, endpoint)),
        }
    }

    /// The machine that replaces one which was lost; `None` if it was not. Its host may know of a
    /// loss before its report is here.
    async fn successor(&self, id: &DatabaseId, tried: &SandboxId) -> Option<Result<SandboxId, ConnectError>> {
        let mut events = self.0.machines.events();
        let deadline = Instant::now() + REPORT_WAIT;
        loop {
            let record = self.0.store.database(None, id).await.ok()?;
            if let Some(other) = record.sandbox.as_ref().filter(|sandbox| *sandbox != tried) {
                return Some(Ok(other.clone()));
            }
            if revive::is_lost(&self.0, &record).await.unwrap_or(false) {
                let machine = revive::await_machine(&self.0, id).await;
                return Some(machine.map_err(|error| ConnectError::Unavailable(error.to_string())));
            }
            tokio::time::timeout_at(deadline, lost(&mut events)).await.ok()?;
        }
    }
}
