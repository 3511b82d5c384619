//! Making, copying, changing and deleting databases.
//!
//! Whatever changes a database holds its so one thing at a time is done to it; what finds it taken answers 409.

use std::sync::Arc;
use std::time::Duration;

use pandastack_agent_client::AgentClient;
use pandastack_types::api::{
    CloneDatabase, CreateDatabase, CreateSandbox, Keep, PatchDatabase, PatchLifecycle,
};
use pandastack_types::limits::{DATABASE_IDLE_SECONDS, DATABASE_LABEL_BYTES_MAX, TTL_SECONDS_MAX};
use pandastack_types::preview::Visibility;
use pandastack_types::{DatabaseId, Error, ErrorCode, Result, SandboxId, WorkspaceId};

use super::server::{self, Descent};
use super::{MIB_PER_GIB, SIZE_DEFAULT_GIB, SIZES_GIB, TEMPLATE, backups, owner, revive, room};
use crate::app::App;
use crate::clock::now;
use crate::sandboxes::in_flight::{InFlightMark, Mark};
use crate::sandboxes::ops as machines;
use crate::sandboxes::ops::lifecycle::Move;
use crate::sandboxes::volumes::owned;
use crate::store::apps::record::AppRecord;
use crate::store::databases::{DatabaseRecord, DatabaseSpecRecord, DatabaseState};
use crate::store::volumes::VolumeRecord;
use crate::store::{SandboxRecord, Select, StoreError};

/// How long a delete waits for what is being done to its database: who reads that a create was given up, and to delete it, may
/// be faster than the end of that work.
const DELETE_WAIT: Duration = Duration::from_secs(2);

/// Makes a database and answers when it takes queries. Runs to its end even if the caller is dropped.
pub(super) async fn create(
    app: &Arc<App>,
    workspace: WorkspaceId,
    request: CreateDatabase,
) -> Result<DatabaseRecord> {
    check_label(request.label.as_deref())?;
    let size = size_gib(request.size.as_deref(), request.memory_mb)?;
    let spec = DatabaseSpecRecord {
        label: request.label,
        size: format!("{size}g"),
        cpu: request.cpu,
        always_on: request.always_on.unwrap_or(false),
        protected: request.protected.unwrap_or(false),
        ..DatabaseSpecRecord::default()
    };
    let record = new_record(workspace, spec);
    make(app, record, None).await
}

/// Copies a database as it is now, or begins to copy it as it was. Runs to its end even if the caller is dropped.
pub(super) async fn branch(
    app: &Arc<App>,
    original: DatabaseRecord,
    request: CloneDatabase,
) -> Result<DatabaseRecord> {
    check_label(request.label.as_deref())?;
    if request.size.as_ref().is_some_and(|size| *size != original.spec.size) {
        return Err(Error::bad_request(format!(
            "a copy has the size of its original, `{}`; leave `size` out",
            original.spec.size
        )));
    }
    match request.target_time {
        Some(at) => backups::restored(app, original, request, at).await,
        None => make(app, new_copy(&original, request.label), Some(original)).await,
    }
}

/// The record of a copy that is to be made.
pub(super) fn new_copy(original: &DatabaseRecord, label: Option<String>) -> DatabaseRecord {
    let spec = DatabaseSpecRecord {
        label,
        protected: false,
        cloned_from: Some(original.id.clone()),
        revision: 0,
        reset_pending: false,
        ..original.spec.clone()
    };
    new_record(original.workspace.clone(), spec)
}

fn new_record(workspace: WorkspaceId, spec: DatabaseSpecRecord) -> DatabaseRecord {
    DatabaseRecord {
        id: fresh_id(),
        workspace,
        state: DatabaseState::Creating,
        sandbox: None,
        created_at: now(),
        drill: None,
        spec,
    }
}

/// An id that can be the first label of a host name. Drivers that come over HTTP by `<id>.<domain>` are taken for visitors of a sandbox's port if it
/// begins as `<port>-<sandbox id>` does, which one of forty random ones would.
fn fresh_id() -> DatabaseId {
    loop {
        let id = DatabaseId::random();
        if !begins_with_port(id.as_str()) {
            return id;
        }
    }
}

fn begins_with_port(label: &str) -> bool {
    label.split_once('-').is_some_and(|(first, _)| first.bytes().all(|byte| byte.is_ascii_digit()))
}

async fn make(
    app: &Arc<App>,
    record: DatabaseRecord,
    original: Option<DatabaseRecord>,
) -> Result<DatabaseRecord> {
    let for_task = Arc::clone(app);
    app.owned(async move {
        let app = for_task;
        let _marked = take_mark(&app, &record.id)?;
        app.store.insert_database(&record).await?;
        let made = make_machine(&app, &record, original.as_ref()).await;
        match made {
            Ok(sandbox) => {
                let sandbox = Some(sandbox);
                let ready = DatabaseRecord { state: DatabaseState::Ready, sandbox, ..record };
                app.store.update_database(&ready).await?;
                app.backups.changed.notify_one();
                Ok(ready)
            }
            Err(error) => {
                if let Err(left) = remove(&app, &record).await {
                    tracing::warn!(database = %record.id, %left, "a failed create is removed at the next start");
                }
                Err(error)
            }
        }
    })
    .await
}

async fn make_machine(
    app: &Arc<App>,
    record: &DatabaseRecord,
    original: Option<&DatabaseRecord>,
) -> Result<SandboxId> {
    let (machine, descent) = match original {
        None => {
            let (workspace, owner) = (record.workspace.clone(), owner(&record.id));
            let request = machine_request(record)?;
            let machine = machines::create::create_owned(&app.sandboxes, workspace, request, owner).await;
            (machine.map_err(as_database)?, Descent::Template)
        }
        Some(original) => {
            let (machine, client) = machine(app, original).await?;
            let machine =
                machines::fork::fork_owned(&app.sandboxes, machine, client, owner(&record.id)).await?;
            (machine, Descent::Copy(&original.id))
        }
    };
    owned::claim(app, &machine, &owner(&record.id)).await?;
    server::settle(app, record, &machine.id, descent).await?;
    Ok(machine.id)
}

/// Somebody who asked for a database knows nothing of sandboxes.
fn as_database(error: Error) -> Error {
    match error.code {
        ErrorCode::TemplateBaking => Error {
            message: "PostgreSQL is being prepared on this host for the first time; try again shortly"
                .to_owned(),
            ..error
        },
        _ => error,
    }
}

pub(super) fn machine_request(record: &DatabaseRecord) -> Result<CreateSandbox> {
    let size = size_gib(Some(&record.spec.size), None)?;
    Ok(CreateSandbox {
        template: Some(TEMPLATE.to_owned()),
        cpu: record.spec.cpu,
        memory_mb: (size != SIZE_DEFAULT_GIB).then_some(size * MIB_PER_GIB),
        persistent: Some(true),
        idle_timeout_seconds: Some(idle_seconds(record.spec.always_on)),
        visibility: Some(Visibility::Off),
        ..CreateSandbox::default()
    })
}

/// A machine that never sleeps is one that may be idle for as long as can be said.
fn idle_seconds(always_on: bool) -> u64 {
    if always_on { TTL_SECONDS_MAX } else { DATABASE_IDLE_SECONDS }
}

/// Changes what can be changed of a database that exists. Runs to its end even if the caller is dropped.
pub(super) async fn change(
    app: &Arc<App>,
    record: DatabaseRecord,
    request: PatchDatabase,
) -> Result<DatabaseRecord> {
    let for_task = Arc::clone(app);
    app.owned(async move { change_marked(&for_task, record, request).await }).await
}

async fn change_marked(
    app: &Arc<App>,
    record: DatabaseRecord,
    request: PatchDatabase,
) -> Result<DatabaseRecord> {
    if request == PatchDatabase::default() {
        return Err(Error::bad_request(
            "nothing to change: give label, always_on, protected, storage_mb or size",
        ));
    }
    check_label(request.label.as_deref())?;
    let _marked = take_mark(app, &record.id)?;
    let mut record = app.store.database(Some(&record.workspace), &record.id).await?;
    if let Some(always_on) = request.always_on.filter(|wanted| *wanted != record.spec.always_on) {
        let (machine, _) = machine(app, &record).await?;
        let idle_timeout_seconds = Some(idle_seconds(always_on));
        let patch = PatchLifecycle { idle_timeout_seconds, ..PatchLifecycle::default() };
        machines::lifecycle::patch(&app.sandboxes, machine, patch).await?;
        record.spec.always_on = always_on;
    }
    if let Some(storage_mb) = request.storage_mb {
        let volumes = owned::of(app, &record.workspace, &owner(&record.id)).await?;
        let volume = volumes.into_iter().next();
        let volume = volume.ok_or_else(|| Error::conflict("this database has no volume"))?;
        // A file system grows in a machine that runs, and one that is full sleeps as others do.
        go(app, &record, true).await?;
        owned::grow(&app.sandboxes, volume, storage_mb).await?;
        room::await_notice(app, &record).await;
    }
    record.spec.protected = request.protected.unwrap_or(record.spec.protected);
    record.spec.label = request.label.or(record.spec.label);
    app.store.update_database(&record).await?;
    match request.size {
        Some(size) => resize(app, record, &size).await,
        None => Ok(record),
    }
}

/// Gives a database a machine of another size. Its server stops cleanly first, so that it starts without replaying its log; whoever connects
/// meanwhile is held.
async fn resize(app: &Arc<App>, record: DatabaseRecord, size: &str) -> Result<DatabaseRecord> {
    let size = format!("{}g", size_gib(Some(size), None)?);
    if size == record.spec.size {
        return Ok(record);
    }
    ready(&record)?;
    server::stop(app, &record).await?;
    let mut resized = record.clone();
    resized.spec.size = size;
    app.store.update_database(&resized).await?;
    match revive::replace(app, resized).await {
        Ok(_) => Ok(app.store.database(Some(&record.workspace), &record.id).await?),
        Err(error) => {
            // As it was: without a machine it counts as lost, and is brought back.
            app.store.update_database(&record).await?;
            Err(error)
        }
    }
}

/// Room for data, and what of it is taken, in bytes.
pub(super) async fn storage(app: &App, record: &DatabaseRecord) -> Result<(u64, u64)> {
    let volumes = owned::of(app, &record.workspace, &owner(&record.id)).await?;
    let used =
        |volume: &VolumeRecord| app.hosts.volume(&volume.host, &volume.id).map_or(0, |seen| seen.used_bytes);
    Ok((volumes.iter().map(|volume| volume.spec.size_bytes).sum(), volumes.iter().map(used).sum()))
}

/// Puts a database to sleep, or wakes it.
pub(super) async fn go(app: &Arc<App>, record: &DatabaseRecord, awake: bool) -> Result<()> {
    let (machine, client) = machine(app, record).await?;
    let movement = if awake { Move::Wake } else { Move::Hibernate(Keep::Memory) };
    machines::lifecycle::go(&app.sandboxes, machine, client, movement, false).await.map(drop)
}

/// Deletes a database, unless it is protected or an app's. Runs to its end even if the caller is dropped.
pub(super) async fn delete(app: &Arc<App>, record: DatabaseRecord) -> Result<()> {
    let for_task = Arc::clone(app);
    app.owned(async move {
        let app = for_task;
        let marked = app.in_flight.mark_within(&Mark::Database(record.id.clone()), DELETE_WAIT).await;
        let _marked = marked.ok_or_else(|| taken(&record.id))?;
        let record = app.store.database(Some(&record.workspace), &record.id).await?;
        if record.spec.protected {
            return Err(Error::conflict(format!(
                "database `{0}` is protected; take that back first: `pandastack db set {0} --protected false`, or PATCH it \
                 with `protected: false`",
                record.id
            )));
        }
        if let Some(of) = app_attached_to(&app, &record).await? {
            return Err(Error::conflict(format!(
                "database `{}` is attached to app `{of}`; detach it first: pandastack app detach {of} {}",
                record.id, record.id
            )));
        }
        let going = DatabaseRecord { state: DatabaseState::Deleting, ..record };
        app.store.update_database(&going).await?;
        // Nobody writes into an archive that is being deleted.
        app.backups.changed.notify_one();
        remove(&app, &going).await
    })
    .await
}

/// Removes the machines of a database, its volume, its backups and then its row. Safe to repeat.
pub(super) async fn remove(app: &Arc<App>, record: &DatabaseRecord) -> Result<()> {
    remove_machines(app, &record.id).await?;
    backups::remove_left(app, &record.id).await?;
    owned::delete_all(app, &record.workspace, &owner(&record.id)).await?;
    backups::remove(app, &record.id).await?;
    app.store.delete_database(&record.id).await?;
    if let Some(ports) = &app.database_ports
        && let Err(error) = ports.close(&record.id).await
    {
        tracing::warn!(database = %record.id, %error, "the port of a deleted database is forgotten at the next start");
    }
    Ok(())
}

/// Removes every machine that belongs to a database.
pub(super) async fn remove_machines(app: &Arc<App>, id: &DatabaseId) -> Result<()> {
    for machine in app.store.sandboxes(&Select::Owner(owner(id))).await? {
        machines::delete::delete(&app.sandboxes, machine, Some("its database is deleted")).await?;
    }
    Ok(())
}

/// The machine of a database that is ready, and its host.
pub(super) async fn machine(app: &App, record: &DatabaseRecord) -> Result<(SandboxRecord, AgentClient)> {
    let sandbox = ready(record)?;
    let machine = match app.store.sandbox(Some(&record.workspace), sandbox).await {
        Ok(machine) => machine,
        Err(StoreError::NotFound { .. }) => {
            return Err(Error::conflict(format!("the machine of database `{}` is gone", record.id)));
        }
        Err(error) => return Err(error.into()),
    };
    machines::check_live(&machine)?;
    let client = app.hosts.client(&machine.host)?;
    Ok((machine, client))
}

/// Refuses what needs a database that is ready.
pub(super) fn ready(record: &DatabaseRecord) -> Result<&SandboxId> {
    let id = &record.id;
    match (record.state, &record.sandbox) {
        (DatabaseState::Ready, Some(sandbox)) => Ok(sandbox),
        (DatabaseState::Creating, _) => {
            let message = format!("database `{id}` is still being made; try again in a moment");
            Err(Error::new(ErrorCode::Unavailable, message))
        }
        (DatabaseState::Deleting, _) => Err(Error::conflict(format!("database `{id}` is being deleted"))),
        (DatabaseState::Failed | DatabaseState::Ready, _) => {
            let why = record.spec.failure.as_deref().unwrap_or("it was never finished");
            Err(Error::conflict(format!("database `{id}` failed: {why}")))
        }
    }
}

/// Name of an app that a database is attached to.
async fn app_attached_to(app: &App, database: &DatabaseRecord) -> Result<Option<String>> {
    let has = |of: &AppRecord| {
        !of.spec.deleting && of.spec.databases.values().any(|one| one.database == database.id)
    };
    Ok(app.store.apps(Some(&database.workspace)).await?.into_iter().find(has).map(|of| of.name))
}

pub(crate) fn take_mark(app: &App, id: &DatabaseId) -> Result<InFlightMark> {
    app.in_flight.mark(&Mark::Database(id.clone())).ok_or_else(|| taken(id))
}

fn taken(id: &DatabaseId) -> Error {
    Error::conflict(format!("something else is being done to database `{id}`; try again shortly"))
}

fn check_label(label: Option<&str>) -> Result<()> {
    match label {
        Some(label) if label.len() > DATABASE_LABEL_BYTES_MAX => {
            Err(Error::bad_request(format!("`label` is at most {DATABASE_LABEL_BYTES_MAX} bytes")))
        }
        _ => Ok(()),
    }
}

/// GiB of memory that a request means, by a size such as `4g` or by a number of MiB.
fn size_gib(size: Option<&str>, memory_mb: Option<u32>) -> Result<u32> {
    let by_size =
        size.map(|text| text.to_ascii_lowercase().strip_suffix('g').and_then(|gib| gib.parse().ok()));
    let by_memory = memory_mb.map(|mb| (mb % MIB_PER_GIB == 0).then_some(mb / MIB_PER_GIB));
    let wanted = match (by_size, by_memory) {
        (None, None) => Some(SIZE_DEFAULT_GIB),
        (Some(gib), None) | (None, Some(gib)) => gib,
        (Some(by_size), Some(by_memory)) => by_size.filter(|_| by_size == by_memory),
    };
    wanted.filter(|gib| SIZES_GIB.contains(gib)).ok_or_else(|| {
        let sizes: Vec<String> = SIZES_GIB.iter().map(|gib| format!("`{gib}g`")).collect();
        Error::bad_request(format!(
            "a database's size is one of {} of memory (`size`, or `memory_mb` in MiB)",
            sizes.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_few_and_said_in_two_ways() {
        for (size, memory_mb, expect) in [
            (None, None, Some(1)),
            (Some("4g"), None, Some(4)),
            (Some("16G"), Some(16 * 1024), Some(16)),
            (None, Some(2048), Some(2)),
            (Some("4g"), Some(1024), None),
            (Some("3g"), None, None),
            (Some("4"), None, None),
            (Some("-1g"), None, None),
            (None, Some(1500), None),
        ] {
            assert_eq!(size_gib(size, memory_mb).ok(), expect, "{size:?} {memory_mb:?}");
        }
    }

    #[test]
    fn ids_are_no_addresses_of_sandboxes() {
        let id = "3f2b0c1e-7d7f-4c58-9d0e-0d2b7a0f9a55";
        for (label, expect) in
            [(id, false), ("12345678-7d7f-4c58", true), ("8000-a", true), ("1234567a-1", false)]
        {
            assert_eq!(begins_with_port(label), expect, "{label}");
        }
        assert!((0..1000).all(|_| !begins_with_port(fresh_id().as_str())));
    }
}
