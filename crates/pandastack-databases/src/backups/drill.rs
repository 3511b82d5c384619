//! Restores that only prove that they work: a machine is made from the archive's latest state, its
//! server recovers, every table and index is checked, and it is deleted. The outcome stays with the
//! database.

use std::sync::Arc;
use std::time::Instant;

use pandastack_backup::Target;
use pandastack_sandboxes::in_flight::OperationKey;
use pandastack_store::clock::now;
use pandastack_store::databases::DatabaseRecord;
use pandastack_types::api::{DatabaseDrill, OnTimeout};
use pandastack_types::{DatabaseId, Error, Owner, Result, chain};

use super::restore;
use crate::machines;
use crate::service::ManagedDatabases;
use crate::spec::machine_request;

/// Lifetime of a drill's machine. It ends earlier in all cases but a lost server.
const MACHINE_SECONDS: u64 = 4 * 3600;
/// Reads every table and index, as its administrator. Overrides settings that owners make for
/// sessions, such as read-only mode or timeouts, which do not affect backups.
const CHECK: &str = "pg_amcheck=/opt/postgres/client/16/bin/pg_amcheck; \
     export PGOPTIONS='-c default_transaction_read_only=off -c statement_timeout=0 -c lock_timeout=0'; \
     $pg_amcheck -h /run/postgresql -U pandastack --all --install-missing >&2";

fn owner(id: &DatabaseId) -> Owner {
    Owner::Drill(id.clone())
}

/// Tries a restore and notes the outcome. Fails only if that cannot be noted, or another one is in progress.
pub(super) async fn run(databases: &Arc<ManagedDatabases>, record: &DatabaseRecord) -> Result<DatabaseDrill> {
    let id = record.id.clone();
    let taken = || Error::conflict(format!("a restore test of database `{id}` is already in progress"));
    let _marked = databases.background.mark(&OperationKey::Drill(id.clone())).ok_or_else(taken)?;
    let began = Instant::now();
    let tried = restore_and_check(databases, record).await;
    remove(databases, &id).await?;
    if let Err(error) = &tried {
        tracing::error!(
            database = %id, error = %chain(&error),
            "a database could not be restored from its backups"
        );
    }
    let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let error = tried.err().map(|error| error.to_string());
    let drill = DatabaseDrill { at: now(), ok: error.is_none(), took_ms, error };
    databases.store.note_drill(&id, &drill).await?;
    Ok(drill)
}

async fn restore_and_check(databases: &Arc<ManagedDatabases>, record: &DatabaseRecord) -> Result<()> {
    let found = restore::prepare(databases, &record.id, Target::Latest).await?;
    let mut request = machine_request(record)?;
    (request.persistent, request.idle_timeout_seconds) = (None, None);
    (request.ttl_seconds, request.on_timeout) = (Some(MACHINE_SECONDS), Some(OnTimeout::Kill));
    let machine = restore::machine(databases, record, request, owner(&record.id)).await?;
    databases.volumes.seal(&machine.record, &owner(&record.id)).await?;
    let room = machines::storage(databases, record).await.map_or(0, |(room, _)| room);
    restore::run(databases, &machine, &found, room, &record.id, None).await?;
    restore::run_step(&machine, CHECK, &[]).await
}

async fn remove(databases: &ManagedDatabases, id: &DatabaseId) -> Result<()> {
    machines::remove_owned(databases, &owner(id), "its restore test ended").await
}

/// Removes remains of a database's drills that a stopped server left.
pub(crate) async fn remove_leftovers(databases: &Arc<ManagedDatabases>, id: &DatabaseId) -> Result<()> {
    match databases.background.mark(&OperationKey::Drill(id.clone())) {
        Some(_marked) => remove(databases, id).await,
        None => Ok(()),
    }
}
