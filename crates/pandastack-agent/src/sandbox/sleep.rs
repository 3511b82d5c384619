//! Snapshots, sleep and waking.
//!
//! A sleeper is a snapshot directory and a record, nothing else. The order of writes makes every crash harmless: the
//! snapshot is complete before the record says `hibernated`, the record says so before the machine ends; and on waking
//! the snapshot stays until the record says `running` again.

use std::time::Instant;

use jiff::Timestamp;
use pandastack_types::agent_api::AgentSnapshotDone;
use pandastack_types::{SandboxState, SnapshotId, Transition};

use super::Driver;
use super::accept::{Request, Verdict, accept};
use crate::blocking;
use crate::error::{AgentError, Result};
use crate::launch::{self, Stages};
use crate::layout::snapshot as names;
use crate::snapshot::{Capture, Manifest, Snapshot};

impl Driver {
    /// Takes a named snapshot. The sandbox goes on as it was.
    pub(super) async fn snapshot(&mut self, id: &SnapshotId) -> Result<AgentSnapshotDone> {
        let to = self.host.layout.snapshot(id);
        if to.exists() {
            return Err(AgentError::Conflict(format!("snapshot {id} exists already")));
        }
        match accept(self.record.state, Request::Snapshot) {
            Verdict::FromSleep => self.copy_sleep(to).await,
            Verdict::Refuse(reason) => Err(AgentError::Conflict(reason.to_owned())),
            _ => {
                let (capture, pause_ms) = self.capture().await?;
                let snapshot = capture.publish(&self.host, to).await?;
                let size_bytes = snapshot.manifest.state_bytes + snapshot.manifest.memory_bytes_written;
                Ok(AgentSnapshotDone { size_bytes, pause_ms })
            }
        }
    }

    /// Goes to sleep: written to disk, no process, slot or memory left.
    pub(super) async fn hibernate(&mut self) -> Result<()> {
        self.doors.close().await;
        let was_running = self.record.state == SandboxState::Running;
        if was_running {
            self.stop_guest().await?;
        }
        match self.write_sleep().await {
            Ok(()) => {}
            Err(error) => {
                if was_running {
                    self.run_guest().await?;
                }
                return Err(error);
            }
        }
        self.settle_usage();
        self.record.slot = None;
        self.step(Transition::Hibernated)?;
        self.record.machine = None;
        if let Some(live) = self.live.take() {
            let dir = live.home.dir.clone();
            live.end(&self.host).await;
            self.host.remove_dir(dir).await;
        }
        self.save()
    }

    async fn write_sleep(&mut self) -> Result<()> {
        let sleep = self.host.layout.sleep(&self.record.spec.id);
        self.host.remove_dir(sleep.clone()).await;
        self.capture_still().await?.publish(&self.host, sleep).await.map(drop)
    }

    /// Wakes from disk. A failed wake leaves the sandbox asleep, to be tried again.
    pub(super) async fn wake(&mut self) -> Result<()> {
        let sleep = self.host.layout.sleep(&self.record.spec.id);
        let snapshot = Snapshot::open(&sleep, &self.host.engine.capabilities().compatibility_key)?;
        self.host.admit(self.record.shape, 1)?;
        let live = launch::restore(&self.host, &mut self.record, &snapshot, Stages::begin()).await?;
        self.live = Some(live);
        self.step(Transition::Woken)?;
        self.host.remove_dir(sleep).await;
        Ok(())
    }

    /// Captures the machine and lets it go on; answers how long it stood still.
    pub(super) async fn capture(&mut self) -> Result<(Capture, f64)> {
        let was_running = self.record.state == SandboxState::Running;
        let began = Instant::now();
        if was_running {
            self.stop_guest().await?;
        }
        let capture = self.capture_still().await;
        if was_running {
            self.run_guest().await?;
        }
        Ok((capture?, began.elapsed().as_secs_f64() * 1e3))
    }

    async fn capture_still(&self) -> Result<Capture> {
        let none = || AgentError::Conflict("the sandbox has no machine".to_owned());
        let live = self.live.as_ref().ok_or_else(none)?;
        let manifest = Manifest {
            template: self.record.template.clone(),
            shape: self.record.shape,
            compatibility_key: self.host.engine.capabilities().compatibility_key.clone(),
            sandbox: Some(self.record.spec.id.clone()),
            uid: Some(self.record.uid),
            state_bytes: 0,
            memory_bytes_written: 0,
            created_at: Timestamp::now(),
        };
        let home = &live.home;
        Capture::take(&self.host, live.machine.as_ref(), &home.memory(), &home.disk(), manifest).await
    }

    /// A snapshot of a sleeper is a clone of what it sleeps on.
    async fn copy_sleep(&self, to: std::path::PathBuf) -> Result<AgentSnapshotDone> {
        let (store, sleep) = (self.host.store.clone(), self.host.layout.sleep(&self.record.spec.id));
        blocking(move || {
            use std::os::unix::fs::PermissionsExt;
            let staging = store.stage()?;
            for name in [names::STATE, names::MEMORY, names::DISK, names::MANIFEST] {
                store.clone_file(&sleep.join(name), &staging.path().join(name))?;
            }
            let memory = staging.path().join(names::MEMORY);
            for (path, mode) in [(memory.as_path(), 0o444), (staging.path(), 0o711)] {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
                    .map_err(AgentError::io("set permissions of", path))?;
            }
            staging.publish(&to)?;
            Ok(AgentSnapshotDone { size_bytes: 0, pause_ms: 0.0 })
        })
        .await
    }
}
