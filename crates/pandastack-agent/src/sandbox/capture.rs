//! Takes snapshots: the sandbox pauses briefly and continues while its state is written.
//!
//! The driver does the pause; the writing is a task beside it, so that other requests do not wait
//! for the disk. One snapshot of a sandbox is written at a time. Requests that end the machine wait
//! for it, since machine and twin share a control group ([`Driver::alone`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pandastack_engine::{Confinement, Pause};
use pandastack_fault as fault;
use pandastack_types::agent_api::AgentSnapshotDone;
use pandastack_types::{SandboxState, SnapshotId, chain};
use tokio::sync::oneshot;

use super::accept::{Request, Verdict};
use super::driver::Driver;
use super::handle::Reply;
use crate::capture::{Capture, Twin};
use crate::error::{AgentError, Result};
use crate::host::Host;
use crate::snapshot::{Manifest, Snapshot};
use crate::volume;

/// A snapshot whose pause is over.
struct CapturedState {
    capture: Capture,
    /// Twin that is still to be written; `None` if the snapshot was written in place.
    twin: Option<Twin>,
    pause_ms: f64,
}

impl Driver {
    /// Takes a named snapshot and returns when it is on disk. The sandbox continues as it was.
    pub(super) async fn snapshot(&mut self, id: &SnapshotId, reply: Reply<AgentSnapshotDone>) {
        self.written().await;
        let to = self.host.layout.snapshot(id);
        let begun = match self.accept_copy(Request::Snapshot).await {
            _ if to.exists() => Err(AgentError::Conflict(format!("snapshot {id} already exists"))),
            Err(error) => Err(error),
            Ok(Verdict::FromSleep) => return drop(reply.send(self.link_sleep(to).await)),
            Ok(_) => self.take().await,
        };
        let host = self.host.clone();
        match begun {
            Ok(taken) => {
                let write = async move { drop(reply.send(taken.write(&host, to).await)) };
                self.writing = Some(self.host.tasks.spawn(write));
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Waits until no snapshot of this sandbox is being written.
    pub(super) async fn written(&mut self) {
        if let Some(writing) = self.writing.take()
            && let Err(error) = writing.await
        {
            tracing::error!(
                sandbox = %self.record.spec.id, error = %chain(&error),
                "writing a snapshot ended early"
            );
        }
    }

    async fn link_sleep(&self, to: PathBuf) -> Result<AgentSnapshotDone> {
        let sleep = self.open_sleep()?;
        sleep.link_to(&self.host, to.clone(), self.volume_images()).await?;
        acknowledge(&self.host, &Snapshot::open(&to, self.host.engine.capabilities())?).await;
        Ok(AgentSnapshotDone { size_bytes: 0, pause_ms: 0.0 })
    }

    /// Captures the machine and resumes it.
    async fn take(&mut self) -> Result<CapturedState> {
        let goes_on = self.record.state == SandboxState::Running;
        // A clone first writes out its source's dirty pages; syncing here keeps that out of the
        // pause.
        crate::zygote::sync_file(&self.live()?.resources.disk()).await?;
        for (_, image) in self.volume_images() {
            crate::zygote::sync_file(&image).await?;
        }
        if goes_on && self.host.engine.capabilities().fork && self.host.admit(self.record.shape, 1).is_ok() {
            match self.take_by_twin().await {
                Ok(taken) => return Ok(taken),
                Err(error) => {
                    tracing::warn!(
                        sandbox = %self.record.spec.id, error = %chain(&error),
                        "cannot create a twin; writing the snapshot in place"
                    );
                }
            }
        }
        self.take_in_place(goes_on).await
    }

    /// For a running machine: it continues as soon as it has a twin.
    async fn take_by_twin(&mut self) -> Result<CapturedState> {
        let capture = self.begin_capture()?.await?;
        let (machine, disk) = (self.live()?.machine.clone(), self.live()?.resources.disk());
        let volumes = self.volume_images();
        let confinement = Confinement::Full { uid: self.record.uid, gid: self.record.uid };
        let host = self.host.clone();
        let began = Instant::now();
        self.stop_guest(false).await?;
        fault::point("capture.paused").await;
        let (sender, resumed) = oneshot::channel();
        let fork = async {
            capture.clone_disk(&host, &disk).await?;
            capture.clone_volumes(&host, volumes).await?;
            // Everything else has been copied by now.
            let (_, copied) = oneshot::channel();
            let pause = Pause::begun(copied, sender);
            let twin = Twin::fork(&host, machine.as_ref(), &capture, confinement, pause).await;
            fault::point("capture.forked").await;
            twin
        };
        let go_on = async {
            let went_on = self.thaw_resumed(resumed).await;
            went_on.map(|()| began.elapsed().as_secs_f64() * 1e3)
        };
        match tokio::join!(fork, go_on) {
            (Ok(twin), Ok(pause_ms)) => Ok(CapturedState { capture, twin: Some(twin), pause_ms }),
            (Ok(twin), Err(error)) => {
                twin.end().await;
                Err(error)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// For a machine that is paused anyway, or that cannot have a twin.
    async fn take_in_place(&mut self, goes_on: bool) -> Result<CapturedState> {
        let capture = self.begin_capture()?.await?;
        let began = Instant::now();
        if goes_on {
            self.stop_guest(false).await?;
        }
        let live = self.live()?;
        let taken = async {
            capture.clone_volumes(&self.host, self.volume_images()).await?;
            capture.take(&self.host, live.machine.as_ref(), &live.resources.disk()).await
        };
        let taken = taken.await;
        if goes_on {
            self.run_guest().await?;
        }
        let pause_ms = if goes_on { began.elapsed().as_secs_f64() * 1e3 } else { 0.0 };
        Ok(CapturedState { capture: taken?, twin: None, pause_ms })
    }

    /// Captures the machine for the children of a fork, on engines that cannot fork; returns the
    /// duration of the pause.
    pub(super) async fn capture(&mut self) -> Result<(Capture, f64)> {
        let CapturedState { mut capture, twin, pause_ms } = self.take().await?;
        if let Some(twin) = twin {
            write_twin(&mut capture, twin).await?;
        }
        Ok((capture, pause_ms))
    }

    pub(super) fn volume_images(&self) -> Vec<volume::Original> {
        volume::originals(&self.host.layout, &self.record.spec.volumes)
    }

    /// Starts a capture of the machine, which may resume and stop during it.
    pub(super) fn begin_capture(&self) -> Result<impl Future<Output = Result<Capture>> + use<>> {
        let resources = &self.live()?.resources;
        let (host, memory, manifest, slot) =
            (self.host.clone(), resources.memory(), self.manifest(), resources.slot);
        Ok(async move { Ok(Capture::begin(&host, &memory, manifest).await?.of_slot(slot)) })
    }

    pub(super) fn manifest(&self) -> Manifest {
        let (sandbox, uid) = (Some(self.record.spec.id.clone()), Some(self.record.uid));
        let volumes = self.record.spec.volumes.clone();
        Manifest {
            components: self.record.components.clone(),
            sandbox,
            uid,
            volumes,
            ..Manifest::new(&self.host, &self.record.template, self.record.shape)
        }
    }
}

impl CapturedState {
    /// Writes the rest of the snapshot and publishes it.
    async fn write(self, host: &Arc<Host>, to: PathBuf) -> Result<AgentSnapshotDone> {
        let Self { mut capture, twin, pause_ms } = self;
        if let Some(twin) = twin {
            write_twin(&mut capture, twin).await?;
        }
        let snapshot = capture.publish(host, to).await?;
        acknowledge(host, &snapshot).await;
        let size_bytes = snapshot.manifest.state_bytes + snapshot.manifest.memory_bytes_written;
        Ok(AgentSnapshotDone { size_bytes, pause_ms })
    }
}

async fn write_twin(capture: &mut Capture, twin: Twin) -> Result<()> {
    let written = capture.write(twin.machine()).await;
    twin.end().await;
    written
}

async fn acknowledge(host: &Arc<Host>, snapshot: &Snapshot) {
    fault::point("snapshot.published").await;
    snapshot.checksum_in_background(&host.resources, Duration::ZERO);
}
