//! Creates a sandbox from a template or a snapshot.

use std::sync::Arc;

use pandastack_fault as fault;
use pandastack_types::agent_api::{AgentCreate, AgentSandbox, Source};
use pandastack_types::api::Keep;
use pandastack_types::{SnapshotId, Transition, chain};

use super::accept::Request;
use super::driver::spawn;
use super::handle::SandboxHandle;
use crate::components;
use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::kernel_files::kernel_files;
use crate::launch::{self, SavedMemory, Stages};
use crate::launch_children;
use crate::outdated;
use crate::record::{BootMode, SandboxRecord, write_json};
use crate::running_machine::RunningMachine;
use crate::snapshot::{Manifest, Snapshot};
use crate::snapshot_zygote;
use crate::volume;
use crate::zygote::ZygoteLease;

/// Creates a sandbox and starts its driver. Runs as a separate task, so that a caller that
/// disconnects leaves no partial sandbox. Repeating a create returns the existing sandbox.
pub(crate) async fn create(host: &Arc<Host>, request: AgentCreate) -> Result<AgentSandbox> {
    if let Ok(handle) = host.sandbox(&request.spec.id) {
        handle.check_incarnation(request.spec.incarnation)?;
        return Ok(handle.view());
    }
    let boots = outdated::must_boot(host, &request.source).await?;
    let host = host.clone();
    let made = host.tasks.clone().spawn(async move {
        let id = request.spec.id.clone();
        let made = make(&host, request).await;
        if made.is_err() {
            host.remove_dir(host.layout.sandbox(&id)).await;
        }
        let (mut record, live) = made?;
        fault::point("create.made").await;
        let committed = commit(&host, &mut record);
        fault::point("create.recorded").await;
        let handle = match committed {
            Ok(()) => spawn(&host, record, Some(live)),
            Err(error) => {
                live.end(&host).await;
                host.remove_dir(host.layout.sandbox(&id)).await;
                return Err(error);
            }
        };
        host.changed.notify_one();
        if boots && let Err(error) = boot_from_disk(&handle).await {
            drop(handle.delete().await);
            return Err(error);
        }
        Ok(handle.view())
    });
    made.await.map_err(|_| AgentError::Stopping)?
}

/// Boots a sandbox of an outdated state from its disk. The old kernel writes that out first.
async fn boot_from_disk(handle: &SandboxHandle) -> Result<()> {
    handle.hibernate(Keep::Disk).await?;
    handle.move_to(Request::Wake).await.map(drop)
}

/// Writes down that a machine is ready.
pub(super) fn commit(host: &Host, record: &mut SandboxRecord) -> Result<()> {
    record.state = record.state.step(Transition::Created)?;
    write_json(&host.layout.record(&record.spec.id), record)
}

async fn make(host: &Arc<Host>, request: AgentCreate) -> Result<(SandboxRecord, RunningMachine)> {
    match request.source.clone() {
        Source::Template(name) => from_template(host, request, &name).await,
        Source::TemplateDisk(name) => from_template_disk(host, request, &name).await,
        Source::Snapshot(id) => from_snapshot(host, request, &id).await,
    }
}

async fn from_snapshot(
    host: &Arc<Host>,
    request: AgentCreate,
    id: &SnapshotId,
) -> Result<(SandboxRecord, RunningMachine)> {
    let dir = host.layout.snapshot(id);
    if !dir.exists() {
        return Err(AgentError::NoSnapshot(id.clone()));
    }
    let snapshot = Snapshot::open(&dir, host.engine.capabilities())?;
    let manifest = &snapshot.manifest;
    host.free_memory(manifest.shape, 1, None).await?;
    if let (Some(zygote), Some(uid)) = (snapshot_zygote::get(host, id), manifest.uid) {
        let (spec, shape) = (request.spec.clone(), manifest.shape);
        let mut record = SandboxRecord::new(spec, &manifest.template, shape, uid, BootMode::Fork);
        record.components = components::restored(&host.resources, &manifest.components);
        if let Some(made) = forked(host, zygote, record, Some(manifest)).await? {
            return Ok(made);
        }
    }
    let made = restored(host, request, &snapshot).await?;
    snapshot_zygote::note_restore(host, id, &snapshot);
    Ok(made)
}

async fn from_template(
    host: &Arc<Host>,
    request: AgentCreate,
    name: &str,
) -> Result<(SandboxRecord, RunningMachine)> {
    let baked = host.templates.ready(name, request.size).await?;
    let shape = baked.snapshot.manifest.shape;
    host.free_memory(shape, 1, None).await?;
    if let Some(zygote) = host.zygotes.get(&baked) {
        let (spec, uid) = (request.spec.clone(), host.new_uid());
        let mut record = SandboxRecord::new(spec, &baked.template, shape, uid, BootMode::Fork);
        record.components = components::restored(&host.resources, &baked.snapshot.manifest.components);
        if let Some(made) = forked(host, zygote, record, None).await? {
            return Ok(made);
        }
    }
    let made = restored(host, request, &baked.snapshot).await?;
    host.zygotes.create_in_background(&baked);
    Ok(made)
}

/// Boots a template's disk, for a volume that has seen more than the template remembers of it.
async fn from_template_disk(
    host: &Arc<Host>,
    request: AgentCreate,
    name: &str,
) -> Result<(SandboxRecord, RunningMachine)> {
    let baked = host.templates.ready(name, request.size).await?;
    let shape = baked.snapshot.manifest.shape;
    host.free_memory(shape, 1, None).await?;
    let kernel = kernel_files(&host.resources).await?;
    let mut record = SandboxRecord::new(request.spec, &baked.template, shape, host.new_uid(), BootMode::Boot);
    let live = launch::boot(host, &mut record, &baked.snapshot.disk(), kernel).await?;
    Ok((record, live))
}

/// Forks a zygote; `None` if the zygote has died, so that its snapshot must be restored. `shown`:
/// the zygote is of a sandbox's snapshot, whose outbound connections do not belong to the child.
async fn forked(
    host: &Arc<Host>,
    zygote: ZygoteLease,
    mut record: SandboxRecord,
    shown: Option<&Manifest>,
) -> Result<Option<(SandboxRecord, RunningMachine)>> {
    let mut stages = Stages::begin();
    let originals = zygote.originals();
    let resolved = shown.map_or(&[][..], |manifest| &manifest.resolved);
    let remembered = SavedMemory { of_sandbox: shown.is_some(), mounted: originals.len(), resolved };
    volume::derive(host, originals, &record.spec.volumes).await?;
    let records = std::slice::from_ref(&record);
    let prepared =
        launch_children::prepare_children(host, &zygote.resources, record.shape, records, true).await;
    fault::point("create.prepared").await;
    stages.mark("prepare");
    let forked = launch_children::fork_children(host, zygote.machine.as_ref(), prepared, None).await;
    fault::point("create.forked").await;
    drop(zygote);
    stages.mark("fork");
    let none = || AgentError::Launch("the engine returned no machine".to_owned());
    let forked = match forked.into_iter().next().ok_or_else(none)? {
        Ok(forked) => forked,
        // The volumes are copies of the zygote's, and match no other memory.
        Err(error) if !record.spec.volumes.is_empty() => return Err(error),
        Err(error) => {
            tracing::warn!(sandbox = %record.spec.id, error = %chain(&error), "cannot fork the zygote; restoring the snapshot");
            return Ok(None);
        }
    };
    let live = launch_children::bring_up_child(host, &mut record, forked, remembered, stages).await?;
    Ok(Some((record, live)))
}

async fn restored(
    host: &Host,
    request: AgentCreate,
    snapshot: &Snapshot,
) -> Result<(SandboxRecord, RunningMachine)> {
    let manifest = &snapshot.manifest;
    // A new process, so it gets a user of its own.
    let uid = host.new_uid();
    let mut record =
        SandboxRecord::new(request.spec, &manifest.template, manifest.shape, uid, BootMode::Restore);
    let live = launch::restore(host, &mut record, snapshot, Stages::begin()).await?;
    Ok((record, live))
}
