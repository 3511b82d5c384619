//! The machine of a database and the space on its volume; the mark held by an operation that
//! changes a database.

use pandastack_sandboxes::in_flight::{InFlightMark, OperationKey};
use pandastack_sandboxes::machine::Machine;
use pandastack_store::databases::{DatabaseRecord, DatabaseState};
use pandastack_store::volumes::VolumeRecord;
use pandastack_types::{DatabaseId, Error, ErrorCode, Owner, Result, SandboxId};

use crate::service::ManagedDatabases;
use crate::spec::owner;

/// Room for data, and what of it is taken, in bytes.
pub(crate) async fn storage(databases: &ManagedDatabases, record: &DatabaseRecord) -> Result<(u64, u64)> {
    let volumes = databases.volumes.owned_by(&record.workspace, &owner(&record.id)).await?;
    let used = |volume: &VolumeRecord| databases.volumes.used_bytes(volume).unwrap_or(0);
    Ok((volumes.iter().map(|volume| volume.spec.size_bytes).sum(), volumes.iter().map(used).sum()))
}

/// Removes every machine that belongs to a database.
pub(crate) async fn remove_machines(databases: &ManagedDatabases, id: &DatabaseId) -> Result<()> {
    remove_owned(databases, &owner(id), "its database is deleted").await
}

/// Removes every machine of an owner.
pub(crate) async fn remove_owned(databases: &ManagedDatabases, owner: &Owner, why: &str) -> Result<()> {
    for machine in databases.machines.owned_by(owner).await? {
        databases.machines.delete(machine, Some(why)).await?;
    }
    Ok(())
}

/// The machine of a database that is ready.
pub(crate) async fn machine(databases: &ManagedDatabases, record: &DatabaseRecord) -> Result<Machine> {
    match databases.machines.open(&record.workspace, ready(record)?).await {
        Err(error) if error.code == ErrorCode::NotFound => {
            Err(Error::conflict(format!("the machine of database `{}` was lost", record.id)))
        }
        opened => opened,
    }
}

/// Refuses what needs a database that is ready.
pub(crate) fn ready(record: &DatabaseRecord) -> Result<&SandboxId> {
    let id = &record.id;
    match (record.state, &record.sandbox) {
        (DatabaseState::Ready, Some(sandbox)) => Ok(sandbox),
        (DatabaseState::Creating, _) => {
            let message = format!("database `{id}` is still being created; try again in a moment");
            Err(Error::new(ErrorCode::Unavailable, message))
        }
        (DatabaseState::Deleting, _) => Err(Error::conflict(format!("database `{id}` is being deleted"))),
        (DatabaseState::Failed | DatabaseState::Ready, _) => {
            let why = record.spec.failure.as_deref().unwrap_or("its creation did not finish");
            Err(Error::conflict(format!("database `{id}` failed: {why}")))
        }
    }
}

/// Marks a database as in use by an operation; refuses if it already is.
pub fn take_mark(databases: &ManagedDatabases, id: &DatabaseId) -> Result<InFlightMark> {
    databases.background.mark(&OperationKey::Database(id.clone())).ok_or_else(|| taken(id))
}

/// The error for a database on which another operation is in progress.
pub(crate) fn taken(id: &DatabaseId) -> Error {
    Error::conflict(format!("another operation on database `{id}` is in progress; try again"))
}
