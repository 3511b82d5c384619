//! The interface of virtual machine engines.
//!
//! An engine turns prepared files into machines: it boots them, restores them from a snapshot, forks running ones and
//! adopts the ones that outlived their agent. This crate names those actions, the capability flags that say which of
//! them a given host supports, and the conformance suite that every engine passes ([`conformance`]).
//!
//! Invariants:
//! - Every machine an engine hands out is **paused**; the caller places it (cgroup, bookkeeping), then resumes it.
//! - An engine never clones, formats or deletes a file. The caller prepares what a [`MachineFiles`] names and removes it after
//!   [`Machine::exited`] has fired.
//! - A failed call leaves no process, socket or descriptor behind.
//! - A machine does not die with the process that started it: see [`Engine::adopt`].
//!
//! An engine receives paths of prepared files, not descriptors: one engine could take descriptors, another takes only
//! paths, so paths are what every engine can use.
//!
//! Out of scope: templates, addresses, sandboxes, sleep. Callers never check which engine it is;
//! they check its [`Capabilities`].
//!
//! ```text
//!            boot / restore / fork                 kill, guest power-off, crash
//!  (files) ------------------------> Paused --resume--> Running ------------------> exited
//!                                      ^  \__ save, fork __/ |
//!                                      +------- pause -------+
//! ```

mod capabilities;
pub mod completion;
pub mod conformance;
pub mod explain;
pub mod fake;
pub mod host;
pub mod kvm_probe;
pub mod private_pages;
pub mod process;
mod spare;
pub mod tap;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};

pub use capabilities::{Capabilities, Isolation, KernelFormat, VolumeNaming};
pub use spare::{Spare, SpareFiles};

/// Name of the byte stream between agent and guest: a virtio-serial port under QEMU, a vsock port under Firecracker.
pub const GUEST_CHANNEL_NAME: &str = "pandastack.guest.0";

/// Port at which the guest program listens where the guest channel is vsock.
pub const GUEST_VSOCK_PORT: u32 = 1024;

/// Hardware address of every guest: each is alone in its network, and a snapshot must find the one it knew.
pub const GUEST_MAC: &str = "06:00:0a:c9:00:02";

/// Durable disks that a machine may have. Every machine has as many places for them, empty or not: devices are frozen into
/// snapshots.
pub const VOLUMES_MAX: usize = 4;

/// Name of the durable disk at `place`, and the serial number of its device where an engine can set one.
pub fn volume_serial(place: usize) -> String {
    format!("volume{place}")
}

/// Longest runtime directory an engine accepts: a socket inside it must fit the 108 bytes of `sun_path`.
pub const RUNTIME_DIR_BYTES_MAX: usize = 80;

/// Processor count and memory size: frozen into a snapshot, equal on every restore of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Guest memory.
    pub memory_mib: u32,
}

impl Shape {
    /// Guest memory in bytes: the exact length of a memory file.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_mib) * 1024 * 1024
    }
}

/// Confinement of a machine's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Confinement {
    /// Unprivileged user, empty root directory, no new privileges, system call filter. For everything that runs
    /// tenant code.
    Full {
        /// User id of the process, shared by a fork lineage only.
        uid: u32,
        /// Group id of the process.
        gid: u32,
    },
    /// Keeps just enough privilege to give each fork a user of its own. For zygotes, which run no tenant code. An engine
    /// that cannot fork locks them in like any other machine.
    Zygote,
}

/// A durable disk of one machine. Writes that its guest flushes are on the host's disk. When the host has no
/// space for a write, the machine is paused ([`Machine::starved`]) instead of seeing an error.
#[derive(Debug)]
pub struct Volume {
    /// A raw image. The machine's process keeps this very open file until it ends, so a lock that the caller took on it
    /// is held as long as anything can be written. Open for reading only, it can only be read.
    pub image: std::fs::File,
    /// Size that the guest sees; the image has it too.
    pub bytes: u64,
}

/// Files and devices of one machine. The caller prepares and owns them.
#[derive(Debug)]
pub struct MachineFiles {
    /// Existing, empty directory for sockets, at most [`RUNTIME_DIR_BYTES_MAX`] bytes long.
    pub runtime_dir: PathBuf,
    /// Root disk: a raw image, readable and writable by this machine only.
    pub disk: PathBuf,
    /// Durable disks, at most [`VOLUMES_MAX`], by their places. A restored or forked machine finds
    /// its earlier disk at each place, or a copy made at the same instant.
    pub volumes: Vec<Volume>,
    /// Serial console output is appended here.
    pub console: PathBuf,
    /// Tap device opened in the machine's network namespace; `None` gives a machine without network.
    pub tap: Option<std::os::fd::OwnedFd>,
    /// Confinement of the process.
    pub confinement: Confinement,
    /// A process that [`Engine::spare`] started in the same runtime directory under the same confinement. It has the
    /// tap already, so `tap` is `None`.
    pub spare: Option<Spare>,
}

/// A machine to start from its kernel. Slow; only template bakes do it.
#[derive(Debug)]
pub struct Boot {
    /// Processors and memory.
    pub shape: Shape,
    /// Per-machine resources.
    pub place: MachineFiles,
    /// Kernel image, in the format of [`Capabilities::kernel_format`].
    pub kernel: PathBuf,
    /// Initial ramdisk.
    pub initrd: PathBuf,
    /// Appended to the engine's own kernel arguments.
    pub kernel_args: String,
    /// Base memory file of [`Shape::memory_bytes`], empty and sparse. Mapped privately: it stays as it is.
    pub memory: PathBuf,
}

/// A machine to start from a snapshot.
#[derive(Debug)]
pub struct Restore {
    /// Processors and memory the snapshot was made with.
    pub shape: Shape,
    /// Per-machine resources; the disk is a clone of the snapshot's.
    pub place: MachineFiles,
    /// Device state written by [`Machine::save`].
    pub state: PathBuf,
    /// Memory file written by [`Machine::save`]. Mapped privately: it must not change while any machine uses it.
    pub memory: PathBuf,
}

/// The files that [`Machine::save`] writes.
#[derive(Debug)]
pub struct SaveTarget {
    /// Created by the engine: device state.
    pub state: PathBuf,
    /// Clone of `base`, prepared by the caller. Pages that differ are written into it in place, so that it becomes a
    /// complete memory file for the cost of what changed.
    pub memory: PathBuf,
    /// File that `memory` is a clone of: the file below the machine ([`MachineRecord::base_memory`]), or a
    /// later save of its parent, which avoids writing shared pages again. Pages that the machine changed are
    /// compared with it, because a clone's pages are not in memory while its original's usually are.
    pub base: PathBuf,
}

/// Statistics of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaveStats {
    /// Size of the device state.
    pub state_bytes: u64,
    /// Memory written over the base.
    pub memory_bytes_written: u64,
    /// Time the save took.
    pub took: Duration,
}

/// The record with which an agent finds a machine after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// Process id.
    pub pid: u32,
    /// Start time of that process in clock ticks since boot, against reuse of the id.
    pub pid_started_ticks: u64,
    /// Processors and memory.
    pub shape: Shape,
    /// Sockets of the machine.
    pub runtime_dir: PathBuf,
    /// Disk the machine writes.
    pub disk: PathBuf,
    /// Console output.
    pub console: PathBuf,
    /// Memory file under the machine.
    pub base_memory: PathBuf,
    /// Confinement of the process.
    pub confinement: Confinement,
    /// Other data of the engine; opaque to everyone else.
    pub engine: serde_json::Value,
}

/// The end of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineExit {
    /// One sentence: exit status, signal, or why it is unknown.
    pub reason: String,
}

/// Run state of guest code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// Processors stopped.
    Paused,
    /// Processors running.
    Running,
}

/// Reason why an engine call failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A requirement is missing on the host; the text names it and how to get it.
    #[error("{0}")]
    Unavailable(String),
    /// The capability is off on this host.
    #[error("this engine cannot {action} here: {reason}")]
    Unsupported {
        /// The request.
        action: &'static str,
        /// Reason.
        reason: String,
    },
    /// The machine's process is gone.
    #[error("the machine has exited: {0}")]
    Exited(String),
    /// A step took longer than its limit.
    #[error("{step} did not finish within {limit_ms} ms")]
    Deadline {
        /// The step.
        step: &'static str,
        /// The limit.
        limit_ms: u64,
    },
    /// The VMM answered with an error or with nonsense.
    #[error("{step} failed: {detail}")]
    Vmm {
        /// The step.
        step: &'static str,
        /// The VMM's answer.
        detail: String,
    },
    /// The host refused a file, socket or process operation.
    #[error("{action} ({})", path.display())]
    Io {
        /// The action.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
}

impl EngineError {
    /// For `map_err`: names the action and the file around an I/O error.
    pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| EngineError::Io { action, path, source }
    }
}

/// Result of an engine call.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// Creates machines.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Capabilities of this engine on this host, probed once when it was created.
    fn capabilities(&self) -> &Capabilities;

    /// Starts a machine from its kernel; paused before the first instruction.
    async fn boot(&self, boot: Boot) -> Result<Arc<dyn Machine>>;

    /// Starts a machine from a snapshot; paused at the instant it was saved.
    async fn restore(&self, restore: Restore) -> Result<Arc<dyn Machine>>;

    /// Starts an empty process ahead, for a machine that is restored into it later. Requires
    /// [`Capabilities::spares`].
    async fn spare(&self, files: SpareFiles) -> Result<Spare> {
        let _ = files;
        let reason = "its processes start with their machine".to_owned();
        Err(EngineError::Unsupported { action: "start a process ahead", reason })
    }

    /// Takes over a machine whose agent is gone, in its current state. Fails with
    /// [`EngineError::Exited`] when its process no longer runs.
    async fn adopt(&self, record: MachineRecord) -> Result<Arc<dyn Machine>>;
}

/// The pause of a machine during a fork, after which it resumes. Its users wait for the whole pause, so work is
/// done before or after it where possible.
#[derive(Debug)]
pub struct Pause {
    /// Sent when the files of the children are ready.
    pub ready: oneshot::Sender<()>,
    /// Received when the machine is paused; nothing is copied before. If dropped, the fork is cancelled.
    pub begun: oneshot::Receiver<()>,
    /// Received, or dropped, when everything that must match its memory, such as disks, is copied. Then the machine
    /// may resume.
    pub copied: oneshot::Receiver<()>,
    /// Sent just before resume, so that queued messages are the first thing the guest sees. If this is dropped
    /// instead, the machine may still be paused.
    pub resumed: oneshot::Sender<()>,
}

impl Pause {
    /// A pause of a machine that is already paused.
    pub fn begun(copied: oneshot::Receiver<()>, resumed: oneshot::Sender<()>) -> Self {
        let (ready, _) = oneshot::channel();
        let (told, begun) = oneshot::channel();
        let _ = told.send(());
        Self { ready, begun, copied, resumed }
    }

    /// Reports that the children's files are ready, and waits for the pause to begin.
    pub async fn begin(self) -> Result<PauseInProgress> {
        let Self { ready, begun, copied, resumed } = self;
        // If the receiver is gone, the pause has already begun.
        let _ = ready.send(());
        let not_paused = |_| EngineError::Unsupported {
            action: "fork",
            reason: "the machine could not be paused".to_owned(),
        };
        begun.await.map_err(not_paused)?;
        Ok(PauseInProgress { copied, resumed })
    }
}

/// The part of a [`Pause`] after its begin.
#[derive(Debug)]
pub struct PauseInProgress {
    copied: oneshot::Receiver<()>,
    resumed: oneshot::Sender<()>,
}

impl PauseInProgress {
    /// Waits until the machine can continue, and reports that it does.
    pub async fn announce(self) {
        // A dropped channel means the same. A caller that does not listen need not know.
        let _ = self.copied.await;
        let _ = self.resumed.send(());
    }
}

/// One machine. All calls may run concurrently; the engine orders them.
#[async_trait]
pub trait Machine: Send + Sync + 'static {
    /// Record to store for [`Engine::adopt`]. Stable for the life of the machine.
    fn record(&self) -> &MachineRecord;

    /// Files that the machine's process appends to without end; the machine's owner keeps them
    /// short. Their beginning may be cut away at any time, as long as offsets stay.
    fn logs(&self) -> Vec<PathBuf> {
        vec![self.record().console.clone()]
    }

    /// Fires once, when the process is gone.
    fn exited(&self) -> watch::Receiver<Option<MachineExit>>;

    /// Run state of guest code, as the VMM reports it.
    async fn run_state(&self) -> Result<RunState>;

    /// Stops the processors and drains disk writes to the host. Repeating it is harmless.
    async fn pause(&self) -> Result<()>;

    /// Runs the processors. Repeating it is harmless.
    async fn resume(&self) -> Result<()>;

    /// A fresh byte stream to the guest program; replaces an earlier one, which ends. The guest sees a disconnect in
    /// between, except before the first stream of a machine: that one is connected ahead, so that a guest which was saved
    /// or forked with its host connected notices nothing. Either way the far end may be in the middle of a message, so
    /// peers resynchronise on every new stream.
    async fn connect_guest(&self) -> Result<UnixStream>;

    /// Saves a paused machine, which stays paused and usable. Nothing is synced to storage: that would
    /// lengthen the pause, and the caller knows whether the files must survive a power failure.
    async fn save(&self, target: SaveTarget) -> Result<SaveStats>;

    /// Copies a paused machine into one paused child per place. Each place has the file of its disk; what it holds is a clone
    /// made in the same pause, complete before the child is resumed. One result per place, in order: a failed child fails alone.
    async fn fork(&self, places: Vec<MachineFiles>) -> Result<Vec<Result<Arc<dyn Machine>>>>;

    /// Like [`Machine::fork`], for a parent that is to continue: it is resumed as soon as its
    /// memory and all other copies are complete, before the children are checked.
    async fn fork_and_resume(
        &self,
        places: Vec<MachineFiles>,
        pause: Pause,
    ) -> Result<Vec<Result<Arc<dyn Machine>>>> {
        let going_on = pause.begin().await?;
        let children = self.fork(places).await?;
        going_on.announce().await;
        // Waiters for the machine retry and get the reason; the children exist.
        let _ = self.resume().await;
        Ok(children)
    }

    /// Makes the durable disk at `place` larger, image included, and tells the guest. The machine may run.
    async fn grow_volume(&self, place: usize, bytes: u64) -> Result<()>;

    /// Whether the machine is paused because the host's disk is full and a write to a durable disk
    /// waits. [`Machine::resume`] tries it again.
    fn starved(&self) -> watch::Receiver<bool>;

    /// Ends the process at once and returns when it is gone. Repeating it is harmless.
    async fn kill(&self) -> Result<()>;
}
