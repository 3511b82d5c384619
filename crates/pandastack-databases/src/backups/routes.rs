//! The API of backups.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use pandastack_backup::{BaseBackup, Status, Window};
use pandastack_rest::{ApiResult, Caller, Id};
use pandastack_store::clock::now;
use pandastack_store::databases::DatabaseRecord;
use pandastack_types::api::{DatabaseBackups, DatabaseBaseBackup, DatabaseDrill, RestorablePeriod, Role};
use pandastack_types::{DatabaseId, ErrorBody, Result};

use super::archives::{BackupStatus, login};
use super::{drill, keeper};
use crate::service::ManagedDatabases;
use crate::{machines, ops, view};

/// The routes, with their state.
pub fn routes(databases: &Arc<ManagedDatabases>) -> Router {
    Router::new()
        .route("/databases/{id}/backups", get(describe).post(take))
        .route("/databases/{id}/backups/drill", post(drill))
        .with_state(Arc::clone(databases))
}

/// Get the restorable period and the state of a database's backups. Does not wake it.
#[utoipa::path(get, path = "/v1/databases/{id}/backups", tag = "databases",
    operation_id = "get_database_backups", params(("id" = DatabaseId, Path)), responses(
    (status = 200, body = DatabaseBackups), (status = 404, body = ErrorBody),
    (status = 501, description = "Backups are disabled on this server", body = ErrorBody),
    (status = 503, description = "The archive cannot be reached", body = ErrorBody)))]
pub async fn describe(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<DatabaseBackups>> {
    let record = databases.store.database(Some(&caller.workspace), &id).await?;
    Ok(backups_of(&databases, &record).await.map(Json)?)
}

/// Take a base backup. Returns when it is complete. Wakes the database.
#[utoipa::path(post, path = "/v1/databases/{id}/backups", tag = "databases", params(("id" = DatabaseId, Path)), responses(
    (status = 201, body = DatabaseBaseBackup), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
    (status = 501, description = "Backups are disabled on this server", body = ErrorBody)))]
pub async fn take(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<(StatusCode, Json<DatabaseBaseBackup>)> {
    let record = find_to_change(&databases, &caller, &id).await?;
    let sandbox = machines::ready(&record)?.clone();
    ops::set_awake(&databases, &record, true).await?;
    let for_task = Arc::clone(&databases);
    let base = databases.background.owned(async move {
        let databases = for_task;
        let (archive, login) =
            (databases.backups.archive(&databases.link, &id)?, login(&databases.link, &id)?);
        keeper::take(&databases, &id, &sandbox, &archive, &login).await
    });
    Ok((StatusCode::CREATED, Json(base_of(&base.await?))))
}

/// Test a database's backups: restore the latest state into a separate machine, check every table and
/// index, and delete the machine.
#[utoipa::path(post, path = "/v1/databases/{id}/backups/drill", tag = "databases", params(("id" = DatabaseId, Path)),
    responses((status = 200, description = "`ok` is true if the drill succeeded", body = DatabaseDrill),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
    (status = 501, description = "Backups are disabled on this server", body = ErrorBody)))]
pub async fn drill(
    State(databases): State<Arc<ManagedDatabases>>,
    caller: Caller,
    Id(id): Id<DatabaseId>,
) -> ApiResult<Json<DatabaseDrill>> {
    let record = find_to_change(&databases, &caller, &id).await?;
    machines::ready(&record)?;
    let for_task = Arc::clone(&databases);
    Ok(databases.background.owned(async move { drill::run(&for_task, &record).await }).await.map(Json)?)
}

async fn find_to_change(
    databases: &ManagedDatabases,
    caller: &Caller,
    id: &DatabaseId,
) -> Result<DatabaseRecord> {
    caller.require(Role::Developer)?;
    let record = databases.store.database(Some(&caller.workspace), id).await?;
    databases.backups.config()?;
    Ok(record)
}

async fn backups_of(databases: &ManagedDatabases, record: &DatabaseRecord) -> Result<DatabaseBackups> {
    let archive = databases.backups.archive(&databases.link, &record.id)?;
    let mut window = databases.backups.catalog(&archive, &record.id).await?.window();
    let kept = databases.backups.kept(&record.id);
    let log = kept.as_ref().map(|kept| kept.log.borrow().clone()).unwrap_or_default();
    let base_error = kept.as_ref().and_then(|kept: &BackupStatus| kept.base_error.borrow().clone());
    let asleep = view::is_asleep(databases, record).await;
    if asleep && log.last_archived.is_some() && log.lag_bytes == 0 && log.failing_since.is_none() {
        // A sleeping database does not change.
        window.restorable.last_mut().into_iter().for_each(|(_, to)| *to = now().max(*to));
    }
    let lost = log.gap.is_some_and(|gap| {
        window.bases.last().is_none_or(|base| (gap.timeline, gap.to) > (base.timeline, base.start))
    });
    let error = problem(&log, base_error, record.drill.as_ref())
        .or_else(|| lost.then(|| LOST.to_owned()))
        .or_else(|| window.restorable.is_empty().then(|| missing_base(asleep).to_owned()));
    let period = |(from, to): &(_, _)| RestorablePeriod { from: *from, to: *to };
    Ok(DatabaseBackups {
        healthy: error.is_none(),
        following: log.connected,
        last_archived_wal: log.last_archived.or(window.end).map(|(_, position)| position.to_string()),
        last_archived_at: log.last_archived_at,
        lag_bytes: log.lag_bytes,
        failing_since: log.failing_since,
        error,
        earliest_restorable: window.earliest(),
        latest_restorable: window.latest(),
        restorable: window.restorable.iter().map(period).collect(),
        base_backups: bases_of(&window),
        retention_days: databases.backups.config()?.retention_days,
        last_drill: record.drill.clone(),
    })
}

/// Log that was lost, before a base backup makes up for it.
const LOST: &str = "WAL was lost before it was archived, so later times cannot be restored until the next \
     base backup is complete; it starts while the database is awake, or run `pandastack db backup`";

/// Reason why a database has no base backup yet.
fn missing_base(asleep: bool) -> &'static str {
    match asleep {
        true => "there is no base backup yet; wake the database, or run `pandastack db backup`, to take one",
        false => "the first base backup is in progress; check again in a minute",
    }
}

/// Describes a problem with the backups of a database, in a sentence. A failed restore drill is
/// reported until one succeeds: archived log does not prove that restores work.
fn problem(log: &Status, base_error: Option<String>, drill: Option<&DatabaseDrill>) -> Option<String> {
    let failed = drill.filter(|drill| !drill.ok).map(|drill| {
        let why = drill.error.as_deref().unwrap_or("the cause is unknown");
        format!("the last restore test failed: {why}; run `pandastack db drill` for another")
    });
    log.last_error.clone().or(base_error).or(failed)
}

fn bases_of(window: &Window) -> Vec<DatabaseBaseBackup> {
    window.bases.iter().map(base_of).collect()
}

fn base_of(base: &BaseBackup) -> DatabaseBaseBackup {
    DatabaseBaseBackup {
        name: base.label.clone(),
        started_at: base.started_at,
        finished_at: base.stopped_at,
        size_bytes: base.tar_bytes,
        version: base.server_version.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_restore_drill_is_reported_until_one_succeeds() {
        let drill = |ok: bool| {
            let error = (!ok).then(|| "a table is broken".to_owned());
            DatabaseDrill { at: now(), ok, took_ms: 1, error }
        };
        let log = Status::default();
        assert_eq!(problem(&log, None, None), None);
        assert_eq!(problem(&log, None, Some(&drill(true))), None);
        let named = problem(&log, None, Some(&drill(false))).unwrap();
        assert!(named.contains("a table is broken") && named.contains("restore"), "{named}");
        // A problem that stops archiving is more urgent.
        assert_eq!(problem(&log, Some("no base".to_owned()), Some(&drill(false))).unwrap(), "no base");
        let failing = Status { last_error: Some("no store".to_owned()), ..Status::default() };
        assert_eq!(problem(&failing, Some("no base".to_owned()), None).unwrap(), "no store");
    }
}
