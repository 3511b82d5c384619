//! Restores a database server from the archive.
//!
//! ```text
//!   machine like a new database's -> its server stopped, its data gone -> base unpacked, recovery set up
//!     -> the server recovers with the log that it is fed, and promotes itself -> its own passwords
//! ```
//!
//! Must hold: a request for an instant that cannot be restored fails before anything is created; a
//! restore that fails later leaves a record with the reason, and no machine.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use jiff::Timestamp;
use pandastack_backup::{Recovery, Restore, RestoreError, Status, Target, limits::SEGMENT_BYTES};
use pandastack_sandboxes::machine::Machine;
use pandastack_sandboxes::machines::{MachineSpec, WaitPolicy};
use pandastack_store::databases::{DatabaseRecord, DatabaseState};
use pandastack_types::api::{CloneDatabase, CreateSandbox, RestorePoint};
use pandastack_types::limits::VOLUME_MB_MAX;
use pandastack_types::{DatabaseId, Error, ErrorCode, Owner, Result, chain};

use super::archives::failed;
use super::feed::{Feed, write};
use crate::replay::{self, Replay};
use crate::server::{self, Origin};
use crate::service::ManagedDatabases;
use crate::spec::{DATA_PATH, machine_request, new_copy, owner};
use crate::{machines, ops, shell, view};

/// Longest time for the archive to receive data written before the restore was requested.
const REACH_WAIT: Duration = Duration::from_secs(20);
/// Longest duration of one step in the machine: unpacking, laying out, starting.
const STEP_SECONDS: u64 = 30 * 60;
const STEP_WAIT: Duration = Duration::from_secs(STEP_SECONDS);
/// Between two probes whether a server has recovered.
const RECOVERY_CHECK: Duration = Duration::from_millis(250);
/// Free space needed besides the data: log files, and the server's writes during recovery.
const SLACK_BYTES: u64 = 1024 * 1024 * 1024;
const MIB: u64 = 1024 * 1024;

/// Among the files that a server recovers with.
const SETTINGS: &str = "/var/lib/postgresql/restore/settings";
/// Stops the template's server and deletes its data.
const CLEAR: &str = "pg_ctl=/opt/postgres/16/bin/pg_ctl; data=/var/lib/postgresql/data; \
     runuser -u postgres -- $pg_ctl --pgdata=$data --silent -w -m immediate stop && rm -rf $data && \
     install -d -o postgres -g postgres -m 0700 $data /var/lib/postgresql/restore";
/// Configures recovery. The signal file is written last, when all else is complete.
const CONFIGURE: &str = "data=/var/lib/postgresql/data; cat /var/lib/postgresql/restore/settings >> $data/$SETTINGS_FILE && \
     touch $data/$SIGNAL_FILE && chown -R postgres:postgres /var/lib/postgresql && chmod 0700 $data";
/// A log file may still be in transfer.
const CLEAN_UP: &str =
    "cd /var/lib/postgresql && for i in 1 2 3 4 5; do rm -rf restore && exit 0; sleep 0.2; done; exit 1";

/// Starts to restore a database at an instant as a copy. The restore is in progress when this
/// returns; the copy's record has the outcome.
pub(crate) async fn begin_restore(
    databases: &Arc<ManagedDatabases>,
    original: DatabaseRecord,
    request: CloneDatabase,
    point: RestorePoint,
) -> Result<DatabaseRecord> {
    let (target, until) = match point {
        RestorePoint::Latest => (Target::Latest, Timestamp::now()),
        RestorePoint::At(at) => (Target::At(at), at),
    };
    let there = await_archived(databases, &original, until).await;
    let restore = prepare(databases, &original.id, target).await.map_err(|error| match there {
        Err(why) if error.code == ErrorCode::BadRequest => {
            Error { message: format!("{}; the database cannot be woken: {why}", error.message), ..error }
        }
        _ => error,
    })?;
    let mut record = new_copy(&original, request.name, request.label);
    record.spec.step = Some("starting a machine".to_owned());
    let marked = machines::take_mark(databases, &record.id)?;
    databases.store.insert_database(&record).await?;
    let (for_task, of_task) = (Arc::clone(databases), record.clone());
    databases.background.tasks.spawn(async move {
        let (databases, record) = (for_task, of_task);
        if let Err(error) = build(&databases, record.clone(), &original, &restore).await {
            tracing::warn!(database = %record.id, error = %chain(&error), "a restore failed");
            // The store has the step that it reached.
            let record = databases.store.database(None, &record.id).await.unwrap_or(record);
            mark_failed(&databases, record, &error).await;
        }
        drop(marked);
    });
    Ok(record)
}

/// Waits until the archive has everything committed before a time. A sleeping database is woken if
/// the archive may be incomplete: it may have fallen asleep before its last commits were archived.
/// Fails if the database cannot be woken.
async fn await_archived(
    databases: &Arc<ManagedDatabases>,
    original: &DatabaseRecord,
    until: Timestamp,
) -> Result<()> {
    let Some(mut kept) = databases.backups.kept(&original.id) else { return Ok(()) };
    let reached = |status: &Status| status.complete_until.is_some_and(|complete| complete >= until);
    if until > Timestamp::now() || reached(&kept.log.borrow()) {
        return Ok(());
    }
    // The archive of a database whose host is lost is all there is.
    let woken = match view::is_asleep(databases, original).await {
        true => ops::set_awake(databases, original, true).await,
        false => Ok(()),
    };
    if woken.is_ok() {
        let _ = tokio::time::timeout(REACH_WAIT, kept.log.wait_for(reached)).await;
    }
    woken
}

/// Finds the files that lead to a target, or the reason why there are none.
pub(super) async fn prepare(
    databases: &ManagedDatabases,
    id: &DatabaseId,
    target: Target,
) -> Result<Restore> {
    let archive = databases.backups.archive(&databases.link, id)?;
    let plan = databases.backups.catalog(&archive, id).await?.plan_restore(target);
    let plan = plan.map_err(|error| Error::bad_request(error.to_string()))?;
    Restore::prepare(&archive, plan).await.map_err(failed)
}

async fn build(
    databases: &Arc<ManagedDatabases>,
    mut record: DatabaseRecord,
    original: &DatabaseRecord,
    restore: &Restore,
) -> Result<()> {
    let room = machines::storage(databases, original).await.map_or(0, |(room, _)| room);
    let request = machine_request(&record)?;
    let machine = machine(databases, &record, request, owner(&record.id)).await?;
    databases.volumes.claim(&machine.record, &owner(&record.id)).await?;
    run(databases, &machine, restore, room, &original.id, Some(&mut record)).await?;
    note_step(databases, Some(&mut record), "setting passwords").await?;
    server::set_up(databases, &record, machine.id(), Origin::Copy(&original.id)).await?;
    let sandbox = Some(machine.id().clone());
    record.spec.step = None;
    databases
        .store
        .update_database(&DatabaseRecord { state: DatabaseState::Ready, sandbox, ..record })
        .await?;
    databases.backups.changed.notify_one();
    Ok(())
}

/// Records the current step of a database that is being created; no effect for an existing one.
async fn note_step(
    databases: &ManagedDatabases,
    record: Option<&mut DatabaseRecord>,
    step: &str,
) -> Result<()> {
    let Some(record) = record else { return Ok(()) };
    record.spec.step = Some(step.to_owned());
    Ok(databases.store.update_database(record).await?)
}

/// Marks a restore as failed. The record holds the error, because no client waits for a response.
async fn mark_failed(databases: &Arc<ManagedDatabases>, mut record: DatabaseRecord, error: &Error) {
    record.state = DatabaseState::Failed;
    let during = record.spec.step.take().map_or_else(String::new, |step| format!(" while {step}"));
    record.spec.failure = Some(format!("the restore failed{during}: {error}"));
    let gone = async {
        machines::remove_machines(databases, &record.id).await?;
        databases.volumes.delete_all(&record.workspace, &owner(&record.id)).await?;
        Ok::<_, Error>(databases.store.update_database(&record).await?)
    };
    if let Err(left) = gone.await {
        tracing::warn!(database = %record.id, %left, "cannot clean up a failed restore; the next start does");
    }
}

/// A machine whose server will be replaced.
pub(super) async fn machine(
    databases: &Arc<ManagedDatabases>,
    like: &DatabaseRecord,
    request: CreateSandbox,
    owner: Owner,
) -> Result<Machine> {
    let spec = MachineSpec { workspace: like.workspace.clone(), request };
    databases.machines.create(owner, spec, WaitPolicy::Long).await
}

/// Restores the data of a machine's server up to the point where recovery continues by itself. `room` is
/// the size of the original's volume, 0 if it is unknown; its administrator is the original's. The steps
/// are shown in the record of a `new` database.
pub(super) async fn run(
    databases: &Arc<ManagedDatabases>,
    machine: &Machine,
    restore: &Restore,
    room: u64,
    original: &DatabaseId,
    mut new: Option<&mut DatabaseRecord>,
) -> Result<()> {
    let log = restore.files().len() as u64 * SEGMENT_BYTES;
    grow(databases, machine, volume_bytes(restore.base().tar_bytes, log, room)).await?;
    let megabytes = restore.base().tar_bytes.div_ceil(MIB);
    let step = format!("unpacking base backup {} ({megabytes} MiB)", restore.base().label);
    note_step(databases, new.as_deref_mut(), &step).await?;
    run_step(machine, CLEAR, &[]).await?;
    unpack(machine, restore).await?;
    let step = format!("replaying WAL ({} files)", restore.files().len());
    note_step(databases, new, &step).await?;
    let feed = Feed::begin(machine, restore).await?;
    let Recovery { signal_file, settings_file, settings } =
        restore.recovery(&Feed::command()).map_err(failed)?;
    write(machine, SETTINGS, Body::from(settings)).await?;
    run_step(machine, CONFIGURE, &[("SIGNAL_FILE", signal_file), ("SETTINGS_FILE", settings_file)]).await?;
    tokio::select! {
        recovered = recover(databases, machine, original) => recovered?,
        error = feed.run() => return Err(error),
    }
    run_step(machine, CLEAN_UP, &[]).await
}

/// Bytes of volume that a restore needs: for a base, what its log can add to it, and some for the
/// work. Data that was in a volume of the original's size fits into one, however much log led
/// there.
fn volume_bytes(tar: u64, log: u64, original: u64) -> u64 {
    let all = tar + log + SLACK_BYTES;
    let at_once = if original == 0 { all } else { original.max(tar) + SLACK_BYTES };
    all.min(at_once).max(original).min(VOLUME_MB_MAX * MIB)
}

/// Replaces a machine's initial data with the base.
async fn unpack(machine: &Machine, restore: &Restore) -> Result<()> {
    // An archive error ends the request body and so the call; it is kept here, because the call's
    // own error would be less precise.
    let trouble = Arc::new(Mutex::new(None));
    let (noted, source) = (Arc::clone(&trouble), restore.clone());
    let tar = tar_body(source, noted);
    let put = machine.unpack(&format!("{DATA_PATH}/data"), tar, STEP_WAIT).await;
    if let Some(error) = trouble.lock().ok().and_then(|mut trouble| trouble.take()) {
        return Err(failed(error));
    }
    put
}

/// The tar as a request body. Archive errors are stored in `noted`.
fn tar_body(restore: Restore, noted: Arc<Mutex<Option<RestoreError>>>) -> Body {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<bytes::Bytes, std::io::Error>>(1);
    tokio::spawn(async move {
        let tar = restore.tar();
        let mut tar = std::pin::pin!(tar);
        while let Some(part) = futures::StreamExt::next(&mut tar).await {
            let part = part.map_err(|error| {
                let other = std::io::Error::other(pandastack_types::chain(&error));
                if let Ok(mut noted) = noted.lock() {
                    *noted = Some(error);
                }
                other
            });
            let last = part.is_err();
            if sender.send(part).await.is_err() || last {
                return;
            }
        }
    });
    let parts = futures::stream::unfold(receiver, |mut receiver| async {
        let part = receiver.recv().await?;
        Some((part, receiver))
    });
    Body::from_stream(parts)
}

/// Starts the server of a machine and waits until it has recovered and continues by itself. Its
/// administrator is the original's.
async fn recover(databases: &Arc<ManagedDatabases>, machine: &Machine, original: &DatabaseId) -> Result<()> {
    run_step(machine, replay::START, &[]).await?;
    // The feed detects a stuck recovery and aborts it.
    while replay::probe(databases, original, machine.id()).await? != Replay::Over {
        tokio::time::sleep(RECOVERY_CHECK).await;
    }
    Ok(())
}

async fn grow(databases: &Arc<ManagedDatabases>, machine: &Machine, bytes: u64) -> Result<()> {
    match databases.volumes.of_machine(&machine.record).await?.into_iter().next() {
        Some(volume) if volume.spec.size_bytes < bytes => {
            databases.volumes.grow(volume, bytes.div_ceil(MIB)).await.map(drop)
        }
        _ => Ok(()),
    }
}

/// Runs one step in a machine; fails unless it succeeds.
pub(super) async fn run_step(machine: &Machine, command: &str, env: &[(&str, &str)]) -> Result<()> {
    let done = shell::run(machine, command, env, STEP_SECONDS).await?;
    match done.exit_code {
        0 => Ok(()),
        code => Err(Error::internal(format!("a restore step exited with {code}: {}", done.stderr.trim()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restore_volume_size_is_bounded_by_the_original() {
        const GIB: u64 = 1024 * MIB;
        for (tar, log, original, expect) in [
            (1, 1, 8, 8),
            (6, 4, 8, 9),
            (2, 500, 8, 9),
            (60, 500, 64, 64),
            (30, 500, 64, 64),
            // The size to which it grew is unknown.
            (2, 4, 0, 7),
            (2, 500, 0, 64),
        ] {
            assert_eq!(
                volume_bytes(tar * GIB, log * GIB, original * GIB),
                expect * GIB,
                "{tar} {log} {original}"
            );
        }
    }
}
