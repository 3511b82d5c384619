//! One machine: the handle with which an agent controls an emulator process.
//!
//! One lock serializes operations that must not interleave (pause, resume, save, fork); the guest
//! stream has its own lock.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use pandastack_engine::{
    Confinement, EngineError, Machine, MachineExit, MachineFiles, MachineRecord, Pause, Result, RunState,
    SaveStats, SaveTarget, Shape,
};
use rustix::net::Shutdown;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::UnixStream;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard, watch};
use tokio::time::timeout;

use crate::endpoints::{self, FileIdentities, Paths};
use crate::fork;
use crate::host::Host;
use crate::limits::{PARK_MAX, PAUSE_MAX};
use crate::qmp::Qmp;
use crate::save;
use crate::starvation;
use crate::volume;
use pandastack_engine::completion;
use pandastack_engine::process::Process;

/// A machine of this engine.
#[derive(Debug)]
pub(crate) struct QemuMachine {
    pub(crate) host: Arc<Host>,
    pub(crate) record: MachineRecord,
    pub(crate) details: Details,
    pub(crate) paths: Paths,
    pub(crate) process: Process,
    pub(crate) qmp: Qmp,
    /// Held by operations that change or depend on the run state.
    turn: AsyncMutex<()>,
    /// Held while the process is copied. A process killed between the copy and its answer would leave an
    /// untracked copy.
    copying: AsyncMutex<()>,
    /// Whether the machine is known to be paused: only this handle resumes it, so no query is
    /// needed.
    is_paused: AtomicBool,
    guest: Mutex<GuestStream>,
    /// Sizes of durable disks that the devices already have; the others are announced when the
    /// machine runs.
    announced: Mutex<volume::Sizes>,
    starved: watch::Receiver<bool>,
    /// For operations that run as tasks.
    this: Weak<QemuMachine>,
}

/// The engine's own part of a [`MachineRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Details {
    /// Address of guest memory in the process; the same in all its forks.
    pub(crate) ram_address: u64,
    /// Files that a fork must replace.
    pub(crate) files: FileIdentities,
    /// Sizes of durable disks when the machine was made.
    pub(crate) volume_bytes: volume::Sizes,
}

/// The connection to the guest program.
#[derive(Debug, Default)]
struct GuestStream {
    /// Connected ahead, not yet handed out.
    ready: Option<UnixStream>,
    /// A second descriptor of the one last handed out, to end it when it is replaced.
    current: Option<OwnedFd>,
}

/// The parts of a new machine.
pub(crate) struct Parts {
    pub(crate) shape: Shape,
    pub(crate) runtime_dir: std::path::PathBuf,
    pub(crate) disk: std::path::PathBuf,
    pub(crate) console: std::path::PathBuf,
    pub(crate) base_memory: std::path::PathBuf,
    pub(crate) confinement: Confinement,
    pub(crate) details: Details,
    /// Sizes of durable disks that its devices have already.
    pub(crate) announced: volume::Sizes,
    pub(crate) process: Process,
    pub(crate) qmp: Qmp,
    pub(crate) guest: Option<UnixStream>,
}

impl QemuMachine {
    /// A handle of a process that was just made.
    pub(crate) fn new(host: Arc<Host>, parts: Parts) -> Result<Arc<Self>> {
        let engine = serde_json::to_value(parts.details).map_err(|error| EngineError::Vmm {
            step: "describing the machine",
            detail: error.to_string(),
        })?;
        let record = MachineRecord {
            pid: parts.process.pid,
            pid_started_ticks: parts.process.started_ticks,
            shape: parts.shape,
            runtime_dir: parts.runtime_dir,
            disk: parts.disk,
            console: parts.console,
            base_memory: parts.base_memory,
            confinement: parts.confinement,
            engine,
        };
        let starved = starvation::follow(parts.qmp.subscribe(), false, &host.tasks);
        let machine =
            Self::of_record(host, record, parts.details, parts.process, parts.qmp, parts.guest, starved);
        *machine.announced.lock().unwrap_or_else(PoisonError::into_inner) = parts.announced;
        Ok(machine)
    }

    /// A handle of a process that was found again.
    pub(crate) fn of_record(
        host: Arc<Host>,
        record: MachineRecord,
        details: Details,
        process: Process,
        qmp: Qmp,
        guest: Option<UnixStream>,
        starved: watch::Receiver<bool>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            host,
            paths: Paths::new(&record.runtime_dir),
            record,
            details,
            process,
            qmp,
            turn: AsyncMutex::new(()),
            copying: AsyncMutex::new(()),
            is_paused: AtomicBool::new(false),
            guest: Mutex::new(GuestStream { ready: guest, current: None }),
            announced: Mutex::new(details.volume_bytes),
            starved,
            this: this.clone(),
        })
    }

    /// A handle for a task that may outlive the caller's.
    fn this(&self) -> Result<Arc<Self>> {
        self.this.upgrade().ok_or_else(|| EngineError::Exited("its last handle is being dropped".to_owned()))
    }

    /// Fails unless the processors are stopped.
    pub(crate) async fn require_paused(&self, action: &'static str) -> Result<()> {
        if self.is_paused.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.query_run_state().await? {
            RunState::Paused => {
                self.is_paused.store(true, Ordering::Release);
                Ok(())
            }
            RunState::Running => Err(EngineError::Vmm {
                step: action,
                detail: "the machine is running; pause it first".to_owned(),
            }),
        }
    }

    /// Resumes the processors. The caller holds the turn.
    pub(crate) async fn continue_guest(&self) -> Result<()> {
        self.is_paused.store(false, Ordering::Release);
        self.qmp.command("cont", json!({})).await.map(drop)
    }

    /// Stops the processors. The caller holds the turn.
    pub(crate) async fn stop(&self) -> Result<()> {
        self.qmp.call("stop", json!({}), PAUSE_MAX).await?;
        self.is_paused.store(true, Ordering::Release);
        Ok(())
    }

    /// Waits for the turn of an operation that changes the run state, or depends on it.
    pub(crate) async fn lock_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Waits until the process may be copied, or until no copy is in progress.
    pub(crate) async fn lock_copying(&self) -> MutexGuard<'_, ()> {
        self.copying.lock().await
    }

    pub(crate) async fn query_run_state(&self) -> Result<RunState> {
        let status = self.qmp.command("query-status", json!({})).await?;
        let running = status.get("running").and_then(serde_json::Value::as_bool);
        match running {
            Some(true) => Ok(RunState::Running),
            Some(false) => Ok(RunState::Paused),
            None => {
                Err(EngineError::Vmm { step: "query-status", detail: format!("unexpected answer {status}") })
            }
        }
    }
}

/// A fresh connection to the guest socket at `path`.
pub(crate) fn connect_guest(path: &Path) -> Result<UnixStream> {
    let stream = endpoints::connect(path).and_then(UnixStream::from_std);
    stream.map_err(EngineError::io("connect to the guest", path))
}

#[async_trait]
impl Machine for QemuMachine {
    fn record(&self) -> &MachineRecord {
        &self.record
    }

    fn logs(&self) -> Vec<std::path::PathBuf> {
        vec![self.record.console.clone(), crate::endpoints::Paths::new(&self.record.runtime_dir).log()]
    }

    fn exited(&self) -> watch::Receiver<Option<MachineExit>> {
        self.process.exited()
    }

    async fn run_state(&self) -> Result<RunState> {
        self.query_run_state().await
    }

    async fn pause(&self) -> Result<()> {
        let _turn = self.lock_turn().await;
        self.stop().await
    }

    async fn resume(&self) -> Result<()> {
        let _turn = self.lock_turn().await;
        self.continue_guest().await?;
        let had = *self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        volume::announce(&self.qmp, &had, &self.details.volume_bytes).await?;
        *self.announced.lock().unwrap_or_else(PoisonError::into_inner) = self.details.volume_bytes;
        Ok(())
    }

    async fn connect_guest(&self) -> Result<UnixStream> {
        let mut guest = self.guest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(current) = guest.current.take() {
            // The caller may still hold the stream; the emulator must see its end, or it would
            // never accept the next one.
            let _ = rustix::net::shutdown(&current, Shutdown::Both);
        }
        let stream = match guest.ready.take() {
            Some(stream) => stream,
            None => connect_guest(&self.paths.guest())?,
        };
        let second = stream.as_fd().try_clone_to_owned();
        guest.current = Some(second.map_err(EngineError::io("connect to the guest", self.paths.guest()))?);
        Ok(stream)
    }

    async fn save(&self, target: SaveTarget) -> Result<SaveStats> {
        let this = self.this()?;
        let work = async move {
            let _turn = this.lock_turn().await;
            save::save(&this, &target).await
        };
        completion::run(&self.host.tasks, "saving the machine", work, |_| async {}).await
    }

    async fn fork(&self, places: Vec<MachineFiles>) -> Result<Vec<Result<Arc<dyn Machine>>>> {
        self.fork_then(places, None).await
    }

    async fn fork_and_resume(
        &self,
        places: Vec<MachineFiles>,
        pause: Pause,
    ) -> Result<Vec<Result<Arc<dyn Machine>>>> {
        self.fork_then(places, Some(pause)).await
    }

    async fn grow_volume(&self, place: usize, bytes: u64) -> Result<()> {
        let _turn = self.lock_turn().await;
        self.process.raise_file_bytes(bytes);
        volume::resize(&self.qmp, place, bytes).await
    }

    fn starved(&self) -> watch::Receiver<bool> {
        self.starved.clone()
    }

    async fn kill(&self) -> Result<()> {
        // A copy takes milliseconds; a process that does not answer is killed anyway.
        let _no_copy = timeout(PARK_MAX, self.lock_copying()).await;
        self.process.kill().await
    }
}

impl QemuMachine {
    /// Limits the file size to that of the machine's largest disk. A fork whose disk is not cloned
    /// yet keeps its parent's limit.
    pub(crate) fn limit_files(&self) {
        let disk = std::fs::metadata(&self.record.disk).map_or(0, |found| found.len());
        let volumes = self.details.volume_bytes.iter().copied().max().unwrap_or(0);
        if disk > 0 {
            self.process.limit_file_bytes(disk.max(volumes));
        }
    }

    async fn fork_then(
        &self,
        places: Vec<MachineFiles>,
        pause: Option<Pause>,
    ) -> Result<Vec<Result<Arc<dyn Machine>>>> {
        let this = self.this()?;
        let work = async move { fork::fork(&this, places, pause).await };
        let undo = |children: Vec<Result<Arc<QemuMachine>>>| async move {
            children.iter().flatten().for_each(|child| child.process.send_kill());
        };
        let children = completion::run(&self.host.tasks, "forking the machine", work, undo).await?;
        Ok(children.into_iter().map(|child| child.map(|child| child as Arc<dyn Machine>)).collect())
    }
}
