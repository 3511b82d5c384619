//! Creating a sandbox: row, machine, row again; undone as a whole when any step fails.

use std::sync::Arc;
use std::time::Duration;

use pandastack_agent_client::AgentClient;
use pandastack_fault as fault;
use pandastack_store::clock::now;
use pandastack_store::record::after_seconds;
use pandastack_store::{Change, IdempotencyKey, SandboxRecord, SandboxSpecRecord, SnapshotRecord};
use pandastack_types::agent_api::{AgentCreate, MachineSize, SandboxSpec, Source, VolumeSpec, endpoints};
use pandastack_types::api::{AttachedVolume, CreateSandbox, RequiredIsolation, Template};
use pandastack_types::{
    Error, ErrorCode, Owner, Result, SandboxId, SandboxState, Transition, WorkspaceId, chain,
};
use tokio::time::Instant;

use super::{MAKE_WAIT, options_for, remove_machine};
use crate::Sandboxes;
use crate::hosts::MemoryReservation;
use crate::in_flight::OperationKey;
use crate::machines::WaitPolicy;
use crate::placement::PlacementRefused;
use crate::tenancy::is_emulated;
use crate::volumes::attach::{DerivedVolumes, TemplateVolumeUse, VolumePlan};

/// Template of a request that names neither one nor a snapshot.
const TEMPLATE_DEFAULT: &str = "base";
/// Templates that published clients send by default, also beside a snapshot: they cannot be told
/// from an explicit choice.
const TEMPLATES_UNASKED: [&str; 3] = [TEMPLATE_DEFAULT, "code-interpreter", "ubuntu-24.04"];

/// The plan of a create: host and source.
struct Plan {
    record: SandboxRecord,
    source: Source,
    /// Machine size, where it differs from the source's.
    size: Option<MachineSize>,
    client: AgentClient,
    promise: Option<MemoryReservation>,
    /// Volumes that it gets as copies.
    derived: DerivedVolumes,
}

/// Creates a sandbox that is ready for its first command. Runs to its end even if the caller is dropped.
pub async fn create(
    sandboxes: &Arc<Sandboxes>,
    workspace: WorkspaceId,
    request: CreateSandbox,
    key: Option<IdempotencyKey>,
) -> Result<SandboxRecord> {
    crate::validate::create(&request)?;
    let own = Arc::clone(sandboxes);
    sandboxes.owned(async move { run(&own, workspace, request, key, None).await }).await
}

/// The same for a service, such as `app:<id>`, which owns the machine from the start.
pub async fn create_owned(
    sandboxes: &Arc<Sandboxes>,
    workspace: WorkspaceId,
    request: CreateSandbox,
    owner: Owner,
) -> Result<SandboxRecord> {
    crate::validate::create(&request)?;
    let own = Arc::clone(sandboxes);
    sandboxes.owned(async move { run(&own, workspace, request, None, Some(owner)).await }).await
}

/// The same, but waits for a template that is being baked, and for a host with free capacity.
pub async fn create_patiently(
    sandboxes: &Arc<Sandboxes>,
    workspace: WorkspaceId,
    request: CreateSandbox,
    owner: Owner,
) -> Result<SandboxRecord> {
    let deadline = Instant::now() + WaitPolicy::MAX;
    loop {
        match create_owned(sandboxes, workspace.clone(), request.clone(), owner.clone()).await {
            Err(error) if error.retry_after.is_some() && Instant::now() < deadline => {
                let seconds = error.retry_after.unwrap_or(1).clamp(1, 15);
                tokio::time::sleep(Duration::from_secs(seconds.into())).await;
            }
            made => return made,
        }
    }
}

async fn run(
    sandboxes: &Arc<Sandboxes>,
    workspace: WorkspaceId,
    mut request: CreateSandbox,
    key: Option<IdempotencyKey>,
    owner: Option<Owner>,
) -> Result<SandboxRecord> {
    // A service says itself how its machines are reached; what users want of their sandboxes must
    // not close an sandboxes.
    if request.visibility.is_none() && owner.is_none() {
        request.visibility = Some(sandboxes.store.workspace_settings(&workspace).await?.default_visibility);
    }
    let version = match request.from_snapshot {
        Some(_) => None,
        None => super::template::find(sandboxes, &workspace, &request).await?,
    };
    let mut plan = match (&request.from_snapshot, version) {
        (_, Some(version)) => plan_from_version(sandboxes, workspace, request, version).await?,
        (Some(id), None) => {
            let snapshot = super::snapshot::find(sandboxes, &workspace, id).await?;
            plan_from_snapshot(sandboxes, workspace, &request, snapshot, owner.is_none()).await?
        }
        (None, None) => plan_from_template(sandboxes, workspace, &request, owner.as_ref()).await?,
    };
    plan.record.owner = owner;
    let record = &plan.record;
    let _marked = sandboxes.background.mark(&OperationKey::Sandbox(record.id.clone()));
    plan.derived.insert(sandboxes).await?;
    let events = sandboxes.store.insert_sandboxes(std::slice::from_ref(record), key.as_ref()).await?;
    sandboxes.publish(&record.workspace, events);
    fault::point("control.create.inserted").await;
    let made = make(sandboxes, record, plan.source, plan.size, &plan.client).await;
    match made {
        Ok(record) => {
            if let Some(promise) = plan.promise.take() {
                promise.keep();
            }
            plan.derived.keep(sandboxes).await?;
            fault::point("control.create.done").await;
            Ok(record)
        }
        Err(error) => {
            undo(sandboxes, record, Some(&plan.client), &error.message).await;
            Err(error)
        }
    }
}

async fn make(
    sandboxes: &Sandboxes,
    record: &SandboxRecord,
    source: Source,
    size: Option<MachineSize>,
    client: &AgentClient,
) -> Result<SandboxRecord> {
    let body = AgentCreate { spec: agent_spec(record), source, size };
    let making = client.call(endpoints::CreateSandbox::new(), options_for(record, MAKE_WAIT), &body);
    // The row must be on disk before the client hears of it; that can be waited for while the host works.
    let (seen, synced) = tokio::join!(making, sandboxes.store.sync());
    synced?;
    let seen = seen?;
    fault::point("control.create.made").await;
    if seen.state != SandboxState::Running {
        let why = seen.failure.unwrap_or_else(|| format!("its host reports it {}", seen.state.as_str()));
        return Err(Error::internal(format!("sandbox `{}` did not start: {why}", record.id)));
    }
    Ok(sandboxes.transition(&record.id, Transition::Created, &Change::at(now()).with_observed(seen)).await?)
}

/// Specification of a sandbox for its agent.
pub fn agent_spec(record: &SandboxRecord) -> SandboxSpec {
    SandboxSpec {
        id: record.id.clone(),
        incarnation: record.incarnation,
        workspace: Some(record.workspace.clone()),
        env: record.spec.env.clone(),
        user: record.spec.user.clone(),
        cwd: record.spec.cwd.clone(),
        idle_timeout_seconds: record.agent_idle_seconds(),
        network: record.spec.network.clone(),
        volumes: record.spec.volumes.iter().map(volume_spec).collect(),
    }
}

fn volume_spec(volume: &AttachedVolume) -> VolumeSpec {
    VolumeSpec {
        id: volume.id.clone(),
        path: volume.path.clone(),
        read_only: volume.read_only,
        generation: volume.generation,
    }
}

/// Removes the remains of a failed create. If its host does not respond now, the machine is deleted
/// when the host reports.
///
/// The intention is recorded first and in one step, as in a delete. A server that ends while the
/// host is being asked must not leave a row in `creating`, which its successor would finish just
/// before the machine goes, nor one in `failed`, which would never be checked again.
pub async fn undo(sandboxes: &Sandboxes, record: &SandboxRecord, client: Option<&AgentClient>, why: &str) {
    let change = Change::at(now()).because(why);
    let go = async |transition| {
        if let Err(error) = sandboxes.transition(&record.id, transition, &change).await {
            // The state has changed: another request has deleted the sandbox, which is just as
            // good.
            tracing::debug!(sandbox = %record.id, error = %chain(&error), "undoing a create");
        }
    };
    go(Transition::Deleting).await;
    if let Some(client) = client
        && let Err(error) = remove_machine(client, record).await
    {
        tracing::warn!(
            sandbox = %record.id, error = %chain(&error),
            "cannot clean up a failed create; retrying when its host reports"
        );
    }
    go(Transition::Deleted).await;
    crate::volumes::reconcile::on_sandbox_deleted(sandboxes, record).await;
}

async fn plan_from_template(
    sandboxes: &Sandboxes,
    workspace: WorkspaceId,
    request: &CreateSandbox,
    owner: Option<&Owner>,
) -> Result<Plan> {
    let template = request.template.as_deref().unwrap_or(TEMPLATE_DEFAULT);
    let wanted = request.volumes.as_deref().unwrap_or_default();
    let own_volume = sandboxes.hosts.template_volume(template);
    let VolumePlan { volumes, host, of_template } =
        crate::volumes::attach::resolve(sandboxes, &workspace, wanted, own_volume.as_ref(), owner).await?;
    let needs_hardware = sandboxes.avoids_emulation().await?;
    let hardware = needs_hardware || wants_hardware(request);
    let placed = sandboxes.hosts.place(template, request.memory_mb, host.as_ref(), hardware);
    let placed = placed.map_err(|refused| match refused {
        PlacementRefused::Emulated if !needs_hardware => PlacementRefused::NoHardware,
        refused => refused,
    })?;
    let info = &placed.template.template;
    let own = MachineSize { cpu: info.cpu, memory_mb: info.memory_mb };
    let size = MachineSize {
        cpu: request.cpu.unwrap_or(own.cpu),
        memory_mb: request.memory_mb.unwrap_or(own.memory_mb),
    };
    let mut record = new_record(workspace, placed.host.clone(), info.name.clone(), request);
    record.spec.cpu = size.cpu;
    record.spec.memory_mb = size.memory_mb;
    record.spec.engine = placed.engine;
    record.spec.isolation = placed.isolation;
    let mut derived = DerivedVolumes::default();
    let source = match of_template {
        TemplateVolumeUse::None => Source::Template(info.name.clone()),
        TemplateVolumeUse::Fresh(template, name) => {
            derived.add_named(sandboxes, &mut record, &template, name).await?;
            Source::Template(info.name.clone())
        }
        TemplateVolumeUse::Existing => Source::TemplateDisk(info.name.clone()),
    };
    record.spec.volumes.extend(volumes);
    let size = (size != own).then_some(size);
    let (client, promise) = (placed.client, Some(placed.promise));
    Ok(Plan { record, source, size, client, promise, derived })
}

fn wants_hardware(request: &CreateSandbox) -> bool {
    request.isolation == Some(RequiredIsolation::Hardware)
}

async fn plan_from_snapshot(
    sandboxes: &Sandboxes,
    workspace: WorkspaceId,
    request: &CreateSandbox,
    snapshot: SnapshotRecord,
    for_user: bool,
) -> Result<Plan> {
    if request.volumes.as_ref().is_some_and(|volumes| !volumes.is_empty()) {
        let message = "a sandbox from a snapshot gets copies of the snapshot's volumes; leave out `volumes`";
        return Err(Error::bad_request(message));
    }
    let id = snapshot.id.clone();
    if for_user {
        super::snapshot::check_unsealed(sandboxes, &snapshot).await?;
    }
    check_template(sandboxes, request.template.as_deref(), &snapshot)?;
    let client = sandboxes.hosts.client(&snapshot.host)?;
    let template = snapshot.spec.template.clone();
    let mut record = new_record(workspace, snapshot.host.clone(), template, request);
    let (engine, isolation) = sandboxes.hosts.engine(&snapshot.host);
    if is_emulated(&isolation) {
        if sandboxes.avoids_emulation().await? {
            return Err(PlacementRefused::Emulated.into());
        }
        if wants_hardware(request) {
            let message = format!(
                "snapshot {id} is on a host without hardware virtualization; \
                                   leave out `isolation`"
            );
            return Err(Error::conflict(message));
        }
    }
    let env = std::mem::take(&mut record.spec.env);
    record.spec = SandboxSpecRecord {
        from_snapshot: Some(id.clone()),
        cpu: snapshot.spec.cpu,
        memory_mb: snapshot.spec.memory_mb,
        env: snapshot.spec.env.into_iter().chain(env).collect(),
        from_template: snapshot.spec.from_template,
        user: snapshot.spec.user,
        cwd: snapshot.spec.cwd,
        network: request.network.clone().unwrap_or(snapshot.spec.network),
        engine,
        isolation,
        ..record.spec
    };
    let mut derived = DerivedVolumes::default();
    derived.add(sandboxes, &mut record, &snapshot.spec.volumes).await?;
    Ok(Plan { record, source: Source::Snapshot(id.clone()), size: None, client, promise: None, derived })
}

/// Creates a machine from a template of the workspace: a snapshot with the process defaults of its image.
async fn plan_from_version(
    sandboxes: &Sandboxes,
    workspace: WorkspaceId,
    mut request: CreateSandbox,
    version: super::template::Version,
) -> Result<Plan> {
    let super::template::Version { name, owner, snapshot, config, published } = version;
    let is_foreign = owner != workspace;
    let snapshot = match super::snapshot::find(sandboxes, &owner, &snapshot).await {
        // Deleted since it was found. Its id is its owner's affair.
        Err(error) if is_foreign && error.code == ErrorCode::NotFound => {
            return Err(Error::not_found("template", &name));
        }
        found => found?,
    };
    if is_foreign && !snapshot.spec.volumes.is_empty() {
        let message = format!("template `{name}` has volumes, which other workspaces cannot use");
        return Err(Error::conflict(message));
    }
    if is_foreign {
        // The owner's policy names the owner's networks.
        request.network.get_or_insert_default();
    }
    request.template = None;
    // The template service's own snapshots are not sealed to its users.
    let mut plan = plan_from_snapshot(sandboxes, workspace, &request, snapshot, published).await?;
    let spec = &mut plan.record.spec;
    // The image's variables win over those of the machine that it was made from, and the request's over both.
    spec.env.extend(config.env);
    spec.env.extend(request.env.unwrap_or_default());
    (spec.from_template, spec.from_snapshot) = (Some(name), None);
    (spec.user, spec.cwd) = (config.user, config.workdir);
    Ok(plan)
}

/// Refuses a template other than the snapshot's own, because it would be ignored.
fn check_template(sandboxes: &Sandboxes, given: Option<&str>, snapshot: &SnapshotRecord) -> Result<()> {
    let own = &snapshot.spec.template;
    let Some(given) = given.filter(|given| given != own && !TEMPLATES_UNASKED.contains(given)) else {
        return Ok(());
    };
    let alias = |known: &Template| known.name == *own && known.aliases.iter().any(|alias| alias == given);
    if sandboxes.hosts.templates().iter().any(alias) {
        return Ok(());
    }
    Err(Error::bad_request(format!(
        "snapshot `{}` is from template `{own}`, not `{given}`; leave out `template`",
        snapshot.id
    )))
}

fn new_record(
    workspace: WorkspaceId,
    host: pandastack_types::HostId,
    template: String,
    request: &CreateSandbox,
) -> SandboxRecord {
    let at = now();
    let defaults = SandboxSpecRecord::default();
    let spec = SandboxSpecRecord {
        name: request.name.clone(),
        env: request.env.clone().unwrap_or_default(),
        ttl_seconds: request.ttl_seconds.unwrap_or(defaults.ttl_seconds),
        persistent: request.persistent.unwrap_or(false),
        idle_timeout_seconds: request.idle_timeout_seconds.unwrap_or(defaults.idle_timeout_seconds),
        idle_given: request.idle_timeout_seconds.is_some(),
        checkpoints: request.checkpoints.filter(|wanted| wanted.every_seconds > 0),
        on_timeout: request.on_timeout.unwrap_or_default(),
        keep_on_timeout: request.keep_on_timeout.unwrap_or_default(),
        network: request.network.clone().unwrap_or_default(),
        visibility: request.visibility.unwrap_or_default(),
        host_header: request.host_header.clone(),
        ..defaults
    };
    SandboxRecord {
        id: SandboxId::random(),
        workspace,
        host,
        state: SandboxState::Creating,
        incarnation: 1,
        template,
        parent: None,
        tree: None,
        owner: None,
        created_at: at,
        changed_at: at,
        expires_at: if spec.persistent { None } else { after_seconds(at, spec.ttl_seconds) },
        metadata: request.metadata.clone().unwrap_or_default(),
        spec,
    }
}
