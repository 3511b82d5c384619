//! Bringing machines up: from a snapshot, or from a kernel and a disk. [`crate::launch_children`]
//! brings up forks of a running one.
//!
//! Every machine passes the identity gate before anyone can use it: its processors run, but the guest keeps
//! user processes frozen until entropy, clock, names and environment are fresh. A launch that fails at any
//! step releases what it took; see [`MachineResources`].

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pandastack_engine::{Boot, Confinement, Machine, MachineFiles, Restore};
use pandastack_fault as fault;
use pandastack_guest_proto::client::GuestClient;
use pandastack_guest_proto::message::{Identity, VolumeMount};
use pandastack_net::Resolved;
use pandastack_types::Transition;
use pandastack_types::agent_api::SandboxSpec;

use crate::blocking::blocking;
use crate::components;
use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;
use crate::identity::{self, identity, realtime_ns};
use crate::kernel_files::KernelFiles;
use crate::machine_resources::{MachineResources, Origin};
use crate::record::{BootMode, SandboxRecord, write_json, write_json_durably};
use crate::running_machine::{RunningMachine, abandon, kill};
use crate::snapshot::Snapshot;
use crate::volume;

/// Longest time for a guest to answer once its processors run. Allows for emulation and a loaded
/// host.
pub(crate) const GUEST_ANSWER_MAX: Duration = Duration::from_secs(60);

/// Durations of the stages of a launch.
pub(crate) struct Stages {
    began: Instant,
    last: Instant,
    micros: BTreeMap<String, u64>,
}

impl Stages {
    pub(crate) fn begin() -> Self {
        let now = Instant::now();
        Self { began: now, last: now, micros: BTreeMap::new() }
    }

    pub(crate) fn mark(&mut self, stage: &str) {
        let now = Instant::now();
        self.micros.insert(stage.to_owned(), (now - self.last).as_micros() as u64);
        self.last = now;
    }

    fn finish(self, record: &mut SandboxRecord) {
        record.boot_ms = self.began.elapsed().as_millis() as u64;
        record.boot_stages_us = self.micros;
    }
}

/// Creates a sandbox's machine from a snapshot.
pub(crate) async fn restore(
    host: &HostResources,
    record: &mut SandboxRecord,
    snapshot: &Snapshot,
    mut stages: Stages,
) -> Result<RunningMachine> {
    snapshot.verify(&host.shutdown).await?;
    record.components = components::restored(host, &snapshot.manifest.components);
    let originals = snapshot.volumes(&host.layout);
    let mounted = originals.len();
    volume::derive(host, originals, &record.spec.volumes).await?;
    let origin =
        Origin { memory: &snapshot.memory(), disk: Some(&snapshot.disk()), shape: snapshot.manifest.shape };
    let spare = host.spares.take();
    if let Some(spare) = &spare {
        record.uid = spare.uid;
    }
    let confinement = Confinement::Full { uid: record.uid, gid: record.uid };
    let dir = host.layout.machine(&record.spec.id);
    let prepared = MachineResources::prepare_in(
        host,
        spare,
        &record.group_name(),
        dir,
        &origin,
        confinement,
        &record.spec.network,
    )
    .await?;
    let (resources, place) = with_volumes(host, &record.spec, prepared).await?;
    fault::point("restore.prepared").await;
    stages.mark("prepare");
    let restore = Restore { shape: origin.shape, place, state: snapshot.state(), memory: resources.memory() };
    let machine = host.engine.restore(restore).await.map_err(AgentError::from);
    fault::point("restore.started").await;
    stages.mark("restore");
    let of_sandbox = snapshot.manifest.sandbox.is_some();
    let remembered = SavedMemory { of_sandbox, mounted, resolved: &snapshot.manifest.resolved };
    finish(host, record, machine, resources, Some(remembered), stages).await
}

/// Creates a sandbox's machine from a kernel and the disk it had, with empty memory.
pub(crate) async fn boot(
    host: &HostResources,
    record: &mut SandboxRecord,
    disk: &Path,
    kernel: KernelFiles,
) -> Result<RunningMachine> {
    let mut stages = Stages::begin();
    let (store, shape) = (host.store.clone(), record.shape);
    let empty = blocking(move || {
        let staging = store.stage()?;
        store.create_sparse(&staging.path().join("memory"), shape.memory_bytes())?;
        Ok::<_, AgentError>(staging)
    })
    .await?;
    // Linked into the machine's directory, so it outlives the staging directory.
    let memory = empty.path().join("memory");
    crate::snapshot::keep_private(&memory)?;
    let origin = Origin { memory: &memory, disk: Some(disk), shape };
    let confinement = Confinement::Full { uid: record.uid, gid: record.uid };
    let dir = host.layout.machine(&record.spec.id);
    let prepared = MachineResources::prepare(
        host,
        &record.group_name(),
        dir,
        &origin,
        confinement,
        &record.spec.network,
    )
    .await?;
    let (resources, place) = with_volumes(host, &record.spec, prepared).await?;
    stages.mark("prepare");
    let KernelFiles { kernel, initrd, args, release } = kernel;
    record.components = components::booted(host, Some(release));
    record.outdated = None;
    let boot = Boot { shape, place, kernel, initrd, kernel_args: args, memory: resources.memory() };
    let machine = host.engine.boot(boot).await.map_err(AgentError::from);
    stages.mark("boot");
    record.boot_mode = BootMode::Boot;
    finish(host, record, machine, resources, None, stages).await
}

/// Attaches the machine's volumes. If one of them is not available, releases all resources.
pub(crate) async fn with_volumes(
    host: &HostResources,
    spec: &SandboxSpec,
    (resources, place): (MachineResources, MachineFiles),
) -> Result<(MachineResources, MachineFiles)> {
    match volume::open_all(host, &spec.volumes).await {
        Ok(volumes) => Ok((resources, MachineFiles { volumes, ..place })),
        Err(error) => {
            abandon(host, resources).await;
            Err(error)
        }
    }
}

/// The saved memory that a machine starts with.
#[derive(Clone, Copy)]
pub(crate) struct SavedMemory<'a> {
    /// Whether the snapshot is of a sandbox. Its outbound connections belong to another address and
    /// time.
    pub of_sandbox: bool,
    /// Number of mounted volumes, at the first places. To look after them would cost an emulated guest
    /// longer than the fork.
    pub mounted: usize,
    /// Addresses that its programs resolved, and continue with.
    pub resolved: &'a [Resolved],
}

/// How a machine starts to run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// From its memory.
    GoesOn,
    /// From memory that knows the file system of a volume that it writes.
    GoesOnOnce,
    /// From its disk.
    Boots,
}

/// Starts a machine, from its memory or, without one, from its disk.
pub(crate) async fn finish(
    host: &HostResources,
    record: &mut SandboxRecord,
    machine: Result<Arc<dyn Machine>>,
    resources: MachineResources,
    memory: Option<SavedMemory<'_>>,
    mut stages: Stages,
) -> Result<RunningMachine> {
    let machine = match machine {
        Ok(machine) => machine,
        Err(error) => {
            abandon(host, resources).await;
            return Err(error);
        }
    };
    let remembered = memory.unwrap_or(SavedMemory { of_sandbox: false, mounted: 0, resolved: &[] });
    resources.restore_resolved(host, remembered.resolved).await;
    let identity = identity(record, &host.config.guests, remembered.of_sandbox);
    let once = remembered.mounted > 0 && record.sleeps_on_disk() && record.writes_volumes();
    let start = match memory {
        None => Start::Boots,
        Some(_) if once => Start::GoesOnOnce,
        Some(_) => Start::GoesOn,
    };
    let opened = open_gate(host, record, machine.as_ref(), &resources, identity, start, &mut stages).await;
    let new_volumes = record.spec.volumes.len() > remembered.mounted;
    let mounted = match opened {
        Ok(guest) if new_volumes => {
            let mounted = mount_volumes(host, &record.spec, remembered.mounted, &guest).await;
            stages.mark("volumes");
            mounted.map(|()| guest)
        }
        opened => opened,
    };
    match mounted {
        Ok(guest) => {
            stages.finish(record);
            Ok(RunningMachine::new(host, machine, Some(guest), resources))
        }
        Err(error) => {
            kill(machine.as_ref()).await;
            abandon(host, resources).await;
            Err(error)
        }
    }
}

/// Writes the record, then lets the machine run, so that the successor of a killed agent finds its
/// process; the caller writes the record again with the new state. The write is not synced: a power
/// loss also ends the process, and a sleeping sandbox's record has a second name.
///
/// Memory of [`Start::GoesOnOnce`] can be used for one run: after the first write to a volume,
/// memory and volume no longer match, and waking from it again would destroy the volume. So the
/// record is durably marked running before the machine runs, and any failure from then on counts as
/// the loss of a running machine.
async fn open_gate(
    host: &HostResources,
    record: &mut SandboxRecord,
    machine: &dyn Machine,
    resources: &MachineResources,
    identity: Identity,
    start: Start,
    stages: &mut Stages,
) -> Result<GuestClient> {
    record.machine = Some(machine.record().clone());
    record.slot = resources.slot.map(|index| u32::from(index.0));
    let path = host.layout.record(&record.spec.id);
    if start == Start::GoesOnOnce {
        let state = record.state.step(Transition::Woken)?;
        let running = SandboxRecord { state, residency: None, ..record.clone() };
        *record = blocking(move || write_json_durably(&path, &running).map(|()| running)).await?;
    } else {
        write_json(&path, record)?;
    }
    fault::point("launch.recorded").await;
    let stream = machine.connect_guest().await?;
    stages.mark("record");
    // Entering a control group waits for a grace period of the host's kernel, some milliseconds.
    // The guest's kernel may run during that wait: user processes are frozen until the identity is
    // set, and the start is reported only after both are done.
    let (cgroup, pid, dir) = (resources.cgroup().clone(), machine.record().pid, resources.dir.clone());
    let entered =
        blocking(move || cgroup.add(pid).map_err(AgentError::io("move into the control group", &dir)));
    let opened = async {
        machine.resume().await?;
        if start != Start::Boots {
            return identity::connect(stream, identity, record, &host.config.guests).await;
        }
        // The guest answers when it has booted, seconds from now: the time of day is read then.
        let guest = GuestClient::connect(stream, GUEST_ANSWER_MAX).await?;
        let applied = guest.set_identity(Identity { realtime_ns: realtime_ns(), ..identity }).await?;
        Ok::<_, AgentError>((guest, applied))
    };
    let (entered, opened) = tokio::join!(entered, opened);
    entered?;
    let (guest, applied) = opened?;
    tracing::debug!(sandbox = %record.spec.id, guest_us = applied.elapsed_us, "identity set");
    for warning in &applied.warnings {
        tracing::warn!(sandbox = %record.spec.id, warning, "a step of the identity failed");
    }
    stages.mark("gate");
    Ok(guest)
}

/// Mounts the volumes of a machine but the first `mounted` ones.
pub(crate) async fn mount_volumes(
    host: &HostResources,
    spec: &SandboxSpec,
    mounted: usize,
    guest: &GuestClient,
) -> Result<()> {
    for (place, volume) in spec.volumes.iter().enumerate().skip(mounted) {
        let mount = VolumeMount {
            serial: host.engine.capabilities().volume_device(place),
            path: volume.path.as_str().into(),
            read_only: volume.read_only,
        };
        guest.mount_volume(mount).await?;
    }
    Ok(())
}
