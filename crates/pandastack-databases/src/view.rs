//! Converts database records to API responses.

use http::HeaderMap;
use pandastack_store::databases::{DatabaseRecord, DatabaseState};
use pandastack_types::api::{Database, DatabaseConnection, DatabaseStatus};
use pandastack_types::network::DATABASES_ADDRESS;
use pandastack_types::{DatabaseId, Result, SandboxState, chain};

use crate::credentials::{DATABASE, TENANT, broker_token, password};
use crate::service::ManagedDatabases;
use crate::spec::TEMPLATE;
use crate::{backups, disk_guard};

/// A database as lists show it.
pub(super) async fn summary(databases: &ManagedDatabases, record: DatabaseRecord) -> Result<Database> {
    let (status, failure) = status(databases, &record).await;
    let failover_available = backups::failover::can_fail_over(databases, &record).await;
    Ok(Database {
        id: record.id,
        status,
        template: TEMPLATE.to_owned(),
        name: record.spec.name,
        label: record.spec.label,
        created_at: record.created_at,
        size: record.spec.size,
        always_on: record.spec.always_on,
        protected: record.spec.protected,
        connection: None,
        sandbox_id: record.sandbox,
        cloned_from: record.spec.cloned_from,
        step: record.spec.step,
        error: failure.or(record.spec.failure),
        failover_available,
    })
}

/// A database with its connection details, for callers that may change it.
pub(super) async fn details(
    databases: &ManagedDatabases,
    headers: &HeaderMap,
    record: DatabaseRecord,
) -> Result<Database> {
    let connection = connection(databases, headers, &record).await;
    Ok(Database { connection, ..summary(databases, record).await? })
}

/// Connection details, once the database is ready and this server has an address for clients.
pub(super) async fn connection(
    databases: &ManagedDatabases,
    headers: &HeaderMap,
    record: &DatabaseRecord,
) -> Option<DatabaseConnection> {
    let address = databases.address.as_ref().filter(|_| record.state == DatabaseState::Ready)?;
    let (id, password) = (&record.id, password(&databases.link, record));
    let port = own_port(databases, id).await.unwrap_or(address.port);
    Some(DatabaseConnection {
        host: address.host_of(id),
        port,
        database: DATABASE.to_owned(),
        username: TENANT.to_owned(),
        connection_url: address.url(id, &password, port, false),
        pooled_url: address.url(id, &password, port, true),
        password,
        broker_url: format!("{}/v1/databases/{id}/proxy", origin(headers)),
        broker_token: broker_token(&databases.link, record),
    })
}

/// The port that leads to this database alone. Without one the shared port still works, for clients
/// that name the database.
async fn own_port(databases: &ManagedDatabases, id: &DatabaseId) -> Option<u16> {
    let port = databases.ports.as_ref()?.of(id).await;
    port.inspect_err(|error| {
        tracing::warn!(
            database = %id, error = %chain(&error),
            "cannot assign a port to a database"
        )
    })
    .ok()
}

/// Address at which a machine reaches a database that is attached to it.
pub fn inside_url(databases: &ManagedDatabases, record: &DatabaseRecord) -> String {
    let (id, password) = (&record.id, password(&databases.link, record));
    format!(
        "postgresql://{TENANT}:{password}@{DATABASES_ADDRESS}/{DATABASE}?sslmode=disable&options=endpoint%3D{id}"
    )
}

/// Origin under which this API was called.
fn origin(headers: &HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let scheme = text("x-forwarded-proto").unwrap_or("http");
    format!("{scheme}://{}", text("host").unwrap_or("127.0.0.1"))
}

/// Whether the machine of a database sleeps.
pub(crate) async fn is_asleep(databases: &ManagedDatabases, record: &DatabaseRecord) -> bool {
    matches!(status(databases, record).await.0, DatabaseStatus::Hibernated)
}

async fn status(databases: &ManagedDatabases, record: &DatabaseRecord) -> (DatabaseStatus, Option<String>) {
    let status = match record.state {
        DatabaseState::Creating => DatabaseStatus::Provisioning,
        DatabaseState::Failed => DatabaseStatus::Failed,
        DatabaseState::Deleting => DatabaseStatus::Deleting,
        DatabaseState::Ready => DatabaseStatus::Running,
    };
    let (DatabaseStatus::Running, Some(sandbox)) = (status, &record.sandbox) else { return (status, None) };
    match databases.machines.find(None, sandbox).await {
        Ok(machine) if matches!(machine.state, SandboxState::Hibernated | SandboxState::Paused) => {
            (DatabaseStatus::Hibernated, None)
        }
        Ok(machine) if machine.state == SandboxState::Failed => {
            (DatabaseStatus::Recovering, machine.spec.failure.or(Some("its machine was lost".to_owned())))
        }
        Ok(_) if databases.full_disks.is_full(&record.id) => {
            (DatabaseStatus::ReadOnly, Some(disk_guard::advice(databases, record).await))
        }
        Ok(_) => (DatabaseStatus::Running, None),
        Err(_) => (DatabaseStatus::Recovering, Some("its machine was lost".to_owned())),
    }
}
