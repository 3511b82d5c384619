//! Failover: a restored copy replaces a database whose host is unreachable, under its id, address and
//! password, with what its archive has.
//!
//! Must hold: nothing takes over from a machine that can be reached, whose volume has more than the
//! archive. The machine on the lost host is unreachable and writes into no archive. It is deleted
//! when that host reports again.

use std::sync::Arc;

use pandastack_backup::Target;
use pandastack_sandboxes::machine::Machine;
use pandastack_store::databases::DatabaseRecord;
use pandastack_types::{Error, Owner, Result, SandboxId};

use super::restore;
use crate::service::ManagedDatabases;
use crate::spec::{machine_request, owner};
use crate::{machines, reset, server};

/// Returns whether the machine of a database is on a host that does not respond, and backups exist
/// to continue from.
pub(crate) async fn can_fail_over(databases: &ManagedDatabases, record: &DatabaseRecord) -> bool {
    let Some(sandbox) = record.sandbox.as_ref().filter(|_| databases.backups.are_made()) else {
        return false;
    };
    let machine = databases.machines.find(None, sandbox).await;
    machine.is_ok_and(|machine| !databases.machines.is_reachable(&machine.host))
}

/// Replaces a database with a restored copy. Runs to its end even if the caller is dropped.
pub(crate) async fn fail_over(
    databases: &Arc<ManagedDatabases>,
    record: DatabaseRecord,
) -> Result<DatabaseRecord> {
    let for_task = Arc::clone(databases);
    databases.background.owned(async move {
        let databases = for_task;
        let _marked = machines::take_mark(&databases, &record.id)?;
        let record = databases.store.database(Some(&record.workspace), &record.id).await?;
        machines::ready(&record)?;
        databases.backups.config()?;
        if !can_fail_over(&databases, &record).await {
            let message = "the database's host is reachable, and its volume has more data than the backups; restore a copy instead, or wait";
            return Err(Error::conflict(message));
        }
        let found = restore::prepare(&databases, &record.id, Target::Latest).await?;
        let (request, of) = (machine_request(&record)?, owner(&record.id));
        let machine = restore::machine(&databases, &record, request, of).await?;
        let made = prepare(&databases, &record, &machine, &found).await;
        if let Err(error) = made {
            databases.machines.delete(machine.record, Some("it did not take over")).await?;
            return Err(error);
        }
        take_over(&databases, record, machine).await
    })
    .await
}

async fn prepare(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    machine: &Machine,
    found: &pandastack_backup::Restore,
) -> Result<()> {
    // Seals the volumes for the next machine: they are not the database's before it takes over, and
    // no other owner can use them.
    databases.volumes.seal(&machine.record, &Owner::NextDatabase(record.id.clone())).await?;
    let room = machines::storage(databases, record).await.map_or(0, |(room, _)| room);
    restore::run(databases, machine, found, room, &record.id, None).await?;
    reset::apply_missed_reset(databases, record, machine.id()).await?;
    server::resume(databases, record, machine.id()).await
}

/// Claims the volumes first, so that the machine in the record always owns its volumes; then the
/// record sends every client to the new machine. If this process stops in between, a second attempt
/// repairs the state.
async fn take_over(
    databases: &Arc<ManagedDatabases>,
    mut record: DatabaseRecord,
    machine: Machine,
) -> Result<DatabaseRecord> {
    let (of, replaced) = (owner(&record.id), Owner::ReplacedDatabase(record.id.clone()));
    for volume in databases.volumes.owned_by(&record.workspace, &of).await? {
        databases.volumes.release(volume, &replaced).await?;
    }
    databases.volumes.claim(&machine.record, &of).await?;
    record.sandbox = Some(machine.id().clone());
    record.spec.reset_pending = false;
    databases.store.update_database(&record).await?;
    databases.backups.changed.notify_one();
    remove_others(databases, &of, machine.id()).await?;
    Ok(record)
}

async fn remove_others(databases: &Arc<ManagedDatabases>, of: &Owner, but: &SandboxId) -> Result<()> {
    for machine in databases.machines.owned_by(of).await? {
        if machine.id != *but {
            databases.machines.delete(machine, Some("another machine took over")).await?;
        }
    }
    Ok(())
}
