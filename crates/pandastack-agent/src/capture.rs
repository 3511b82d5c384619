//! Captures a machine as a snapshot directory.
//!
//! There are two ways, with the same result:
//!
//! ```text
//!   in place     begin | stop  clone disk, write   go on | publish
//!   by a twin    begin | stop  clone disk, fork    go on | write twin, end it, publish
//!                      |<------------ pause ----------->|
//! ```
//!
//! A **twin** is a fork of the stopped machine that never runs: memory and devices of one instant,
//! held still by the host's copy-on-write while the machine continues. The pause is then that of a
//! fork, however much there is to write. It needs an engine that can fork, and memory for the pages
//! that the machine changes until the twin is written.
//!
//! Invariant: nothing of a twin outlives the capture. It begins in its machine's control group and
//! is recorded nowhere, so the successor of a killed agent ends it as a stray; it is the first to
//! be killed when memory runs out, and then only the snapshot fails. Callers stop and resume the
//! machine, and choose the way.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pandastack_engine::{Confinement, Machine, MachineFiles, Pause, SaveTarget};
use pandastack_image::store::Staging;
use pandastack_net::SlotIndex;
use pandastack_types::chain;

use crate::blocking::blocking;
use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;
use crate::layout::snapshot as names;
use crate::record::write_json;
use crate::snapshot::{self, Manifest, Snapshot, keep_private};
use crate::volume::Original;

/// Rank of a twin for the out-of-memory killer: before everything else.
const TWIN_OOM_SCORE: &str = "1000";

/// A machine's state, written but not yet part of the store.
pub(crate) struct Capture {
    staging: Staging,
    manifest: Manifest,
    /// File that the machine's pages are compared with.
    base: PathBuf,
    /// Slot of a machine that resolves names by a policy.
    slot: Option<SlotIndex>,
}

impl Capture {
    /// Starts a capture of a machine whose memory is based on `memory_base`. The machine may run.
    pub(crate) async fn begin(host: &HostResources, memory_base: &Path, manifest: Manifest) -> Result<Self> {
        let (store, from) = (host.store.clone(), memory_base.to_owned());
        let staging = blocking(move || {
            let staging = store.stage()?;
            store.clone_file(&from, &staging.path().join(names::MEMORY))?;
            Ok::<_, AgentError>(staging)
        })
        .await?;
        Ok(Self { staging, manifest, base: memory_base.to_owned(), slot: None })
    }

    /// The capture of a machine, with the names that its programs resolved.
    pub(crate) fn of_slot(self, slot: Option<SlotIndex>) -> Self {
        Self { slot, ..self }
    }

    /// Writes a **paused** machine down: a clone of `disk`, device state, its own memory.
    pub(crate) async fn take(
        mut self,
        host: &HostResources,
        machine: &dyn Machine,
        disk: &Path,
    ) -> Result<Self> {
        self.clone_disk(host, disk).await?;
        self.write(machine).await?;
        Ok(self)
    }

    /// Clones the disk of a **paused** machine.
    pub(crate) async fn clone_disk(&self, host: &HostResources, disk: &Path) -> Result<()> {
        let (store, from, to) = (host.store.clone(), disk.to_owned(), self.disk());
        Ok(blocking(move || store.clone_file(&from, &to)).await?)
    }

    /// Clones the volumes of a **paused** machine.
    pub(crate) async fn clone_volumes(&self, host: &HostResources, volumes: Vec<Original>) -> Result<()> {
        let (store, dir) = (host.store.clone(), self.staging.path().to_owned());
        blocking(move || {
            for (place, (_, image)) in volumes.into_iter().enumerate() {
                store.clone_file(&image, &dir.join(names::volume(place)))?;
            }
            Ok(())
        })
        .await
    }

    /// Writes device state and memory of a **paused** machine, or of its twin.
    pub(crate) async fn write(&mut self, machine: &dyn Machine) -> Result<()> {
        let target = SaveTarget {
            state: self.staging.path().join(names::STATE),
            memory: self.staging.path().join(names::MEMORY),
            base: self.base.clone(),
        };
        let saved = machine.save(target).await?;
        pandastack_fault::point("capture.taken").await;
        self.manifest.state_bytes = saved.state_bytes;
        self.manifest.memory_bytes_written = saved.memory_bytes_written;
        Ok(())
    }

    fn disk(&self) -> PathBuf {
        self.staging.path().join(names::DISK)
    }

    /// Syncs the files and makes them appear at `to`.
    ///
    /// Resolved names are read here rather than during the pause. A machine that continued may have
    /// resolved more by now; that does no harm, since its policy allowed it.
    pub(crate) async fn publish(mut self, host: &HostResources, to: PathBuf) -> Result<Snapshot> {
        let engine = host.engine.capabilities().clone();
        self.manifest.resolved = crate::machine_resources::resolved(host, self.slot).await;
        blocking(move || {
            let dir = self.staging.path();
            keep_private(&dir.join(names::MEMORY))?;
            let seals = snapshot::seal(dir, self.manifest.volumes.len())?;
            write_json(&dir.join(names::MANIFEST), &Manifest { seals, ..self.manifest })?;
            if let Some(parent) = to.parent() {
                std::fs::create_dir_all(parent).map_err(AgentError::io("create", parent))?;
            }
            self.staging.publish(&to)?;
            Snapshot::open(&to, &engine)
        })
        .await
    }
}

/// A stopped copy of a machine, to be written down in its stead.
pub(crate) struct Twin {
    machine: Arc<dyn Machine>,
    runtime_dir: PathBuf,
}

impl Twin {
    /// Forks a **paused** machine whose disk `capture` has cloned already. The machine continues: see
    /// [`Machine::fork_and_resume`]. On failure nothing is left.
    pub(crate) async fn fork(
        host: &HostResources,
        parent: &dyn Machine,
        capture: &Capture,
        confinement: Confinement,
        pause: Pause,
    ) -> Result<Self> {
        let runtime_dir = host.layout.machine_runtime();
        crate::machine_resources::make_dir(&runtime_dir)?;
        let place = MachineFiles {
            console: runtime_dir.join(crate::layout::machine::CONSOLE),
            runtime_dir: runtime_dir.clone(),
            disk: capture.disk(),
            // A twin never runs.
            volumes: Vec::new(),
            tap: None,
            confinement,
            spare: None,
        };
        let none = || AgentError::Launch("the engine returned no machine".to_owned());
        let forked = match parent.fork_and_resume(vec![place], pause).await {
            Ok(mut machines) => machines.pop().ok_or_else(none).and_then(|machine| Ok(machine?)),
            Err(error) => Err(error.into()),
        };
        match forked {
            Ok(machine) => {
                let twin = Self { machine, runtime_dir };
                twin.go_first();
                Ok(twin)
            }
            Err(error) => {
                remove_sockets(runtime_dir).await;
                Err(error)
            }
        }
    }

    pub(crate) fn machine(&self) -> &dyn Machine {
        self.machine.as_ref()
    }

    /// Ends the twin and removes its resources.
    pub(crate) async fn end(self) {
        crate::running_machine::kill(self.machine.as_ref()).await;
        remove_sockets(self.runtime_dir).await;
    }

    /// Makes the twin the first to go when the shared control group runs out of memory.
    fn go_first(&self) {
        let path = format!("/proc/{}/oom_score_adj", self.machine.record().pid);
        if let Err(error) = std::fs::write(&path, TWIN_OOM_SCORE) {
            tracing::warn!(
                path, error = %chain(&error),
                "the twin of a snapshot may outlive its machine if memory runs out"
            );
        }
    }
}

async fn remove_sockets(dir: PathBuf) {
    let removed = blocking(move || std::fs::remove_dir_all(&dir).map_err(AgentError::io("remove", &dir)));
    if let Err(error) = removed.await {
        tracing::warn!(
            error = %chain(&error),
            "cannot remove sockets; the next start of the agent removes them"
        );
    }
}
