//! Connects to the PostgreSQL server in a machine. Connecting wakes the machine.

use std::sync::Arc;

use async_trait::async_trait;
use pandastack_edge::{EdgeError, Permit};
use pandastack_postgres::{Backend, ConnectError, Databases, Endpoint, InUse, Listener};
use pandastack_types::SandboxId;

use crate::service::ManagedDatabases;

/// Port of the administrator's first session, which the template's `pandastack-postgres-first` keeps open. The first
/// connection takes it over, and then the port is closed.
const FIRST_SESSION_PORT: u16 = 5433;

/// Connects every endpoint to one machine. For work before a database is ready.
pub(crate) struct MachineConnector {
    pub(crate) databases: Arc<ManagedDatabases>,
    pub(crate) sandbox: SandboxId,
}

/// Keeps a machine awake while a session works.
struct AwakePermit(Permit);

impl InUse for AwakePermit {
    fn set_busy(&mut self, busy: bool) {
        self.0.set_busy(busy);
    }
}

#[async_trait]
impl Databases for MachineConnector {
    async fn connect(&self, endpoint: &Endpoint) -> Result<Backend, ConnectError> {
        let connected = connect(&self.databases, &self.sandbox, endpoint).await;
        connected.map_err(|error| explain(&error, &self.sandbox, endpoint))
    }
}

/// Connects to a machine's server or pooler.
pub(crate) async fn connect(
    databases: &ManagedDatabases,
    sandbox: &SandboxId,
    endpoint: &Endpoint,
) -> Result<Backend, EdgeError> {
    connect_port(databases, sandbox, endpoint.listener.port()).await
}

/// Connects to the administrator's first session. `None` if the machine has none, as with older
/// templates.
pub(crate) async fn connect_first(
    databases: &ManagedDatabases,
    sandbox: &SandboxId,
) -> Result<Option<Backend>, ConnectError> {
    match connect_port(databases, sandbox, FIRST_SESSION_PORT).await {
        Ok(backend) => Ok(Some(backend)),
        Err(EdgeError::PortClosed) => Ok(None),
        // The session may still be waiting, and must not be left open.
        Err(error) => {
            let endpoint = Endpoint { database: sandbox.to_string(), listener: Listener::Direct };
            Err(explain(&error, sandbox, &endpoint))
        }
    }
}

async fn connect_port(
    databases: &ManagedDatabases,
    sandbox: &SandboxId,
    port: u16,
) -> Result<Backend, EdgeError> {
    let (stream, permit) = databases.edge.connect(sandbox, port).await?;
    let (closing, cut) = (permit.closing(), permit.cut());
    Ok(Backend { stream: Box::new(stream), in_use: Box::new(AwakePermit(permit)), closing, cut })
}

/// Explains to a client why a machine was not reached.
pub(crate) fn explain(error: &EdgeError, sandbox: &SandboxId, endpoint: &Endpoint) -> ConnectError {
    let id = &endpoint.database;
    let why = match error {
        EdgeError::PortClosed | EdgeError::InsideOnly(_) => "its server is not running".to_owned(),
        EdgeError::Unknown => "its machine was lost".to_owned(),
        EdgeError::Silent => "its machine is not responding".to_owned(),
        other => other.sentence(sandbox, endpoint.listener.port()),
    };
    ConnectError::Unavailable(format!("database `{id}` is unreachable: {why}"))
}
