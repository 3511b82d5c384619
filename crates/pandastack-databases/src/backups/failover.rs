//! A restored copy takes over: a database whose host is out of reach goes on elsewhere, under its id, address and password, with what its archive has.
//!
//! Must hold: nothing takes over from a machine that can be reached, whose volume has more than the archive. What is left on the lost host is
//! reached by nobody and writes into no archive, and is deleted when that host is heard again.

use std::sync::Arc;

use pandastack_backup::Target;
use pandastack_sandboxes::machine::Machine;
use pandastack_sandboxes::machines::Machines;
use pandastack_sandboxes::volumes::owned;
use pandastack_store::databases::DatabaseRecord;
use pandastack_types::{Error, Owner, Result, SandboxId};

use super::restore;
use crate::service::ManagedDatabases;
use crate::spec::{machine_request, owner};
use crate::{machines, reset, server};

/// Whether the machine of a database is on a host that does not answer, and there are backups to go on with.
pub(crate) async fn is_possible(app: &ManagedDatabases, record: &DatabaseRecord) -> bool {
    let Some(sandbox) = record.sandbox.as_ref().filter(|_| app.backups.are_made()) else { return false };
    let machine = app.sandboxes.store.sandbox(None, sandbox).await;
    machine.is_ok_and(|machine| !app.sandboxes.hosts.reachable(&machine.host))
}

/// Lets a restored copy take over. Runs to its end even if the caller is dropped.
pub(crate) async fn fail_over(app: &Arc<ManagedDatabases>, record: DatabaseRecord) -> Result<DatabaseRecord> {
    let for_task = Arc::clone(app);
    app.sandboxes.owned(async move {
        let app = for_task;
        let _marked = machines::take_mark(&app, &record.id)?;
        let record = app.store.database(Some(&record.workspace), &record.id).await?;
        machines::ready(&record)?;
        app.backups.config()?;
        if !is_possible(&app, &record).await {
            let message = "the database's host is reachable, and its volume has more data than the backups; restore a copy instead, or wait";
            return Err(Error::conflict(message));
        }
        let found = restore::prepare(&app, &record.id, Target::Latest).await?;
        let (request, of) = (machine_request(&record)?, owner(&record.id));
        let machine = restore::machine(&app, &record, request, of).await?;
        let made = make(&app, &record, &machine, &found).await;
        if let Err(error) = made {
            app.sandboxes.delete(machine.record, "it did not take over").await?;
            return Err(error);
        }
        take_over(&app, record, machine).await
    })
    .await
}

async fn make(
    app: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    machine: &Machine,
    found: &pandastack_backup::Restore,
) -> Result<()> {
    // Not the database's before it takes over, and nobody else's.
    owned::seal(&app.sandboxes, &machine.record, &Owner::NextDatabase(record.id.clone())).await?;
    let room = machines::storage(app, record).await.map_or(0, |(room, _)| room);
    restore::run(app, machine, found, room, &record.id).await?;
    reset::catch_up(app, record, machine.id()).await?;
    server::resume(app, record, machine.id()).await
}

/// Volumes first, so that a machine which the record names has its own; with the record everybody is led to the new one. A server that stops
/// before that has changed nothing that a second try does not mend.
async fn take_over(
    app: &Arc<ManagedDatabases>,
    mut record: DatabaseRecord,
    machine: Machine,
) -> Result<DatabaseRecord> {
    let (of, replaced) = (owner(&record.id), Owner::ReplacedDatabase(record.id.clone()));
    for volume in owned::of(&app.sandboxes, &record.workspace, &of).await? {
        owned::release(&app.sandboxes, volume, &replaced).await?;
    }
    owned::claim(&app.sandboxes, &machine.record, &of).await?;
    record.sandbox = Some(machine.id().clone());
    record.spec.reset_pending = false;
    app.store.update_database(&record).await?;
    app.backups.changed.notify_one();
    remove_others(app, &of, machine.id()).await?;
    Ok(record)
}

async fn remove_others(app: &Arc<ManagedDatabases>, of: &Owner, but: &SandboxId) -> Result<()> {
    for machine in app.sandboxes.owned_by(of).await? {
        if machine.id != *but {
            app.sandboxes.delete(machine, "another machine took over").await?;
        }
    }
    Ok(())
}
