//! Starting a machine for a boot or a restore, up to the paused state.
//!
//! ```text
//!  start -> API socket -> files into the root -> outputs -> configure      boot; the first resume starts it
//!                                                      \-> load -> volumes  restore
//! ```

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pandastack_engine::explain::explain;
use pandastack_engine::process::{KillOnDrop, Process};
use pandastack_engine::{
    Confinement, EngineError, MachineFiles, RUNTIME_DIR_BYTES_MAX, Result, Shape, VOLUMES_MAX, Volume,
    completion, volume_serial,
};

use crate::api::types::{MemoryBackend, SnapshotLoad};
use crate::config::Launcher;
use crate::devices;
use crate::engine::Host;
use crate::machine::{Control, Details, FirecrackerMachine, Parts};
use crate::root::{Access, Owner, Placed, Root, blocking};
use crate::spawn::{self, Spawn};
use crate::tap::Tap;

/// User and group of zygotes. Firecracker machines are not forked, so a zygote is jailed like any
/// other machine.
const ZYGOTE_OWNER: Owner = Owner { uid: 65_534, gid: 65_534 };

/// What a machine starts from.
#[derive(Debug)]
pub(crate) enum Origin {
    Kernel { kernel: PathBuf, initrd: PathBuf, args: String },
    State(PathBuf),
}

/// A machine to start.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) shape: Shape,
    pub(crate) place: MachineFiles,
    pub(crate) memory: PathBuf,
    pub(crate) origin: Origin,
}

/// Starts a machine. If the caller goes away meanwhile, the process is killed.
pub(crate) async fn start(host: Arc<Host>, start: Start) -> Result<Arc<FirecrackerMachine>> {
    let tasks = host.tasks.clone();
    let undo = |machine: Arc<FirecrackerMachine>| async move { machine.control.process.send_kill() };
    completion::run(&tasks, "starting Firecracker", make(host, start), undo).await
}

/// Files of a machine, opened and checked before the process is spawned.
struct Files {
    placed: Vec<Placed>,
    /// Names of volume places without a volume.
    empty: Vec<String>,
    volumes: usize,
}

async fn make(host: Arc<Host>, start: Start) -> Result<Arc<FirecrackerMachine>> {
    let spawning = host.clone();
    let prepared = blocking("starting Firecracker", move || prepare(&spawning, start)).await?;
    let Prepared { start, files, tap, pidfd, owner } = prepared;
    let process = Process::watch(pidfd, &host.tasks)?;
    let guard = KillOnDrop::new(process.clone());
    let log = spawn::log_path(&start.place.runtime_dir);
    match become_machine(host, start, files, tap, owner, process.clone()).await {
        Ok(machine) => {
            guard.disarm();
            Ok(machine)
        }
        Err(error) => Err(explain(error, &process, &log).await),
    }
}

struct Prepared {
    start: Start,
    files: Files,
    tap: Option<Tap>,
    pidfd: std::os::fd::OwnedFd,
    owner: Option<Owner>,
}

/// Opens all files and spawns the process. Blocks.
fn prepare(host: &Host, mut start: Start) -> Result<Prepared> {
    check_runtime_dir(&start.place.runtime_dir)?;
    let owner = match (host.launcher, start.place.confinement) {
        (Launcher::Direct, _) => None,
        (Launcher::Jailer, Confinement::Full { uid, gid }) => Some(Owner { uid, gid }),
        (Launcher::Jailer, Confinement::Zygote) => Some(ZYGOTE_OWNER),
    };
    let files = open_files(&mut start)?;
    let uid = owner.map_or(rustix::process::geteuid().as_raw(), |owner| owner.uid);
    let tap = match (start.place.tap.take(), owner) {
        (Some(tap), _) => Some(Tap::hand_over(tap, uid)?),
        (None, Some(_)) => Some(Tap::unconnected(uid)?),
        (None, None) => None,
    };
    let held = files.placed.iter().filter(|placed| placed.name.starts_with("volume"));
    let spawn = Spawn {
        programs: &host.programs,
        owner,
        runtime_dir: &start.place.runtime_dir,
        network: tap.as_ref().map(|tap| tap.namespace.as_fd()),
        held: held.map(|placed| placed.file.as_fd()).collect(),
    };
    let pidfd = spawn.start()?;
    Ok(Prepared { start, files, tap, pidfd, owner })
}

/// Configures or loads a new process until it is a paused machine.
async fn become_machine(
    host: Arc<Host>,
    start: Start,
    files: Files,
    tap: Option<Tap>,
    owner: Option<Owner>,
    process: Process,
) -> Result<Arc<FirecrackerMachine>> {
    let Start { shape, place, memory, origin } = start;
    let root = match owner {
        Some(owner) => Root::Jail { process: process.clone(), owner },
        None => Root::Directory(spawn::directory(&place.runtime_dir)),
    };
    let control = Control::new(&root, process);
    spawn::wait_until_listening(&place.runtime_dir, control.api.socket(), &control.process).await?;
    root.place(files.placed, files.empty).await?;
    control.checked("setting the machine's outputs", devices::set_outputs(&control.api)).await?;
    let tap = tap.as_ref().map(|tap| tap.name.as_str());
    let loaded = match &origin {
        Origin::Kernel { args, .. } => {
            let configured = devices::configure(&control.api, shape, args, tap);
            control.checked("configuring the machine", configured).await?;
            false
        }
        Origin::State(_) => {
            load(&control, tap, files.volumes).await?;
            true
        }
    };
    control.process.set_oom_score(place.confinement);
    let details = Details { owner, loaded, volumes: files.volumes };
    let parts = Parts { shape, place, memory, details, root, control };
    FirecrackerMachine::new(host, parts)
}

/// Loads the snapshot in the root. The machine stays paused.
async fn load(control: &Control, tap: Option<&str>, volumes: usize) -> Result<()> {
    let snapshot = SnapshotLoad {
        snapshot_path: devices::STATE.to_owned(),
        mem_backend: MemoryBackend { backend_type: "File", backend_path: devices::MEMORY.to_owned() },
        track_dirty_pages: true,
        resume_vm: false,
        network_overrides: devices::tap_override(tap),
    };
    control.checked("loading the snapshot", control.api.load_snapshot(&snapshot)).await?;
    for place in 0..volumes {
        // The snapshot may hold a disk of another size at this place, or none.
        control.checked("attaching a volume", devices::announce_volume(&control.api, place)).await?;
    }
    Ok(())
}

fn open_files(start: &mut Start) -> Result<Files> {
    let Start { shape, place, memory, origin } = start;
    let length = fs::metadata(&*memory).map_err(EngineError::io("look at the memory file", &*memory))?.len();
    if length != shape.memory_bytes() {
        let detail = format!("{} has {length} bytes instead of {}", memory.display(), shape.memory_bytes());
        return Err(EngineError::Vmm { step: "using the memory file", detail });
    }
    let mut placed = vec![Placed::open(devices::DISK, &place.disk, Access::Own)?];
    match origin {
        Origin::Kernel { kernel, initrd, .. } => {
            placed.push(Placed::open(devices::KERNEL, kernel, Access::Read)?);
            placed.push(Placed::open(devices::INITRD, initrd, Access::Read)?);
        }
        Origin::State(state) => {
            placed.push(Placed::open(devices::STATE, state, Access::Read)?);
            placed.push(Placed::open(devices::MEMORY, memory, Access::Read)?);
        }
    }
    for (name, path) in [
        (devices::CONSOLE, place.console.clone()),
        (devices::METRICS, spawn::metrics_path(&place.runtime_dir)),
    ] {
        let file = spawn::create_output(&path)?;
        placed.push(Placed { name: name.to_owned(), path, file, access: Access::Own });
    }
    let volumes = std::mem::take(&mut place.volumes);
    let count = volumes.len();
    if count > VOLUMES_MAX {
        let detail = format!("{count} volumes, and a machine has places for {VOLUMES_MAX}");
        return Err(EngineError::Vmm { step: "attaching a volume", detail });
    }
    for (index, volume) in volumes.into_iter().enumerate() {
        placed.push(place_volume(index, volume)?);
    }
    let empty = (count..VOLUMES_MAX).map(volume_serial).collect();
    Ok(Files { placed, empty, volumes: count })
}

/// A volume as a file in the root.
fn place_volume(index: usize, volume: Volume) -> Result<Placed> {
    let Volume { image, bytes } = volume;
    let path = path_of(&image)?;
    let writable =
        rustix::fs::fcntl_getfl(&image).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::RDWR));
    if !writable {
        let reason = format!(
            "{} is open read-only, and Firecracker cannot make a writable disk read-only",
            path.display()
        );
        return Err(EngineError::Unsupported { action: "attach a read-only volume", reason });
    }
    if image.metadata().map_err(EngineError::io("look at the volume", &path))?.size() < bytes {
        image.set_len(bytes).map_err(EngineError::io("size the volume", &path))?;
    }
    Ok(Placed { name: volume_serial(index), path, file: image, access: Access::Own })
}

/// Path of an open file.
fn path_of(file: &File) -> Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    fs::read_link(&link).map_err(EngineError::io("find the volume", link))
}

fn check_runtime_dir(dir: &Path) -> Result<()> {
    if dir.as_os_str().len() <= RUNTIME_DIR_BYTES_MAX && dir.is_absolute() {
        return Ok(());
    }
    let detail = format!("{} must be absolute and at most {RUNTIME_DIR_BYTES_MAX} bytes long", dir.display());
    Err(EngineError::Vmm { step: "using the runtime directory", detail })
}
