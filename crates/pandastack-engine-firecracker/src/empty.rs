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
use pandastack_engine::{Confinement, EngineError, RUNTIME_DIR_BYTES_MAX, Result, SpareFiles};

use crate::config::Launcher;
use crate::devices::API_SOCKET;
use crate::engine::Host;
use crate::root::{Owner, Root, blocking};
use crate::spawn::{self, HeldFiles, Spawn};
use crate::tap::Tap;

/// User and group of zygotes. Firecracker machines are not forked, so a zygote is jailed like any
/// other machine.
const ZYGOTE_OWNER: Owner = Owner { uid: 65_534, gid: 65_534 };

/// A process without a machine. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct EmptyProcess {
    pub(crate) root: Root,
    pub(crate) process: Process,
    pub(crate) owner: Option<Owner>,
    pub(crate) tap: Option<Arc<Tap>>,
    held: HeldFiles,
    runtime_dir: PathBuf,
    guard: KillOnDrop,
}

impl EmptyProcess {
    /// Spawns a process.
    pub(crate) async fn start(
        host: &Arc<Host>,
        runtime_dir: &Path,
        tap: Option<OwnedFd>,
        confinement: Confinement,
    ) -> Result<Self> {
        check_runtime_dir(runtime_dir)?;
        let owner = owner(host.launcher, confinement);
        let tap = blocking("preparing the machine's tap", move || tap_for(tap, owner)).await?;
        Self::spawn(host, runtime_dir.to_owned(), tap.map(Arc::new), owner).await
    }

    /// Spawns a process ahead of its machine.
    pub(crate) async fn start_ahead(host: &Arc<Host>, files: SpareFiles) -> Result<Self> {
        let SpareFiles { runtime_dir, tap, confinement } = files;
        let empty = Self::start(host, &runtime_dir, Some(tap), confinement).await?;
        match empty.wait_until_listening().await {
            Ok(()) => Ok(empty),
            Err(error) => Err(explain(error, &empty.process, &spawn::log_path(&runtime_dir)).await),
        }
    }

    /// The process if it still runs, otherwise another one in its place.
    pub(crate) async fn or_another(self, host: &Arc<Host>) -> Result<Self> {
        if self.process.exited().borrow().is_none() {
            return Ok(self);
        }
        tracing::warn!(
            pid = self.process.pid,
            "a process that was started ahead has exited; starting another"
        );
        Self::spawn(host, self.runtime_dir.clone(), self.tap.clone(), self.owner).await
    }

    async fn spawn(
        host: &Arc<Host>,
        runtime_dir: PathBuf,
        tap: Option<Arc<Tap>>,
        owner: Option<Owner>,
    ) -> Result<Self> {
        let (spawning, dir, network) = (host.clone(), runtime_dir.clone(), tap.clone());
        let spawned = blocking("starting Firecracker", move || {
            spawning.programs.check()?;
            let network = network.as_ref().map(|tap| tap.namespace.as_fd());
            Spawn { programs: &spawning.programs, owner, runtime_dir: &dir, network }.start()
        });
        let (pidfd, held) = spawned.await?;
        let process = Process::watch(pidfd, &host.tasks)?;
        let guard = KillOnDrop::new(process.clone());
        let root = match owner {
            Some(owner) => Root::Jail { process: process.clone(), owner },
            None => Root::Directory(spawn::directory(&runtime_dir)),
        };
        Ok(Self { root, process, owner, tap, held, runtime_dir, guard })
    }

    /// Waits until it answers API calls.
    pub(crate) async fn wait_until_listening(&self) -> Result<()> {
        let socket = self.root.path(API_SOCKET);
        spawn::wait_until_listening(&self.runtime_dir, &socket, &self.process).await
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
