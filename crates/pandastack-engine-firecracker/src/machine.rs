//! One machine: the handle through which an agent controls a Firecracker process.
//!
//! One lock serializes pause, resume, save and disk growth; the guest stream has a lock of its own.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use pandastack_engine::process::Process;
use pandastack_engine::{
    EngineError, Machine, MachineExit, MachineFiles, MachineRecord, Result, RunState, SaveStats, SaveTarget,
    Shape, completion, volume_serial,
};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::timeout;

use crate::api::types::{Action, ActionType, InstanceState, SnapshotCreate, SnapshotType, VmState};
use crate::api::{Api, ApiError};
use crate::devices;
use crate::engine::Host;
use crate::guest::GuestStream;
use crate::limits::{BOOT_MAX, END_NOTICE_MAX};
use crate::root::{Owner, Root, blocking};
use crate::save::{self, FileIdentity};
use crate::spawn;

/// A path in a directory that does not exist. A snapshot to it fails when the state file is opened:
/// after the devices are reset, before anything is written.
const NOWHERE: &str = "nowhere/none";

/// A process and its API.
#[derive(Debug, Clone)]
pub(crate) struct Control {
    pub(crate) api: Api,
    pub(crate) process: Process,
}

impl Control {
    /// The API of a process with the given root.
    pub(crate) fn new(root: &Root, process: Process) -> Self {
        Self { api: Api::new(root.path(devices::API_SOCKET)), process }
    }

    /// Awaits a call and turns its failure into an engine error: the process exited, the call was
    /// late, or Firecracker refused it.
    pub(crate) async fn checked<T>(
        &self,
        step: &'static str,
        call: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T> {
        match call.await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.interpret(step, error).await),
        }
    }

    async fn interpret(&self, step: &'static str, error: ApiError) -> EngineError {
        if error.suggests_exit() {
            let mut exited = self.process.exited();
            if let Ok(Ok(exit)) = timeout(END_NOTICE_MAX, exited.wait_for(Option::is_some)).await {
                return EngineError::Exited(exit.as_ref().map_or(String::new(), |exit| exit.reason.clone()));
            }
        }
        match error {
            ApiError::Late(limit) => EngineError::Deadline { step, limit_ms: limit.as_millis() as u64 },
            ApiError::Unreachable { path, source } => {
                EngineError::Vmm { step, detail: format!("cannot connect to {}: {source}", path.display()) }
            }
            error => EngineError::Vmm { step, detail: error.to_string() },
        }
    }
}

/// The engine's own part of a [`MachineRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Details {
    /// User of the jail; `None` without one.
    pub(crate) owner: Option<Owner>,
    /// Whether memory is a mapping of the base file, as it is after a load.
    pub(crate) loaded: bool,
    /// Volumes that the machine has.
    pub(crate) volumes: usize,
}

/// Parts of a new machine.
pub(crate) struct Parts {
    pub(crate) shape: Shape,
    pub(crate) place: MachineFiles,
    pub(crate) memory: PathBuf,
    pub(crate) details: Details,
    pub(crate) root: Root,
    pub(crate) control: Control,
}

/// Run state of the machine, as far as the engine changed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Configured but not started; the first resume starts it.
    Configured,
    /// Paused. `plain` if no snapshot was taken since the pause: vsock may need a reset then.
    Paused { plain: bool },
    /// Running.
    Running,
    /// A call to change the state failed or was cancelled; Firecracker must be queried.
    Unknown,
}

/// State guarded by the operation lock.
#[derive(Debug)]
pub(crate) struct LockedState {
    pub(crate) phase: Phase,
    /// The file that holds all guest memory except pages written since: a diff snapshot onto a clone
    /// of it is complete. `None` if unknown.
    pub(crate) saved_in: Option<FileIdentity>,
}

/// The phase of an instance in a state, without knowledge of how it got there.
fn phase_of(state: InstanceState) -> Phase {
    match state {
        InstanceState::NotStarted => Phase::Configured,
        InstanceState::Paused => Phase::Paused { plain: true },
        InstanceState::Running => Phase::Running,
    }
}

/// A machine of this engine.
#[derive(Debug)]
pub(crate) struct FirecrackerMachine {
    pub(crate) host: Arc<Host>,
    pub(crate) record: MachineRecord,
    pub(crate) details: Details,
    pub(crate) root: Root,
    pub(crate) control: Control,
    turn: AsyncMutex<LockedState>,
    running: watch::Sender<bool>,
    guest: Mutex<Option<GuestStream>>,
    /// For operations that run as tasks.
    this: Weak<FirecrackerMachine>,
}

impl FirecrackerMachine {
    /// A handle of a newly made machine.
    pub(crate) fn new(host: Arc<Host>, parts: Parts) -> Result<Arc<Self>> {
        let Parts { shape, place, memory, details, root, control } = parts;
        let engine = serde_json::to_value(details).map_err(|error| EngineError::Vmm {
            step: "describing the machine",
            detail: error.to_string(),
        })?;
        let saved_in = Some(FileIdentity::of_path(&memory)?);
        let record = MachineRecord {
            pid: control.process.pid,
            pid_started_ticks: control.process.started_ticks,
            shape,
            runtime_dir: place.runtime_dir,
            disk: place.disk,
            console: place.console,
            base_memory: memory,
            confinement: place.confinement,
            engine,
        };
        let phase = if details.loaded { Phase::Paused { plain: false } } else { Phase::Configured };
        Ok(Self::assemble(host, record, details, root, control, LockedState { phase, saved_in }))
    }

    /// A handle of a machine that outlived its agent, in any run state.
    pub(crate) async fn adopt(
        host: Arc<Host>,
        record: MachineRecord,
        details: Details,
        process: Process,
    ) -> Result<Arc<Self>> {
        let root = match details.owner {
            Some(owner) => Root::Jail { process: process.clone(), owner },
            None => Root::Directory(spawn::directory(&record.runtime_dir)),
        };
        let control = Control::new(&root, process);
        let instance = control.checked("identifying the machine", control.api.describe()).await?;
        if instance.id != spawn::INSTANCE_ID {
            let detail = format!("{} answers as {:?}", control.api.socket().display(), instance.id);
            return Err(EngineError::Vmm { step: "identifying the machine", detail });
        }
        let phase = phase_of(instance.state);
        Ok(Self::assemble(host, record, details, root, control, LockedState { phase, saved_in: None }))
    }

    fn assemble(
        host: Arc<Host>,
        record: MachineRecord,
        details: Details,
        root: Root,
        control: Control,
        turn: LockedState,
    ) -> Arc<Self> {
        let running = watch::Sender::new(turn.phase == Phase::Running);
        let (turn, guest) = (AsyncMutex::new(turn), Mutex::new(None));
        Arc::new_cyclic(|this| {
            let this = this.clone();
            Self { host, record, details, root, control, turn, running, guest, this }
        })
    }

    /// A handle for a task that may outlive the caller's.
    fn this(&self) -> Result<Arc<Self>> {
        self.this.upgrade().ok_or_else(|| EngineError::Exited("its last handle is being dropped".to_owned()))
    }

    /// Fails if the process has exited, and finds out an unknown phase.
    async fn settle(&self, turn: &mut LockedState) -> Result<Phase> {
        self.require_alive()?;
        if turn.phase == Phase::Unknown {
            let instance = self.control.checked("asking for the state", self.control.api.describe()).await?;
            turn.phase = phase_of(instance.state);
        }
        Ok(turn.phase)
    }

    /// Fails if the process has exited.
    fn require_alive(&self) -> Result<()> {
        match &*self.control.process.exited().borrow() {
            Some(exit) => Err(EngineError::Exited(exit.reason.clone())),
            None => Ok(()),
        }
    }

    /// Ends the guest stream if it is established: the guest has lost it in a reset.
    pub(crate) fn drop_lost_stream(&self) {
        self.guest.lock().unwrap_or_else(PoisonError::into_inner).take_if(|stream| stream.is_established());
    }

    async fn start(&self) -> Result<()> {
        let action = Action { action_type: ActionType::InstanceStart };
        self.control
            .checked("starting the machine", self.control.api.put("/actions", &action, BOOT_MAX))
            .await
    }

    /// Resumes a paused machine.
    async fn resume_vm(&self, plain: bool) -> Result<()> {
        if plain && self.host.version.loses_vsock_on_plain_resume() {
            self.reset_vsock().await?;
            self.drop_lost_stream();
        }
        self.control.checked("resuming the machine", self.control.api.set_state(VmState::Resumed)).await
    }

    /// Sends the guest the vsock reset that Firecracker will wait for after the resume. Taking a
    /// snapshot sends it, so this starts one that fails right afterwards.
    async fn reset_vsock(&self) -> Result<()> {
        let snapshot = SnapshotCreate {
            snapshot_type: SnapshotType::Diff,
            snapshot_path: NOWHERE.to_owned(),
            mem_file_path: NOWHERE.to_owned(),
        };
        let step = "resetting the guest's connections";
        match self.control.api.create_snapshot(&snapshot).await {
            Err(ApiError::Refused { message, .. }) if message.contains("snapshot backing file") => Ok(()),
            Err(error) => Err(self.control.interpret(step, error).await),
            Ok(()) => {
                let detail = format!("Firecracker wrote a snapshot to {NOWHERE}, which must not exist");
                Err(EngineError::Vmm { step, detail })
            }
        }
    }
}

#[async_trait]
impl Machine for FirecrackerMachine {
    fn record(&self) -> &MachineRecord {
        &self.record
    }

    fn logs(&self) -> Vec<PathBuf> {
        let dir = &self.record.runtime_dir;
        vec![self.record.console.clone(), spawn::log_path(dir), spawn::metrics_path(dir)]
    }

    fn exited(&self) -> watch::Receiver<Option<MachineExit>> {
        self.control.process.exited()
    }

    async fn run_state(&self) -> Result<RunState> {
        let instance = self.control.checked("asking for the state", self.control.api.describe()).await?;
        Ok(match instance.state {
            InstanceState::NotStarted | InstanceState::Paused => RunState::Paused,
            InstanceState::Running => RunState::Running,
        })
    }

    async fn pause(&self) -> Result<()> {
        let mut turn = self.turn.lock().await;
        if self.settle(&mut turn).await? == Phase::Running {
            turn.phase = Phase::Unknown;
            let paused = self.control.api.set_state(VmState::Paused);
            self.control.checked("pausing the machine", paused).await?;
            turn.phase = Phase::Paused { plain: true };
        }
        self.running.send_replace(false);
        Ok(())
    }

    async fn resume(&self) -> Result<()> {
        let mut turn = self.turn.lock().await;
        let phase = self.settle(&mut turn).await?;
        turn.phase = Phase::Unknown;
        match phase {
            Phase::Configured => self.start().await?,
            Phase::Paused { plain } => self.resume_vm(plain).await?,
            Phase::Running | Phase::Unknown => {}
        }
        turn.phase = Phase::Running;
        self.running.send_replace(true);
        Ok(())
    }

    async fn connect_guest(&self) -> Result<UnixStream> {
        self.require_alive()?;
        let socket = self.root.path(devices::VSOCK_SOCKET);
        let failed = EngineError::io("connect to the guest", &socket);
        let (running, exited) = (self.running.subscribe(), self.control.process.exited());
        let opened = GuestStream::open(socket.clone(), running, exited, &self.host.tasks);
        let (stream, held) = opened.map_err(failed)?;
        *self.guest.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
        Ok(stream)
    }

    async fn save(&self, target: SaveTarget) -> Result<SaveStats> {
        let this = self.this()?;
        let work = async move {
            let mut turn = this.turn.lock().await;
            this.settle(&mut turn).await?;
            save::save(&this, &mut turn, target).await
        };
        completion::run(&self.host.tasks, "saving the machine", work, |_| async {}).await
    }

    async fn fork(&self, _places: Vec<MachineFiles>) -> Result<Vec<Result<Arc<dyn Machine>>>> {
        let reason = "machines run on KVM, whose descriptors belong to one process".to_owned();
        Err(EngineError::Unsupported { action: "fork", reason })
    }

    async fn grow_volume(&self, place: usize, bytes: u64) -> Result<()> {
        let mut turn = self.turn.lock().await;
        let phase = self.settle(&mut turn).await?;
        let step = "growing a volume";
        if place >= self.details.volumes {
            return Err(EngineError::Vmm { step, detail: format!("none at place {place}") });
        }
        let path = self.root.path(&volume_serial(place));
        let grow = move || {
            let image = OpenOptions::new().write(true).open(&path);
            image.and_then(|image| image.set_len(bytes)).map_err(EngineError::io("grow the volume", &path))
        };
        blocking(step, grow).await?;
        let api = &self.control.api;
        match phase {
            Phase::Configured => self.control.checked(step, devices::put_volume(api, place)).await,
            _ => self.control.checked(step, devices::announce_volume(api, place)).await,
        }
    }

    /// Never fires: when the host's disk is full, Firecracker reports an I/O error to the guest.
    fn starved(&self) -> watch::Receiver<bool> {
        watch::Sender::new(false).subscribe()
    }

    async fn kill(&self) -> Result<()> {
        self.control.process.kill().await
    }
}
