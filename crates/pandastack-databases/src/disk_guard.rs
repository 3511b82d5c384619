//! Monitors the free disk space of databases.
//!
//! A program in the machine watches the volume and makes the server read-only before it is full
//! (the template's `pandastack-postgres-room`), because only there a writer can be stopped in time.
//! This module checks whether it did, and reports it: to clients with each resulting error, and in
//! the database's status.
//!
//! Takes no input: a check queries every server once, and after that only servers that have written
//! since, judging by their log position. A check counts as use, so a database without writes is
//! left to fall asleep; a sleeping one is never woken. Results are kept by this process only; after
//! a restart the next check finds them again.

use std::sync::Arc;
use std::time::Duration;

use pandastack_postgres::Backend;
use pandastack_store::databases::{DatabaseRecord, DatabaseState};
use pandastack_types::limits::VOLUME_MB_MAX;
use pandastack_types::{DatabaseId, Result, SandboxId, chain};
use tokio::time::Instant;

use crate::backups::connection::{Purpose, connect};
use crate::full_disks::DiskCheck;
use crate::service::ManagedDatabases;
use crate::{machines, server};

/// Between two checks of all databases.
const CHECK_EVERY: Duration = Duration::from_secs(15);
/// Time that a client with an error waits to learn that a full database has space again.
const RECHECK_WAIT: Duration = Duration::from_secs(1);
/// Longest time for the program in the machine to notice that a volume has grown, and the interval
/// of checks during it.
const GROWTH_WAIT: Duration = Duration::from_secs(30);
const GROWTH_CHECK: Duration = Duration::from_millis(200);
const MIB: u64 = 1024 * 1024;
/// The disk is full: an error that needs no question.
const DISK_FULL: &str = "53100";

/// Checks all databases until shutdown.
pub async fn run(databases: Arc<ManagedDatabases>) {
    loop {
        if let Err(error) = check_all(&databases).await {
            tracing::warn!(error = %chain(&error), "cannot check the disk space of databases; retrying soon");
        }
        tokio::select! {
            () = databases.background.shutdown.cancelled() => return,
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
}

async fn check_all(databases: &Arc<ManagedDatabases>) -> Result<()> {
    let ready = databases.store.databases_in(DatabaseState::Ready).await?;
    databases.full_disks.retain(|id| ready.iter().any(|record| record.id == *id));
    for record in ready {
        if !databases.full_disks.is_settled(&record.id, databases.backups.written(&record.id)) {
            check(databases, &record).await;
        }
    }
    Ok(())
}

/// Queries the server of a database, if its machine is awake.
async fn check(databases: &Arc<ManagedDatabases>, record: &DatabaseRecord) -> bool {
    let Some(sandbox) = &record.sandbox else { return false };
    let (asked, written) = (Instant::now(), databases.backups.written(&record.id));
    match query(databases, &record.id, sandbox).await {
        Some(full) => {
            databases.full_disks.note(&record.id, DiskCheck { full, asked, written });
            full
        }
        // The machine sleeps, or does not respond: the last result stays.
        None => databases.full_disks.is_full(&record.id),
    }
}

async fn query(databases: &Arc<ManagedDatabases>, id: &DatabaseId, sandbox: &SandboxId) -> Option<bool> {
    let stream = connect(databases, sandbox, Purpose::Log).await.ok()?;
    server::is_full(databases, id, Backend::uncounted(stream)).await.ok()
}

/// Waits until a database's server accepts writes again after its volume has grown. A sleeping
/// database is checked when it is awake.
pub(super) async fn await_writable(databases: &Arc<ManagedDatabases>, record: &DatabaseRecord) {
    let Some(sandbox) = record.sandbox.as_ref().filter(|_| databases.full_disks.is_full(&record.id)) else {
        return;
    };
    let deadline = Instant::now() + GROWTH_WAIT;
    while query(databases, &record.id, sandbox).await == Some(true) && Instant::now() < deadline {
        tokio::time::sleep(GROWTH_CHECK).await;
    }
    databases.full_disks.forget(&record.id);
    check(databases, record).await;
}

/// Explains an error to clients if a full disk may have caused it.
pub(super) async fn explain(
    databases: &Arc<ManagedDatabases>,
    id: &DatabaseId,
    code: &str,
) -> Option<String> {
    let came = Instant::now();
    let record = databases.store.database(None, id).await.ok()?;
    let turn = databases.full_disks.locks.of(id.clone());
    let mine = turn.lock().await;
    let full = match databases.full_disks.recent_check(id, came) {
        Some(full) => full,
        // A machine that is busy with what filled it takes its time.
        None if databases.full_disks.is_full(id) => {
            tokio::time::timeout(RECHECK_WAIT, check(databases, &record)).await.unwrap_or(true)
        }
        None => check(databases, &record).await,
    };
    drop(mine);
    match full || code == DISK_FULL {
        true => Some(advice(databases, &record).await),
        false => None,
    }
}

/// Describes the problem of a database without disk space, and the next step.
pub(super) async fn advice(databases: &ManagedDatabases, record: &DatabaseRecord) -> String {
    let (bytes, _) = machines::storage(databases, record).await.unwrap_or_default();
    full_disk_message(&record.id, bytes / MIB)
}

fn full_disk_message(id: &DatabaseId, room_mb: u64) -> String {
    let more_mb = (room_mb * 2).min(VOLUME_MB_MAX);
    let free = "or delete data in a transaction that begins with BEGIN READ WRITE";
    let sentence = format!("the disk of database {id} ({room_mb} MiB) is full, so it is read-only;");
    match more_mb > room_mb {
        true => {
            format!("{sentence} grow it with `pandastack db update {id} --storage-mb {more_mb}`, {free}")
        }
        false => format!(
            "{sentence} it cannot grow, so delete data in a transaction that begins with BEGIN READ WRITE"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_advice_suggests_an_available_size() {
        let id: DatabaseId = "a1".parse().unwrap();
        assert!(
            full_disk_message(&id, 8192).contains("db update a1 --storage-mb 16384"),
            "{}",
            full_disk_message(&id, 8192)
        );
        let most = full_disk_message(&id, VOLUME_MB_MAX);
        assert!(most.contains("cannot grow") && !most.contains("--storage-mb"), "{most}");
    }
}
