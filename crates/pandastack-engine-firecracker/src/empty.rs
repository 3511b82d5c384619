//! A jailed process without a machine: started for one machine, or ahead of it.
//!
//! User, network namespace and runtime directory of a process are set when it is spawned, files come into
//! its root when it gets its machine. So a process that is started ahead belongs to one network slot and
//! fits any snapshot.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pandastack_engine::explain::explain;
use pandastack_engine::process::{KillOnDrop, Process};
use pandastack_engine::{Confinement, EngineError, RUNTIME_DIR_BYTES_MAX, Result};

use crate::config::Launcher;
use crate::devices::{self, METRICS};
use crate::engine::Host;
use crate::machine::Control;
use crate::root::{Owner, PlacedFile, Root, blocking};
use crate::spawn::{self, HeldFiles, Spawn};
use crate::tap::Tap;

/// User and group of zygotes. Firecracker machines are not forked, so a zygote is jailed like any
/// other machine.
const ZYGOTE_OWNER: Owner = Owner { uid: 65_534, gid: 65_534 };

/// A process without a machine. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct EmptyProcess {
    pub(crate) root: Root,
    pub(crate) control: Control,
    pub(crate) owner: Option<Owner>,
    pub(crate) tap: Option<Arc<Tap>>,
    held: HeldFiles,
    runtime_dir: PathBuf,
    guard: KillOnDrop,
}

impl EmptyProcess {
    /// Starts a process and waits until it can take a machine.
    pub(crate) async fn start(
        host: &Arc<Host>,
        runtime_dir: &Path,
        tap: Option<OwnedFd>,
        confinement: Confinement,
    ) -> Result<Self> {
        check_runtime_dir(runtime_dir)?;
        let owner = owner(host.launcher, confinement);
        let tap = blocking("preparing the machine's tap", move || tap_for(tap, owner)).await?;
        Self::start_with(host, runtime_dir.to_owned(), tap.map(Arc::new), owner).await
    }

    /// The process if it still runs, otherwise another one in its place.
    pub(crate) async fn or_another(self, host: &Arc<Host>) -> Result<Self> {
        let process = &self.control.process;
        if process.exited().borrow().is_none() {
            return Ok(self);
        }
        tracing::warn!(pid = process.pid, "a process that was started ahead has exited; starting another");
        Self::start_with(host, self.runtime_dir.clone(), self.tap.clone(), self.owner).await
    }

    async fn start_with(
        host: &Arc<Host>,
        runtime_dir: PathBuf,
        tap: Option<Arc<Tap>>,
        owner: Option<Owner>,
    ) -> Result<Self> {
        let (spawning, dir, network) = (host.clone(), runtime_dir.clone(), tap.clone());
        let spawned = blocking("starting Firecracker", move || {
            spawning.programs.check()?;
            let metrics = PlacedFile::output(METRICS, &spawn::metrics_path(&dir))?;
            let network = network.as_ref().map(|tap| tap.namespace.as_fd());
            let spawn = Spawn { programs: &spawning.programs, owner, runtime_dir: &dir, network };
            Ok((spawn.start()?, metrics))
        });
        let ((pidfd, held), metrics) = spawned.await?;
        let process = Process::watch(pidfd, &host.tasks)?;
        let guard = KillOnDrop::new(process.clone());
        let root = match owner {
            Some(owner) => Root::Jail { process: process.clone(), owner },
            None => Root::Directory(spawn::directory(&runtime_dir)),
        };
        let control = Control::new(&root, process);
        let empty = Self { root, control, owner, tap, held, runtime_dir, guard };
        match empty.make_ready(metrics).await {
            Ok(()) => Ok(empty),
            Err(error) => {
                let log = spawn::log_path(&empty.runtime_dir);
                Err(explain(error, &empty.control.process, &log).await)
            }
        }
    }

    async fn make_ready(&self, metrics: PlacedFile) -> Result<()> {
        let Self { root, control, runtime_dir, .. } = self;
        spawn::wait_until_listening(runtime_dir, control.api.socket(), &control.process).await?;
        root.place(vec![metrics], Vec::new()).await?;
        control.checked("setting the machine's outputs", devices::set_outputs(&control.api)).await
    }

    /// Keeps files open until the process exits.
    pub(crate) fn hold(&self, files: &[BorrowedFd<'_>]) -> Result<()> {
        self.held.add(files).map_err(EngineError::io("hand over open files to", &self.runtime_dir))
    }

    /// The process has its machine: it lives on.
    pub(crate) fn disarm(self) {
        self.guard.disarm();
    }
}

fn owner(launcher: Launcher, confinement: Confinement) -> Option<Owner> {
    match (launcher, confinement) {
        (Launcher::Direct, _) => None,
        (Launcher::Jailer, Confinement::Full { uid, gid }) => Some(Owner { uid, gid }),
        (Launcher::Jailer, Confinement::Zygote) => Some(ZYGOTE_OWNER),
    }
}

fn tap_for(given: Option<OwnedFd>, owner: Option<Owner>) -> Result<Option<Tap>> {
    let uid = owner.map_or(rustix::process::geteuid().as_raw(), |owner| owner.uid);
    match (given, owner) {
        (Some(tap), _) => Tap::hand_over(tap, uid).map(Some),
        (None, Some(_)) => Tap::unconnected(uid).map(Some),
        (None, None) => Ok(None),
    }
}

fn check_runtime_dir(dir: &Path) -> Result<()> {
    if dir.as_os_str().len() <= RUNTIME_DIR_BYTES_MAX && dir.is_absolute() {
        return Ok(());
    }
    let detail = format!("{} must be absolute and at most {RUNTIME_DIR_BYTES_MAX} bytes long", dir.display());
    Err(EngineError::Vmm { step: "using the runtime directory", detail })
}
