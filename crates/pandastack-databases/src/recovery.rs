//! Recovery after a crash of control: completes or undoes unfinished creates and deletes.
//!
//! A database that was being created is removed with its machine: the client got no response. A
//! database that was being deleted is deleted. A ready database keeps the machine that its record
//! names, with that machine's volume; machines that were to replace it, or only to test a restore,
//! are deleted with theirs. All of it is safe to repeat, and a failure for one database does not
//! stop the others.

use std::sync::Arc;

use pandastack_sandboxes::in_flight::OperationKey;
use pandastack_store::databases::{DatabaseRecord, DatabaseState};
use pandastack_types::{Owner, Result, chain};

use crate::service::ManagedDatabases;
use crate::spec::owner;
use crate::{backups, machines, ops, revive};

/// Error of a database whose create was interrupted.
const STOPPED: &str = "the server stopped while creating it; delete it and create another";

/// Finishes interrupted operations. Called once at the start, before new operations.
pub async fn recover(databases: Arc<ManagedDatabases>) {
    for state in [DatabaseState::Creating, DatabaseState::Ready, DatabaseState::Deleting] {
        let records = match databases.store.databases_in(state).await {
            Ok(records) => records,
            Err(error) => {
                tracing::error!(error = %chain(&error), ?state, "cannot recover databases with unfinished operations");
                continue;
            }
        };
        for record in records {
            let id = record.id.clone();
            if let Err(error) = recover_one(&databases, record).await {
                tracing::error!(
                    database = %id, error = %chain(&error),
                    "cannot recover a database; retrying at the next start"
                );
            }
        }
    }
}

async fn recover_one(databases: &Arc<ManagedDatabases>, record: DatabaseRecord) -> Result<()> {
    // Another operation may have started: a marked database is in use.
    let Some(_marked) = databases.background.mark(&OperationKey::Database(record.id.clone())) else {
        return Ok(());
    };
    match record.state {
        DatabaseState::Creating => abandon_create(databases, record).await,
        DatabaseState::Ready => {
            backups::drill::remove_leftovers(databases, &record.id).await?;
            keep_named(databases, &record).await
        }
        DatabaseState::Deleting => ops::remove(databases, &record).await,
        DatabaseState::Failed => Ok(()),
    }
}

async fn abandon_create(databases: &Arc<ManagedDatabases>, record: DatabaseRecord) -> Result<()> {
    machines::remove_machines(databases, &record.id).await?;
    databases.volumes.delete_all(&record.workspace, &owner(&record.id)).await?;
    let mut failed = DatabaseRecord { state: DatabaseState::Failed, ..record };
    failed.spec.failure = Some(STOPPED.to_owned());
    databases.store.update_database(&failed).await?;
    tracing::info!(database = %failed.id, "removing a database whose creation was interrupted");
    Ok(())
}

/// The record has the last word on a failover that was cut off: the volumes of the machine it names
/// are the database's, those of any other go with that one.
async fn keep_named(databases: &Arc<ManagedDatabases>, record: &DatabaseRecord) -> Result<()> {
    // A revival of a lost database starts by removing all of its machines, and keeps the volume.
    let Some(named) = record.sandbox.as_ref().filter(|_| record.state == DatabaseState::Ready) else {
        return Ok(());
    };
    if revive::is_lost(databases, record).await? {
        return Ok(());
    }
    let (of, replaced) = (owner(&record.id), Owner::ReplacedDatabase(record.id.clone()));
    let all = databases.machines.owned_by(&of).await?;
    let (kept, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|machine| machine.id == *named);
    for machine in &kept {
        databases.volumes.claim(machine, &of).await?;
    }
    for machine in others {
        for volume in databases.volumes.owned_by(&record.workspace, &of).await? {
            if machine.spec.volumes.iter().any(|mounted| mounted.id == volume.id) {
                databases.volumes.release(volume, &replaced).await?;
            }
        }
        tracing::warn!(database = %record.id, sandbox = %machine.id, "deleting a machine of an interrupted failover");
        databases.machines.delete(machine, Some("it did not take over")).await?;
    }
    Ok(())
}
