//! Starting an emulator process for a boot or a restore, up to the paused machine.
//!
//! ```text
//!  prepare sockets, files, tap -> connect to both sockets -> start the process -> greeting -> lock in -> load state
//! ```
//!
//! The connections are made before the process exists, so its first answers need no polling and the guest finds its host
//! connected from its first instruction. The process is locked in before it reads anything a guest could have written.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pandastack_engine::{Confinement, EngineError, MachineFiles, Result, Shape};
use pandastack_qemu_shim::protocol::Request;
use serde_json::json;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Sender;
use tokio::time::timeout;

use crate::command_line::Origin;
use crate::endpoints::{self, Endpoints, FileIdentities, Paths};
use crate::host::Host;
use crate::limits::{COMMAND_MAX, START_MAX, STATE_MAX};
use crate::machine::{Details, Parts, QemuMachine};
use crate::migration::{self, DESCRIPTOR_NAME};
use crate::qmp::Qmp;
use crate::shim_client;
use crate::spawn::Launch;
use crate::volume;
use pandastack_engine::completion;
use pandastack_engine::explain::explain;
use pandastack_engine::process::{KillOnDrop, Process};

/// Read at a time of a device state: all of it, as a rule.
const READ_BYTES: usize = 1 << 20;

/// The machine to start.
pub(crate) struct Start {
    pub(crate) shape: Shape,
    pub(crate) place: MachineFiles,
    pub(crate) memory: PathBuf,
    pub(crate) origin: Origin,
    /// Device state to load, with [`Origin::State`].
    pub(crate) state: Option<PathBuf>,
}

/// A process that has been started and connected to, and nothing more.
struct StartedProcess {
    pidfd: OwnedFd,
    connections: Connections,
}

/// Our ends of a machine's sockets, and the identity of its files.
struct Connections {
    qmp: std::os::unix::net::UnixStream,
    guest: std::os::unix::net::UnixStream,
    files: FileIdentities,
}

/// Starts a machine; it is paused.
pub(crate) async fn start(host: Arc<Host>, start: Start) -> Result<Arc<QemuMachine>> {
    let undo = |machine: Arc<QemuMachine>| async move { machine.process.send_kill() };
    completion::run(&host.tasks, "starting the emulator", make(host.clone(), start), undo).await
}

async fn make(host: Arc<Host>, mut start: Start) -> Result<Arc<QemuMachine>> {
    let blocking_host = host.clone();
    let spawned = tokio::task::spawn_blocking(move || {
        let started = spawn(&blocking_host, &mut start)?;
        Ok::<_, EngineError>((start, started))
    });
    let panicked = |error: tokio::task::JoinError| EngineError::Vmm {
        step: "starting the emulator",
        detail: error.to_string(),
    };
    let (start, StartedProcess { pidfd, connections }) = spawned.await.map_err(panicked)??;
    let process = Process::watch(pidfd, &host.tasks)?;
    let guard = KillOnDrop::new(process.clone());
    let paths = Paths::new(&start.place.runtime_dir);
    match become_machine(host, start, connections, process.clone()).await {
        Ok(machine) => {
            guard.disarm();
            Ok(machine)
        }
        Err(error) => Err(explain(error, &process, &paths.log()).await),
    }
}

/// Speaks to a new process until it is a paused machine.
async fn become_machine(
    host: Arc<Host>,
    start: Start,
    connections: Connections,
    process: Process,
) -> Result<Arc<QemuMachine>> {
    let Start { shape, place, memory, state, .. } = start;
    let paths = Paths::new(&place.runtime_dir);
    let qmp = Qmp::connect(from_std(connections.qmp, &paths.qmp())?, START_MAX).await?;
    migration::configure(&qmp).await?;
    let ram_address = lock_in(&host, place.confinement, &paths, shape).await?;
    if let Some(state) = &state {
        load_state(&qmp, state).await?;
    }
    let (files, volume_bytes) = volume::attach(&paths, connections.files, place.volumes).await?;
    volume::announce(&qmp, &volume::Sizes::default(), &volume_bytes).await?;
    let parts = Parts {
        shape,
        runtime_dir: place.runtime_dir,
        disk: place.disk,
        console: place.console,
        base_memory: memory,
        confinement: place.confinement,
        details: Details { ram_address, files, volume_bytes },
        announced: volume_bytes,
        process,
        qmp,
        guest: Some(from_std(connections.guest, &paths.guest())?),
    };
    let machine = QemuMachine::new(host, parts)?;
    machine.require_paused("starting the machine").await?;
    machine.process.set_oom_score(machine.record.confinement);
    machine.limit_files();
    Ok(machine)
}

/// Locks the process in and returns where it has guest memory.
async fn lock_in(host: &Host, confinement: Confinement, paths: &Paths, shape: Shape) -> Result<u64> {
    let step = "locking in the emulator";
    let (identity, lockdown) = host.lockdown(confinement);
    let confine = Request::Confine { identity, lockdown };
    let (reply, _) = shim_client::request(&paths.shim(), step, &confine, &[], COMMAND_MAX).await?;
    if reply.ram_bytes == shape.memory_bytes() {
        return Ok(reply.ram_address);
    }
    let detail = format!(
        "the preloaded library saw {} bytes of guest memory instead of {}",
        reply.ram_bytes,
        shape.memory_bytes()
    );
    Err(EngineError::Vmm { step: "mapping guest memory", detail })
}

fn from_std(stream: std::os::unix::net::UnixStream, path: &Path) -> Result<UnixStream> {
    UnixStream::from_std(stream).map_err(EngineError::io("use the socket", path))
}

fn spawn(host: &Host, start: &mut Start) -> Result<StartedProcess> {
    let Start { shape, place, memory, origin, .. } = start;
    let (shape, memory) = (*shape, memory.as_path());
    let memory_file = File::open(memory).map_err(EngineError::io("open the memory file", memory))?;
    let len = memory_file
        .metadata()
        .map_err(EngineError::io("read the metadata of the memory file", memory))?
        .len();
    if len != shape.memory_bytes() {
        let detail = format!("{} has {len} bytes instead of {}", memory.display(), shape.memory_bytes());
        return Err(EngineError::Vmm { step: "using the memory file", detail });
    }
    let endpoints = Endpoints::prepare(place, &host.namespaces)?;
    let paths = Paths::new(&place.runtime_dir);
    let qmp =
        endpoints::connect(&paths.qmp()).map_err(EngineError::io("connect to the emulator", paths.qmp()))?;
    let guest =
        endpoints::connect(&paths.guest()).map_err(EngineError::io("connect to the guest", paths.guest()))?;
    let files = endpoints.files;
    let launch = Launch { host, shape, origin, endpoints, memory: memory_file };
    Ok(StartedProcess { pidfd: launch.start()?, connections: Connections { qmp, guest, files } })
}

async fn load_state(qmp: &Qmp, path: &Path) -> Result<()> {
    let step = "loading device state";
    let failed = |action| EngineError::io(action, path);
    let state = File::open(path).map_err(failed("open the state file"))?;
    let (reading, writing) = migration::pipe().map_err(failed("make a pipe for"))?;
    rustix::io::ioctl_fionbio(&writing, true).map_err(|error| failed("make a pipe for")(error.into()))?;
    let writing = Sender::from_owned_fd(writing).map_err(failed("make a pipe for"))?;
    let mut events = qmp.subscribe();
    qmp.give_descriptor(DESCRIPTOR_NAME, reading.as_fd()).await?;
    drop(reading);
    let load = async {
        qmp.command("migrate-incoming", json!({ "uri": format!("fd:{DESCRIPTOR_NAME}") })).await?;
        migration::wait(&mut events, step).await
    };
    let feed = async {
        match feed(state, writing).await {
            // The pipe of an emulator that exited breaks, which does not give the reason: its own
            // message does.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(failed("read the state file")(error)),
            _ => Ok(()),
        }
    };
    let both = async { tokio::try_join!(load, feed).map(drop) };
    let late = EngineError::Deadline { step, limit_ms: STATE_MAX.as_millis() as u64 };
    timeout(STATE_MAX, both).await.unwrap_or(Err(late))?;
    // Newer emulators activate disks only when the machine runs, and volumes get their sizes before that.
    qmp.command_if_known("blockdev-set-active", json!({ "active": true })).await
}

/// Writes the whole state into a pipe, and closes that.
async fn feed(state: File, mut writing: Sender) -> std::io::Result<()> {
    let mut state = BufReader::with_capacity(READ_BYTES, tokio::fs::File::from_std(state));
    tokio::io::copy_buf(&mut state, &mut writing).await?;
    writing.shutdown().await
}
