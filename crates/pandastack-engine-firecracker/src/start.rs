//! Starting a machine for a boot or a restore, up to the paused state.
//!
//! ```text
//!  process -> API socket -> files into the root -> outputs -> configure      boot; the first resume starts it
//!                                                      \-> load -> volumes  restore
//! ```

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use pandastack_engine::explain::explain;
use pandastack_engine::{
    EngineError, MachineFiles, Result, Shape, Spare, VOLUMES_MAX, Volume, completion, volume_serial,
};

use crate::api::types::{MemoryBackend, SnapshotLoad};
use crate::devices;
use crate::empty::EmptyProcess;
use crate::engine::Host;
use crate::machine::{Control, Details, FirecrackerMachine, Parts};
use crate::root::{Access, PlacedFile, blocking};
use crate::spawn;

/// Origin of a machine.
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

/// Starts a machine. If the caller drops the future, the process is killed.
pub(crate) async fn start(host: Arc<Host>, start: Start) -> Result<Arc<FirecrackerMachine>> {
    let tasks = host.tasks.clone();
    let undo = |machine: Arc<FirecrackerMachine>| async move { machine.control.process.send_kill() };
    completion::run(&tasks, "starting Firecracker", make(host, start), undo).await
}

/// Files of a machine, opened and checked before the process is spawned.
struct Files {
    placed: Vec<PlacedFile>,
    /// Names of volume places without a volume.
    empty: Vec<String>,
    volumes: usize,
}

impl Files {
    fn volume_files(&self) -> Vec<BorrowedFd<'_>> {
        let volumes = self.placed.iter().filter(|placed| placed.name.starts_with("volume"));
        volumes.map(|placed| placed.file.as_fd()).collect()
    }
}

async fn make(host: Arc<Host>, mut start: Start) -> Result<Arc<FirecrackerMachine>> {
    let spare = start.place.spare.take().and_then(Spare::into_inner::<EmptyProcess>);
    // Before the process, so that a missing file costs none.
    let (start, files) = blocking("opening the machine's files", move || {
        let files = open_files(&mut start)?;
        Ok((start, files))
    })
    .await?;
    start_in(host, start, files, spare).await
}

async fn start_in(
    host: Arc<Host>,
    mut start: Start,
    files: Files,
    spare: Option<EmptyProcess>,
) -> Result<Arc<FirecrackerMachine>> {
    let place = &mut start.place;
    let empty = match spare {
        Some(spare) => {
            // A spare process must not start a machine after its program was removed.
            host.programs.check()?;
            spare.or_another(&host).await?
        }
        None => EmptyProcess::start(&host, &place.runtime_dir, place.tap.take(), place.confinement).await?,
    };
    let log = spawn::log_path(&place.runtime_dir);
    match become_machine(host, start, files, &empty).await {
        Ok(machine) => {
            empty.disarm();
            Ok(machine)
        }
        Err(error) => Err(explain(error, &empty.control.process, &log).await),
    }
}

/// Configures or loads an empty process until it is a paused machine.
async fn become_machine(
    host: Arc<Host>,
    start: Start,
    files: Files,
    empty: &EmptyProcess,
) -> Result<Arc<FirecrackerMachine>> {
    let Start { shape, place, memory, origin } = start;
    let control = &empty.control;
    empty.hold(&files.volume_files())?;
    empty.root.place(files.placed, files.empty).await?;
    control.checked("setting the machine's console", devices::set_console(&control.api)).await?;
    let tap = empty.tap.as_ref().map(|tap| tap.name.as_str());
    let loaded = match &origin {
        Origin::Kernel { args, .. } => {
            let configured = devices::configure(&control.api, shape, args, tap);
            control.checked("configuring the machine", configured).await?;
            false
        }
        Origin::State(_) => {
            load(control, tap, files.volumes).await?;
            true
        }
    };
    control.process.set_oom_score(place.confinement);
    let details = Details { owner: empty.owner, loaded, volumes: files.volumes };
    let (root, control) = (empty.root.clone(), control.clone());
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
    let length = fs::metadata(&*memory)
        .map_err(EngineError::io("read the metadata of the memory file", &*memory))?
        .len();
    if length != shape.memory_bytes() {
        let detail = format!("{} has {length} bytes instead of {}", memory.display(), shape.memory_bytes());
        return Err(EngineError::Vmm { step: "using the memory file", detail });
    }
    let mut placed = vec![PlacedFile::open(devices::DISK, &place.disk, Access::Own)?];
    match origin {
        Origin::Kernel { kernel, initrd, .. } => {
            placed.push(PlacedFile::open(devices::KERNEL, kernel, Access::Read)?);
            placed.push(PlacedFile::open(devices::INITRD, initrd, Access::Read)?);
        }
        Origin::State(state) => {
            placed.push(PlacedFile::open(devices::STATE, state, Access::Read)?);
            placed.push(PlacedFile::open(devices::MEMORY, memory, Access::Read)?);
        }
    }
    placed.push(PlacedFile::output(devices::CONSOLE, &place.console)?);
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
fn place_volume(index: usize, volume: Volume) -> Result<PlacedFile> {
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
    if image.metadata().map_err(EngineError::io("read the metadata of the volume", &path))?.size() < bytes {
        image.set_len(bytes).map_err(EngineError::io("size the volume", &path))?;
    }
    Ok(PlacedFile { name: volume_serial(index), path, file: image, access: Access::Own })
}

/// Path of an open file.
fn path_of(file: &File) -> Result<PathBuf> {
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
    fs::read_link(&link).map_err(EngineError::io("find the volume", link))
}
