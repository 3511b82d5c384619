//! Replaces the machine of a database, if it was lost or has the wrong size, and keeps the volume.
//! If only the server is down, it is started again in its machine.
//!
//! ```text
//!   machine lost -> its row is removed, which frees the volume -> the template's disk boots with that volume
//!     -> the server replays its log -> `SELECT 1` as its administrator -> the record names the new machine
//!   port closed, seen by a client or the archiver -> the server starts and replays its log -> `SELECT 1`
//! ```
//!
//! All acknowledged data is on the volume. Takes no input: a check handles every lost machine, and
//! every reset of a password that was cut off, so a missed or repeated wake-up does no harm, and a
//! server that stops half way begins again with the first step. A volume is on one host: while that
//! does not respond, the machine is not known to be gone and nothing is done.

use std::sync::Arc;
use std::time::Duration;

use pandastack_sandboxes::in_flight::{InFlightMark, OperationKey};
use pandastack_sandboxes::lost;
use pandastack_sandboxes::machine::Machine;
use pandastack_sandboxes::machines::{MachineSpec, WaitPolicy};
use pandastack_store::StoreError;
use pandastack_store::databases::{DatabaseRecord, DatabaseState};
use pandastack_types::api::AttachVolume;
use pandastack_types::{DatabaseId, Error, Result, SandboxId, SandboxState, chain};
use tokio::time::Instant;

use crate::service::ManagedDatabases;
use crate::spec::{DATA_PATH, machine_request, owner};
use crate::{machines, replay, reset, server};

/// Longest pause between two checks, for changes without an event.
const CHECK_EVERY: Duration = Duration::from_secs(15);
/// Pause after an attempt that failed, however many clients wait.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Longest time that a connecting client is held during a replacement.
const HOLD: Duration = Duration::from_secs(90);
/// Interval between checks while a client is held.
const HOLD_CHECK: Duration = Duration::from_secs(1);

/// Replaces lost machines until shutdown.
pub async fn run(databases: Arc<ManagedDatabases>) {
    let mut events = databases.machines.events();
    loop {
        if let Err(error) = check_all(&databases).await {
            tracing::warn!(error = %chain(&error), "cannot check lost databases; retrying soon");
        }
        tokio::select! {
            () = databases.background.shutdown.cancelled() => return,
            () = databases.revivals.wanted.notified() => {}
            () = lost(&mut events) => {}
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
}

async fn check_all(databases: &Arc<ManagedDatabases>) -> Result<()> {
    for record in databases.store.databases_in(DatabaseState::Ready).await? {
        if !awaits_reset(databases, &record).await? && !is_lost(databases, &record).await? {
            continue;
        }
        let Some(marked) = databases.background.mark(&OperationKey::Database(record.id.clone())) else {
            continue;
        };
        let for_task = Arc::clone(databases);
        databases.background.tasks.spawn(async move {
            let databases = for_task;
            if let Err(error) = revive(&databases, &record).await {
                tracing::error!(
                    database = %record.id, error = %chain(&error),
                    "cannot recover a database yet"
                );
                tokio::time::sleep(RETRY_AFTER).await;
            }
            drop(marked);
            databases.revivals.done.notify_waiters();
        });
    }
    Ok(())
}

/// Returns whether a server has a reset to apply, and can. A database on a silent host is left to
/// the failover.
async fn awaits_reset(databases: &ManagedDatabases, record: &DatabaseRecord) -> Result<bool> {
    let (true, Some(sandbox)) = (record.spec.reset_pending, &record.sandbox) else { return Ok(false) };
    match databases.machines.find(None, sandbox).await {
        Ok(machine) => Ok(databases.machines.is_reachable(&machine.host)),
        Err(StoreError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether the machine of a ready database is gone.
pub(super) async fn is_lost(databases: &ManagedDatabases, record: &DatabaseRecord) -> Result<bool> {
    let (DatabaseState::Ready, Some(sandbox)) = (record.state, &record.sandbox) else { return Ok(false) };
    match databases.machines.find(None, sandbox).await {
        Ok(machine) => Ok(machine.state == SandboxState::Failed),
        Err(StoreError::NotFound { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

async fn revive(databases: &Arc<ManagedDatabases>, record: &DatabaseRecord) -> Result<()> {
    // Read again now that nothing else changes it.
    let record = databases.store.database(Some(&record.workspace), &record.id).await?;
    let id = record.id.clone();
    if is_lost(databases, &record).await? {
        let sandbox = replace(databases, record).await?;
        tracing::warn!(database = %id, %sandbox, "recovered a lost database");
    } else if record.spec.reset_pending && record.state == DatabaseState::Ready {
        reset::finish(databases, record).await?;
        tracing::warn!(database = %id, "completed an interrupted password reset");
    }
    Ok(())
}

/// Moves a database and its volume to another machine of the recorded size. Connecting clients are
/// held during the move.
pub(super) async fn replace(
    databases: &Arc<ManagedDatabases>,
    mut record: DatabaseRecord,
) -> Result<SandboxId> {
    let volumes = databases.volumes.owned_by(&record.workspace, &owner(&record.id)).await?;
    let volume = volumes.first().ok_or_else(|| {
        Error::conflict(
            "the database's data was on the disk of its machine, which is lost; delete the database",
        )
    })?;
    machines::remove_machines(databases, &record.id).await?;
    let mut request = machine_request(&record)?;
    let path = Some(DATA_PATH.to_owned());
    request.volumes = Some(vec![AttachVolume { name: volume.name.clone(), path, read_only: None }]);
    let spec = MachineSpec { workspace: record.workspace.clone(), request };
    let machine = databases.machines.create(owner(&record.id), spec, WaitPolicy::Long).await?;
    start(databases, &record, &machine).await?;
    record.sandbox = Some(machine.id().clone());
    record.spec.reset_pending = false;
    databases.store.update_database(&record).await?;
    databases.backups.changed.notify_one();
    Ok(machine.id().clone())
}

/// Starts the server of a machine that was booted, and waits for it to answer.
async fn start(databases: &Arc<ManagedDatabases>, record: &DatabaseRecord, machine: &Machine) -> Result<()> {
    replay::start(databases, record, machine).await?;
    server::resume(databases, record, machine.id()).await
}

/// Starts the server of a machine that runs without it, and returns when it takes queries. Concurrent
/// callers wait for the first one's attempt. `closed` is the machine whose port was found closed; if the
/// database has another one by now, that is the answer.
pub(super) async fn restart(
    databases: &Arc<ManagedDatabases>,
    id: &DatabaseId,
    closed: &SandboxId,
) -> Result<SandboxId> {
    let deadline = Instant::now() + HOLD;
    loop {
        let done = databases.revivals.done.notified();
        tokio::pin!(done);
        done.as_mut().enable();
        if let Some(marked) = databases.background.mark(&OperationKey::Database(id.clone())) {
            let (for_task, id, closed) = (Arc::clone(databases), id.clone(), closed.clone());
            let restarting = async move { restart_marked(&for_task, &id, &closed, marked).await };
            return databases.background.owned(restarting).await;
        }
        // Another operation is starting the server, or may start it at its end.
        let waited = tokio::time::timeout(HOLD_CHECK, done).await;
        let record = databases.store.database(None, id).await?;
        let sandbox = machines::ready(&record)?;
        if waited.is_ok() || sandbox != closed {
            return Ok(sandbox.clone());
        }
        if Instant::now() >= deadline {
            let message = format!("the server of database `{id}` is down and could not be started yet");
            return Err(Error::conflict(message));
        }
    }
}

async fn restart_marked(
    databases: &Arc<ManagedDatabases>,
    id: &DatabaseId,
    closed: &SandboxId,
    marked: InFlightMark,
) -> Result<SandboxId> {
    let record = databases.store.database(None, id).await?;
    let sandbox = machines::ready(&record)?.clone();
    if sandbox != *closed {
        return Ok(sandbox);
    }
    let machine = machines::machine(databases, &record).await?;
    let started = start(databases, &record, &machine).await;
    match &started {
        Ok(()) => tracing::warn!(database = %id, %sandbox, "started a database server that was down"),
        Err(error) => {
            tracing::error!(database = %id, error = %chain(&error), "a database server does not start");
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }
    drop(marked);
    databases.revivals.done.notify_waiters();
    started.map(|()| sandbox)
}

/// Holds a client of a database whose machine was lost until it has another one, and returns that.
pub(super) async fn await_machine(databases: &ManagedDatabases, id: &DatabaseId) -> Result<SandboxId> {
    let deadline = Instant::now() + HOLD;
    loop {
        let done = databases.revivals.done.notified();
        tokio::pin!(done);
        done.as_mut().enable();
        let record = databases.store.database(None, id).await?;
        if !is_lost(databases, &record).await? {
            return machines::ready(&record).cloned();
        }
        databases.revivals.wanted.notify_one();
        // Another replica may be the one that replaces the machine, and does not notify this
        // process.
        let _ = tokio::time::timeout(HOLD_CHECK, done).await;
        if Instant::now() >= deadline {
            let message = format!("the machine of database `{id}` was lost; its replacement is not ready");
            return Err(Error::conflict(message));
        }
    }
}
