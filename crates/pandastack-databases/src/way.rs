//! How the edge reaches databases: through the door of their machine, which wakes it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pandastack_edge::{EdgeError, Ticket};
use pandastack_postgres::{Backend, ConnectError, Databases, Endpoint, Entrance, InUse};
use pandastack_types::{DatabaseId, SandboxId};
use tokio::time::Instant;

use super::{revive, room};
use crate::service::ManagedDatabases;
use pandastack_sandboxes::lost;
use pandastack_store::StoreError;
use pandastack_store::databases::DatabaseState;

/// How long the report of a loss may take.
const REPORT_WAIT: Duration = Duration::from_secs(5);

/// Port of a machine that comes from the template, where its administrator's first session waits: the template's
/// `pandastack-postgres-first`. It is given to whoever comes first, and the port is closed.
const FIRST_SESSION_PORT: u16 = 5433;

/// Every database that is ready.
pub struct StoredDatabases(pub Arc<ManagedDatabases>);

/// One machine, whoever asks: for what is done before a database is ready.
pub(super) struct OneMachine {
    pub(super) app: Arc<ManagedDatabases>,
    pub(super) sandbox: SandboxId,
}

/// Keeps a machine awake while a session works.
struct Awake(Ticket);

impl InUse for Awake {
    fn set_busy(&mut self, busy: bool) {
        self.0.set_busy(busy);
    }
}

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
        room::explain(&self.0, &endpoint.database.parse().ok()?, code).await
    }
}

impl StoredDatabases {
    /// Once more, if the machine was lost and is replaced, or its server is started again; until then the client is held.
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
        connect(&self.0, &machine, endpoint).await.map_err(|error| explain(&error, &machine, endpoint))
    }

    /// The machine that replaces one which was lost; `None` if it was not. Its host may know of a loss before its report is here.
    async fn successor(&self, id: &DatabaseId, tried: &SandboxId) -> Option<Result<SandboxId, ConnectError>> {
        let mut events = self.0.sandboxes.events.subscribe();
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

#[async_trait]
impl Databases for OneMachine {
    async fn connect(&self, endpoint: &Endpoint) -> Result<Backend, ConnectError> {
        let connected = connect(&self.app, &self.sandbox, endpoint).await;
        connected.map_err(|error| explain(&error, &self.sandbox, endpoint))
    }
}

/// The way to a machine's server or pooler.
pub(super) async fn connect(
    app: &ManagedDatabases,
    sandbox: &SandboxId,
    endpoint: &Endpoint,
) -> Result<Backend, EdgeError> {
    connect_port(app, sandbox, endpoint.entrance.port()).await
}

/// The way to the administrator's first session; `None` if none waits, which is so in machines of older templates.
pub(super) async fn connect_first(
    app: &ManagedDatabases,
    sandbox: &SandboxId,
) -> Result<Option<Backend>, ConnectError> {
    match connect_port(app, sandbox, FIRST_SESSION_PORT).await {
        Ok(backend) => Ok(Some(backend)),
        Err(EdgeError::PortClosed) => Ok(None),
        // One may wait all the same, and must not be left open.
        Err(error) => {
            let endpoint = Endpoint { database: sandbox.to_string(), entrance: Entrance::Direct };
            Err(explain(&error, sandbox, &endpoint))
        }
    }
}

async fn connect_port(app: &ManagedDatabases, sandbox: &SandboxId, port: u16) -> Result<Backend, EdgeError> {
    let (stream, ticket) = app.sandboxes.edge.connect(sandbox, port).await?;
    let (closing, cut) = (ticket.closing(), ticket.cut());
    Ok(Backend { stream: Box::new(stream), in_use: Box::new(Awake(ticket)), closing, cut })
}

/// What kept from a machine, for whoever asked for it.
pub(super) fn explain(error: &EdgeError, sandbox: &SandboxId, endpoint: &Endpoint) -> ConnectError {
    let id = &endpoint.database;
    let why = match error {
        EdgeError::PortClosed | EdgeError::InsideOnly(_) => "its server is not running".to_owned(),
        EdgeError::Unknown => "its machine was lost".to_owned(),
        EdgeError::Silent => "its machine is not responding".to_owned(),
        other => other.sentence(sandbox, endpoint.entrance.port()),
    };
    ConnectError::Unavailable(format!("database `{id}` is unreachable: {why}"))
}
