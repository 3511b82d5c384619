//! Operations on databases: create, copy, update and delete.
//!
//! An operation locks its database by an [`OperationKey`], so that only one runs at a time. If another operation is in
//! progress, the request fails with 409.

use std::sync::Arc;
use std::time::Duration;

use pandastack_sandboxes::in_flight::OperationKey;
use pandastack_sandboxes::machines::{MachineSpec, WaitPolicy};
use pandastack_sandboxes::validate;
use pandastack_store::databases::{DatabaseRecord, DatabaseSpecRecord, DatabaseState};
use pandastack_types::api::{CloneDatabase, CreateDatabase, PatchDatabase};
use pandastack_types::limits::DATABASE_LABEL_BYTES_MAX;
use pandastack_types::{Error, ErrorCode, Result, SandboxId, WorkspaceId, chain};

use crate::machines::{machine, ready, remove_machines, take_mark, taken};
use crate::server::{self, Origin};
use crate::service::ManagedDatabases;
use crate::spec::{idle_seconds, machine_request, new_copy, new_record, owner, size_gib};
use crate::{backups, disk_guard, revive};

/// Time that a delete waits for another operation: a client that reads that a create failed may
/// delete the database before the create has cleaned up.
const DELETE_WAIT: Duration = Duration::from_secs(2);

/// Creates a database and returns when it accepts queries. Completes even if the caller is dropped.
pub(super) async fn create(
    databases: &Arc<ManagedDatabases>,
    workspace: WorkspaceId,
    request: CreateDatabase,
) -> Result<DatabaseRecord> {
    check_label(request.label.as_deref())?;
    request.name.as_deref().map_or(Ok(()), validate::name)?;
    let size = size_gib(request.size.as_deref(), request.memory_mb)?;
    let spec = DatabaseSpecRecord {
        name: request.name,
        label: request.label,
        size: format!("{size}g"),
        cpu: request.cpu,
        always_on: request.always_on.unwrap_or(false),
        protected: request.protected.unwrap_or(false),
        secret_generation: databases.link.current_generation(),
        ..DatabaseSpecRecord::default()
    };
    let record = new_record(workspace, spec);
    create_from(databases, record, None).await
}

/// Copies a running database, or starts a restore of an earlier state. Completes even if the caller is dropped.
pub(super) async fn branch(
    databases: &Arc<ManagedDatabases>,
    original: DatabaseRecord,
    request: CloneDatabase,
) -> Result<DatabaseRecord> {
    check_label(request.label.as_deref())?;
    request.name.as_deref().map_or(Ok(()), validate::name)?;
    if request.size.as_ref().is_some_and(|size| *size != original.spec.size) {
        return Err(Error::bad_request(format!(
            "a copy has the size of its original, `{}`; leave out `size`",
            original.spec.size
        )));
    }
    match request.target_time {
        Some(point) => backups::restore::begin_restore(databases, original, request, point).await,
        None => {
            create_from(databases, new_copy(&original, request.name, request.label), Some(original)).await
        }
    }
}

async fn create_from(
    databases: &Arc<ManagedDatabases>,
    record: DatabaseRecord,
    original: Option<DatabaseRecord>,
) -> Result<DatabaseRecord> {
    let for_task = Arc::clone(databases);
    databases.background.owned(async move {
        let databases = for_task;
        let _marked = take_mark(&databases, &record.id)?;
        databases.store.insert_database(&record).await?;
        let made = create_machine(&databases, &record, original.as_ref()).await;
        match made {
            Ok(sandbox) => {
                let sandbox = Some(sandbox);
                let ready = DatabaseRecord { state: DatabaseState::Ready, sandbox, ..record };
                databases.store.update_database(&ready).await?;
                databases.backups.changed.notify_one();
                Ok(ready)
            }
            Err(error) => {
                if let Err(left) = remove(&databases, &record).await {
                    tracing::warn!(database = %record.id, %left, "cannot clean up a failed create; the next start does");
                }
                Err(error)
            }
        }
    })
    .await
}

async fn create_machine(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    original: Option<&DatabaseRecord>,
) -> Result<SandboxId> {
    let (machine, descent) = match original {
        None => {
            let (workspace, request) = (record.workspace.clone(), machine_request(record)?);
            let spec = MachineSpec { workspace, request };
            let machine = databases.machines.create(owner(&record.id), spec, WaitPolicy::None).await;
            (machine.map_err(as_database)?, Origin::Template)
        }
        Some(original) => {
            let parent = machine(databases, original).await?;
            (databases.machines.fork(&parent, owner(&record.id)).await?, Origin::Copy(&original.id))
        }
    };
    databases.volumes.claim(&machine.record, &owner(&record.id)).await?;
    server::set_up(databases, record, machine.id(), descent).await?;
    Ok(machine.id().clone())
}

/// Translates errors about sandboxes for users of databases, who know nothing of sandboxes.
fn as_database(error: Error) -> Error {
    match error.code {
        ErrorCode::TemplateBaking => Error {
            message: "the host is building the PostgreSQL template; try again shortly".to_owned(),
            ..error
        },
        _ => error,
    }
}

/// Changes the settings of an existing database. Runs to its end even if the caller is dropped.
pub(super) async fn change(
    databases: &Arc<ManagedDatabases>,
    record: DatabaseRecord,
    request: PatchDatabase,
) -> Result<DatabaseRecord> {
    let for_task = Arc::clone(databases);
    databases.background.owned(async move { change_marked(&for_task, record, request).await }).await
}

async fn change_marked(
    databases: &Arc<ManagedDatabases>,
    record: DatabaseRecord,
    request: PatchDatabase,
) -> Result<DatabaseRecord> {
    if request == PatchDatabase::default() {
        return Err(Error::bad_request(
            "nothing to change; set label, always_on, protected, storage_mb or size",
        ));
    }
    check_label(request.label.as_deref())?;
    let _marked = take_mark(databases, &record.id)?;
    let mut record = databases.store.database(Some(&record.workspace), &record.id).await?;
    if let Some(always_on) = request.always_on.filter(|wanted| *wanted != record.spec.always_on) {
        machine(databases, &record).await?.set_idle(idle_seconds(always_on)).await?;
        record.spec.always_on = always_on;
    }
    if let Some(storage_mb) = request.storage_mb {
        let volumes = databases.volumes.owned_by(&record.workspace, &owner(&record.id)).await?;
        let volume = volumes.into_iter().next();
        let volume = volume.ok_or_else(|| Error::conflict("this database has no volume to resize"))?;
        // A file system grows only in a running machine, and a database with a full disk may be
        // asleep.
        set_awake(databases, &record, true).await?;
        databases.volumes.grow(volume, storage_mb).await?;
        disk_guard::await_writable(databases, &record).await;
    }
    record.spec.protected = request.protected.unwrap_or(record.spec.protected);
    record.spec.label = request.label.or(record.spec.label);
    databases.store.update_database(&record).await?;
    match request.size {
        Some(size) => resize(databases, record, &size).await,
        None => Ok(record),
    }
}

/// Moves a database to a machine of another size. Its server stops cleanly first, so that it starts
/// without replaying its log; connecting clients are held until then.
async fn resize(
    databases: &Arc<ManagedDatabases>,
    record: DatabaseRecord,
    size: &str,
) -> Result<DatabaseRecord> {
    let size = format!("{}g", size_gib(Some(size), None)?);
    if size == record.spec.size {
        return Ok(record);
    }
    ready(&record)?;
    server::stop(databases, &record).await?;
    let mut resized = record.clone();
    resized.spec.size = size;
    databases.store.update_database(&resized).await?;
    match revive::replace(databases, resized).await {
        Ok(_) => Ok(databases.store.database(Some(&record.workspace), &record.id).await?),
        Err(error) => {
            // Keep the record: without a machine the database counts as lost, and is revived.
            databases.store.update_database(&record).await?;
            Err(error)
        }
    }
}

/// Puts a database to sleep, or wakes it.
pub(super) async fn set_awake(
    databases: &Arc<ManagedDatabases>,
    record: &DatabaseRecord,
    awake: bool,
) -> Result<()> {
    let machine = machine(databases, record).await?;
    if awake { machine.wake().await } else { machine.sleep().await }
}

/// Deletes a database, unless it is protected or an app's. Runs to its end even if the caller is dropped.
pub(super) async fn delete(databases: &Arc<ManagedDatabases>, record: DatabaseRecord) -> Result<()> {
    delete_if(databases, record, false).await
}

impl ManagedDatabases {
    /// Deletes every database of a workspace with its backups, also protected ones.
    pub async fn delete_all(self: &Arc<Self>, workspace: &WorkspaceId) -> Result<()> {
        for record in self.store.databases(workspace).await? {
            match delete_if(self, record, true).await {
                Err(error) if error.code != ErrorCode::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

async fn delete_if(
    databases: &Arc<ManagedDatabases>,
    record: DatabaseRecord,
    also_protected: bool,
) -> Result<()> {
    let for_task = Arc::clone(databases);
    databases.background.owned(async move {
        let databases = for_task;
        let mark = OperationKey::Database(record.id.clone());
        let marked = databases.background.mark_within(&mark, DELETE_WAIT).await;
        let _marked = marked.ok_or_else(|| taken(&record.id))?;
        let record = databases.store.database(Some(&record.workspace), &record.id).await?;
        if record.spec.protected && !also_protected {
            return Err(Error::conflict(format!(
                "database `{0}` is protected; run `pandastack db update {0} --protected false` first, or PATCH \
                 it \
                 with `protected: false`",
                record.id
            )));
        }
        if let Some(of) = databases.attachments.attached_app(&record.workspace, &record.id).await? {
            return Err(Error::conflict(format!(
                "database `{}` is attached to app `{of}`; detach it first: pandastack app detach {of} {}",
                record.id, record.id
            )));
        }
        let going = DatabaseRecord { state: DatabaseState::Deleting, ..record };
        databases.store.update_database(&going).await?;
        // An archive that is being deleted has no writer.
        databases.backups.changed.notify_one();
        remove(&databases, &going).await
    })
    .await
}

/// Removes the machines of a database, its volume, its backups and then its row. Safe to repeat.
pub(super) async fn remove(databases: &Arc<ManagedDatabases>, record: &DatabaseRecord) -> Result<()> {
    remove_machines(databases, &record.id).await?;
    backups::drill::remove_leftovers(databases, &record.id).await?;
    databases.volumes.delete_all(&record.workspace, &owner(&record.id)).await?;
    databases.backups.remove(&databases.link, &record.id).await?;
    databases.store.delete_database(&record.id).await?;
    if let Some(ports) = &databases.ports
        && let Err(error) = ports.close(&record.id).await
    {
        tracing::warn!(
            database = %record.id, error = %chain(&error),
            "cannot release the port of a deleted database; the next start does"
        );
    }
    Ok(())
}

fn check_label(label: Option<&str>) -> Result<()> {
    match label {
        Some(label) if label.len() > DATABASE_LABEL_BYTES_MAX => {
            Err(Error::bad_request(format!("`label` must be at most {DATABASE_LABEL_BYTES_MAX} bytes")))
        }
        _ => Ok(()),
    }
}
