//! Keepers: one for every database that is ready. A keeper follows the log, and takes care of base
//! backups and retention.
//!
//! Takes no input: reconciling makes the keepers fit the databases, so a missed or repeated wake-up
//! does no harm. Keepers end with the task that has them, which is the leader's.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use pandastack_backup::{
    Archive, Archiver, BaseBackup, BaseError, Catalog, ConnectError, Login, Status, take_base,
};
use pandastack_sandboxes::EventNotice;
use pandastack_sandboxes::in_flight::OperationKey;
use pandastack_store::clock::now;
use pandastack_store::databases::{DatabaseRecord, DatabaseState};
use pandastack_types::{DatabaseId, Error, ErrorCode, Result, SandboxId, chain};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::archives::{BASE_EVERY, BackupStatus, DRILL_EVERY, DRILL_RETRY_AFTER, login, unavailable};
use super::connection::{Purpose, connect};
use super::drill;
use crate::reset;
use crate::service::ManagedDatabases;

/// Longest pause between two reconciliations, for changes without an event.
const CHECK_EVERY: Duration = Duration::from_secs(30);
/// Time for which a new database is left alone: its machine has one processor, and its user
/// connects now.
const QUIET_AFTER_CREATE: Duration = Duration::from_secs(3);
/// Delay before the log of a woken machine is followed, for the same reason. With the login and the
/// archiver's own wait, data written before that is archived within the promised 5 s.
const QUIET_AFTER_WAKE: Duration = Duration::from_millis(1500);
/// Longest interval between reads of a keeper's archive.
const CHECK_ARCHIVE_EVERY: Duration = Duration::from_secs(60 * 60);
/// First pause after a base backup or an archive failed. It doubles up to the longest.
const RETRY_AFTER: Duration = Duration::from_secs(5);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(10 * 60);

/// Backs databases up until shutdown.
pub async fn run(databases: Arc<ManagedDatabases>) {
    if !databases.backups.are_made() {
        return;
    }
    let mut keepers = BackupTasks { databases: Arc::clone(&databases), all: HashMap::new() };
    let mut events = databases.machines.events();
    loop {
        let pause = keepers.reconcile().await.unwrap_or_else(|error| {
            tracing::warn!(error = %chain(&error), "cannot list databases without backups; retrying soon");
            CHECK_EVERY
        });
        tokio::select! {
            () = databases.background.shutdown.cancelled() => return,
            () = databases.backups.changed.notified() => {}
            () = keepers.wake_archivers(&mut events) => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

struct BackupTasks {
    databases: Arc<ManagedDatabases>,
    all: HashMap<DatabaseId, BackupTask>,
}

/// Ends when dropped.
struct BackupTask {
    sandbox: SandboxId,
    archiver: Archiver,
    base_backups: AbortOnDropHandle<()>,
}

impl BackupTasks {
    /// Makes the keepers those of the databases that are ready now; returns when to reconcile again.
    async fn reconcile(&mut self) -> Result<Duration> {
        let ready = self.databases.store.databases_in(DatabaseState::Ready).await?;
        let machine_of = |record: &DatabaseRecord| Some((record.id.clone(), record.sandbox.clone()?));
        let machines: HashMap<DatabaseId, SandboxId> = ready.iter().filter_map(machine_of).collect();
        self.end(|id, keeper| machines.get(id) != Some(&keeper.sandbox)).await;
        let mut pause = CHECK_EVERY;
        for record in ready {
            let Some(sandbox) = record.sandbox.clone().filter(|_| !self.all.contains_key(&record.id)) else {
                continue;
            };
            match remaining_quiet_time(&record, now()) {
                Duration::ZERO => self.begin(record, sandbox)?,
                wait => pause = pause.min(wait),
            }
        }
        Ok(pause)
    }

    /// Ends keepers, and notifies waiters once they no longer write into an archive.
    async fn end(&mut self, is_over: impl Fn(&DatabaseId, &BackupTask) -> bool) {
        let over: Vec<DatabaseId> =
            self.all.iter().filter(|(id, keeper)| is_over(id, keeper)).map(|(id, _)| id.clone()).collect();
        for id in over {
            if let Some(BackupTask { archiver, base_backups, .. }) = self.all.remove(&id) {
                base_backups.abort();
                // Only its end matters.
                let _ = base_backups.await;
                archiver.stop().await;
            }
            self.shared(|kept| kept.remove(&id));
        }
        self.databases.backups.ended.notify_waiters();
    }

    fn begin(&mut self, record: DatabaseRecord, sandbox: SandboxId) -> Result<()> {
        let (databases, id) = (&self.databases, record.id.clone());
        let archive = databases.backups.archive(&databases.link, &id)?;
        let login = login(&databases.link, &id)?;
        let target = { (Arc::clone(databases), sandbox.clone()) };
        let connect = move || {
            let (databases, sandbox) = target.clone();
            async move {
                tokio::time::sleep(QUIET_AFTER_WAKE).await;
                connect(&databases, &sandbox, Purpose::Log).await
            }
        };
        let archiver =
            Archiver::start(login.clone(), archive.clone(), connect, databases.background.shutdown.clone());
        let (failing, base_error) = watch::channel(None);
        let log = archiver.status();
        let (databases, backed_up) = (Arc::clone(databases), sandbox.clone());
        let base_backups = BaseBackupTask {
            databases: Arc::clone(&databases),
            record,
            sandbox: backed_up,
            archive,
            login,
            log: log.clone(),
            failing,
        };
        let base_backups = AbortOnDropHandle::new(tokio::spawn(base_backups.run()));
        self.shared(|kept| kept.insert(id.clone(), BackupStatus { log, base_error }));
        self.all.insert(id, BackupTask { sandbox, archiver, base_backups });
        Ok(())
    }

    /// Ends the pauses of archivers whose machine woke or moved. Returns only when events were missed.
    async fn wake_archivers(&self, events: &mut tokio::sync::broadcast::Receiver<EventNotice>) {
        loop {
            match events.recv().await {
                Ok(EventNotice::Event { event, .. }) => {
                    let of = |keeper: &&BackupTask| keeper.sandbox == event.sandbox_id;
                    self.all.values().filter(of).for_each(|keeper| keeper.archiver.wake());
                }
                Ok(EventNotice::Missed) | Err(RecvError::Lagged(_)) => return,
                // The server ends.
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }

    fn shared<T>(&self, change: impl FnOnce(&mut HashMap<DatabaseId, BackupStatus>) -> T) -> T {
        change(&mut self.databases.backups.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for BackupTasks {
    fn drop(&mut self) {
        self.shared(HashMap::clear);
    }
}

/// Takes the base backups of one database.
struct BaseBackupTask {
    databases: Arc<ManagedDatabases>,
    record: DatabaseRecord,
    sandbox: SandboxId,
    archive: Archive,
    login: Login,
    log: watch::Receiver<Status>,
    failing: watch::Sender<Option<String>>,
}

impl BaseBackupTask {
    async fn run(self) {
        let mut again = RETRY_AFTER;
        loop {
            let pause = match self.run_once().await {
                Ok(pause) => {
                    self.failing.send_replace(None);
                    again = RETRY_AFTER;
                    pause
                }
                Err(error) => {
                    tracing::warn!(
                        database = %self.record.id, error = %chain(&error),
                        "cannot back up a database; retrying"
                    );
                    self.failing.send_replace(Some(error.to_string()));
                    again = (again * 2).min(RETRY_AFTER_MAX);
                    again
                }
            };
            let mut log = self.log.clone();
            let gap = log.borrow().gap;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // Log that is lost makes a base backup due.
                Ok(_) = log.wait_for(|status| status.gap != gap) => {}
                // The archive is available again: without this, its status would report a failure
                // for minutes.
                () = archive_recovered(self.log.clone()), if self.failing.borrow().is_some() => {}
            }
        }
    }

    /// Takes a base backup if one is due, deletes expired objects, runs a restore drill if one is
    /// due, and returns the time until the next check.
    async fn run_once(&self) -> Result<Duration> {
        let mut catalog = Catalog::read(&self.archive).await.map_err(unavailable)?;
        if wait_for_base(&catalog, &self.log.borrow(), Timestamp::now()).is_zero() {
            self.awake().await;
            take(&self.databases, &self.record.id, &self.sandbox, &self.archive, &self.login).await?;
            catalog = Catalog::read(&self.archive).await.map_err(unavailable)?;
        }
        self.delete_expired(&catalog).await?;
        self.drill().await?;
        Ok(wait_for_base(&catalog, &self.log.borrow(), Timestamp::now())
            .clamp(RETRY_AFTER, CHECK_ARCHIVE_EVERY))
    }

    /// Waits until the machine is awake: its log is followed again then.
    async fn awake(&self) {
        // The stream ends with the archiver, and this task with it.
        let _ = self.log.clone().wait_for(|status| status.connected).await;
    }

    async fn delete_expired(&self, catalog: &Catalog) -> Result<()> {
        let days = self.databases.backups.config()?.retention_days;
        let now = Timestamp::now();
        let keep_from = now.checked_sub(Duration::from_secs(u64::from(days) * 24 * 60 * 60));
        for entry in catalog.expired(keep_from.unwrap_or(Timestamp::MIN), now) {
            self.archive.remove(&entry).await.map_err(unavailable)?;
        }
        Ok(())
    }

    async fn drill(&self) -> Result<()> {
        let record = self.databases.store.database(None, &self.record.id).await?;
        let (last, wait) = match &record.drill {
            None => (record.created_at, DRILL_EVERY),
            Some(drill) => (drill.at, if drill.ok { DRILL_EVERY } else { DRILL_RETRY_AFTER }),
        };
        if now().duration_since(last).unsigned_abs() >= wait {
            self.awake().await;
            drill::run(&self.databases, &record).await?;
        }
        Ok(())
    }
}

/// Waits until log gets into the archive again after it did not.
async fn archive_recovered(mut log: watch::Receiver<Status>) {
    let failed = log.wait_for(|status| status.failing_since.is_some()).await.is_ok();
    let archive_recovered = failed && log.wait_for(|status| status.failing_since.is_none()).await.is_ok();
    if !archive_recovered {
        // The archiver has ended, and so will the caller.
        std::future::pending().await
    }
}

/// Time for which a database is still left alone.
fn remaining_quiet_time(record: &DatabaseRecord, now: Timestamp) -> Duration {
    // If the clock was set back, do not wait longer than usual.
    let age = Duration::try_from(now.duration_since(record.created_at)).unwrap_or(QUIET_AFTER_CREATE);
    QUIET_AFTER_CREATE.saturating_sub(age)
}

/// Time until a base backup is due.
fn wait_for_base(catalog: &Catalog, log: &Status, now: Timestamp) -> Duration {
    let window = catalog.window();
    let Some(newest) = window.bases.last() else { return Duration::ZERO };
    let lost_since = log.gap.is_some_and(|gap| (gap.timeline, gap.to) > (newest.timeline, newest.start));
    let age = Duration::try_from(now.duration_since(newest.stopped_at)).unwrap_or_default();
    if lost_since { Duration::ZERO } else { BASE_EVERY.saturating_sub(age) }
}

/// Takes a base backup of a machine that is awake.
pub(super) async fn take(
    databases: &Arc<ManagedDatabases>,
    id: &DatabaseId,
    sandbox: &SandboxId,
    archive: &Archive,
    login: &Login,
) -> Result<BaseBackup> {
    let taken = || Error::conflict(format!("a base backup of database `{id}` is already in progress"));
    let _marked = databases.background.mark(&OperationKey::BaseBackup(id.clone())).ok_or_else(taken)?;
    let _turn = databases.backups.bases.acquire().await.map_err(Error::internal)?;
    let stream = connect(databases, sandbox, Purpose::Base).await.map_err(|error| match error {
        ConnectError::Asleep => Error::conflict(format!("database `{id}` is asleep; wake it first")),
        ConnectError::Failed(why) => {
            Error::new(ErrorCode::GuestUnavailable, format!("database `{id}` is unreachable: {why}"))
        }
    })?;
    let base = take_base(stream, login, archive, None).await.map_err(|error| match error {
        BaseError::Archive(error) => unavailable(error),
        other => Error::new(ErrorCode::GuestUnavailable, pandastack_types::chain(&other)),
    })?;
    tracing::info!(database = %id, label = base.label, bytes = base.tar_bytes, "taking a base backup");
    // The machine is awake, and its log, which includes this, is archived. A failure here must not
    // fail the backup.
    if let Err(error) = reset::record_revision(databases, id, sandbox).await {
        tracing::debug!(
            database = %id, error = %chain(&error),
            "cannot record the last password reset; the next base backup records it"
        );
    }
    Ok(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_base_backup_is_due_immediately() {
        let wait = wait_for_base(&Catalog::default(), &Status::default(), Timestamp::now());
        assert_eq!(wait, Duration::ZERO);
    }

    #[tokio::test]
    async fn archive_recovery_is_detected_only_after_an_outage() {
        let (status, log) = watch::channel(Status::default());
        let mut waiting = tokio::spawn(archive_recovered(log));
        let failing = |since| move |status: &mut Status| status.failing_since = since;
        let soon = Duration::from_millis(50);
        status.send_modify(|status| status.lag_bytes = 1);
        assert!(tokio::time::timeout(soon, &mut waiting).await.is_err(), "it was never away");
        status.send_modify(failing(Some(Timestamp::now())));
        assert!(tokio::time::timeout(soon, &mut waiting).await.is_err(), "it is still away");
        status.send_modify(failing(None));
        tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    }
}
