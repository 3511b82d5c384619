//! Sleep and waking.
//!
//! ```text
//!   running --idle--> asleep in memory --after a while--> asleep on disk --use--> running
//!      |                  |  use: runs again at once          ^
//!      +------------------+---------- hibernate --------------+
//! ```
//!
//! A sleeping sandbox on disk is a snapshot directory and a record, nothing else. The order of
//! writes makes every crash harmless. The snapshot is complete before the record refers to it, and
//! the record is written before the machine ends (the request is answered in between). On waking,
//! the snapshot stays until the record is `running` again. The same holds for a power loss: the
//! record of a sleeping sandbox is synced, and an unsynced write on waking leaves its second name
//! beside the snapshot ([`crate::record::write_record`]).
//!
//! If the sandbox writes volumes, its snapshot can be used for one wake, because the volumes change
//! afterwards. Its record is `running` and synced before its machine runs ([`crate::launch`]).

use jiff::Timestamp;
use pandastack_fault as fault;
use pandastack_types::api::{Keep, OutdatedAction};
use pandastack_types::{Residency, SandboxState, Transition, chain};

use super::driver::{Driver, store_record};
use crate::blocking::blocking;
use crate::capture::Capture;
use crate::error::{AgentError, Result};
use crate::kernel_files::kernel_files;
use crate::launch::{self, Stages};
use crate::layout::snapshot as names;
use crate::outdated;
use crate::record::{SandboxRecord, read_json, write_json};
use crate::running_machine::RunningMachine;
use crate::snapshot::{self, Manifest, SLEEPERS_IMAGES_AFTER, Snapshot};

impl Driver {
    /// Falls asleep lightly: stopped, but in memory, so that the next use has it back at once.
    pub(super) async fn sleep_in_memory(&mut self) -> Result<()> {
        self.grants.close().await;
        self.stop_guest(self.writes_volumes()).await?;
        self.record.residency = Some(Residency::Memory);
        self.step(Transition::Hibernated).await
    }

    /// Puts the sandbox to sleep on disk, without process, slot or memory. If it sleeps in memory, writes
    /// it out.
    pub(super) async fn hibernate(&mut self, keep: Keep) -> Result<()> {
        let left = self.write_down(keep).await?;
        self.sleep_without(left).await;
        Ok(())
    }

    /// Releases the memory that it sleeps in, if it still does.
    pub(super) async fn write_out(&mut self) -> Result<()> {
        match self.record.sleeps_in_memory() {
            true => self.hibernate(Keep::Memory).await,
            false => Ok(()),
        }
    }

    /// First half of [`Self::hibernate`]: from then on the state on disk is the sandbox. Returns
    /// the machine it left.
    pub(super) async fn write_down(&mut self, keep: Keep) -> Result<Option<RunningMachine>> {
        self.alone().await;
        self.grants.close().await;
        let was_running = self.record.state == SandboxState::Running;
        let written = match (keep, was_running) {
            (Keep::Memory, true) => {
                let beginning = self.begin_capture()?;
                let (begun, stopped) = tokio::join!(beginning, self.stop_guest(self.writes_volumes()));
                stopped?;
                fault::point("hibernate.paused").await;
                self.write_sleep(begun).await
            }
            (Keep::Memory, false) => {
                let begun = self.begin_capture()?.await;
                self.write_sleep(begun).await
            }
            (Keep::Disk, _) => self.write_disk().await,
        };
        if written.is_ok() {
            fault::point("hibernate.published").await;
        }
        let recorded = match written {
            Ok(()) => self.record_sleep().await,
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            if was_running {
                self.run_guest().await?;
            }
            return Err(error);
        }
        fault::point("hibernate.recorded").await;
        Ok(self.leave_machine())
    }

    /// The other half. Until it ends, the record on disk names the machine, so that a successor can
    /// end it after a crash.
    pub(super) async fn sleep_without(&mut self, left: Option<RunningMachine>) {
        self.end(left).await;
        fault::point("hibernate.ended").await;
        if let Err(error) = self.save().await {
            tracing::warn!(
                sandbox = %self.record.spec.id, error = %chain(&error),
                "cannot update the record of a machine that exited"
            );
        }
    }

    /// From here on the sleep directory is the sandbox, also after a power loss. If the record
    /// cannot be written, nothing changes.
    pub(super) async fn record_sleep(&mut self) -> Result<()> {
        self.settle_usage();
        let asleep = SandboxRecord {
            state: self.record.state.step(Transition::Hibernated)?,
            residency: Some(Residency::Disk),
            slot: None,
            ..self.record.clone()
        };
        store_record(&self.host, &asleep).await?;
        self.record = asleep;
        Ok(())
    }

    /// Ends the machine of a sandbox whose record no longer needs it.
    pub(super) async fn end_machine(&mut self) {
        let left = self.leave_machine();
        self.end(left).await;
    }

    fn leave_machine(&mut self) -> Option<RunningMachine> {
        self.record.machine = None;
        self.fell_asleep();
        self.live.take()
    }

    async fn end(&self, left: Option<RunningMachine>) {
        if let Some(live) = left {
            let dir = live.resources.dir.clone();
            live.end(&self.host).await;
            self.host.remove_dir(dir).await;
        }
    }

    async fn write_sleep(&mut self, begun: Result<Capture>) -> Result<()> {
        let sleep = self.host.layout.sleep(&self.record.spec.id);
        self.host.remove_dir(sleep.clone()).await;
        let live = self.live()?;
        let capture = begun?.take(&self.host, live.machine.as_ref(), &live.resources.disk()).await?;
        let snapshot = capture.publish(&self.host, sleep).await?;
        snapshot.checksum_in_background(&self.host.resources, SLEEPERS_IMAGES_AFTER);
        Ok(())
    }

    /// Keeps only the disk. The guest must run to sync its file systems.
    async fn write_disk(&mut self) -> Result<()> {
        if self.record.state != SandboxState::Running {
            let reason =
                "only a running sandbox can be hibernated with its disk only; wake or resume it first";
            return Err(AgentError::Conflict(reason.to_owned()));
        }
        self.freeze(true).await?;
        let live = self.live()?;
        live.machine.pause().await?;
        let (disk, store) = (live.resources.disk(), self.host.store.clone());
        let manifest = Manifest { disk_only: true, ..self.manifest() };
        let sleep = self.host.layout.sleep(&self.record.spec.id);
        let to = sleep.clone();
        let seals = blocking(move || {
            let staging = store.stage()?;
            store.clone_file(&disk, &staging.path().join(names::DISK))?;
            let seals = crate::integrity::seal(staging.path(), &[names::DISK])?;
            let manifest = Manifest { seals: seals.clone(), ..manifest };
            write_json(&staging.path().join(names::MANIFEST), &manifest)?;
            staging.publish_over(&to)?;
            Ok::<_, AgentError>(seals)
        })
        .await?;
        snapshot::checksum_in_background(&self.host.resources, sleep, seals, SLEEPERS_IMAGES_AFTER);
        Ok(())
    }

    /// Wakes. A failed wake leaves the sandbox asleep, so that it can be retried, unless its
    /// volumes may have changed. Depending on the operator's policy, an outdated state is kept,
    /// refused, or dropped except for its disk.
    pub(super) async fn wake(&mut self) -> Result<()> {
        match self.record.due_verdict(Timestamp::now()) {
            Some(verdict) if !self.has_disk_alone()? => match verdict.action {
                OutdatedAction::Keep => self.wake_as_it_is().await,
                OutdatedAction::Refuse => Err(outdated::refusal(verdict)),
                OutdatedAction::ColdRestart => self.wake_by_booting().await,
            },
            _ => self.wake_as_it_is().await,
        }
    }

    /// Wakes without the memory that it slept with. The old kernel writes its file systems out first,
    /// because what programs wrote last may be in that memory alone.
    async fn wake_by_booting(&mut self) -> Result<()> {
        tracing::info!(sandbox = %self.record.spec.id, "booting an outdated sandbox from its disk");
        self.drop_memory().await?;
        self.wake_as_it_is().await
    }

    /// Lets a sleeping sandbox keep its disk alone.
    pub(super) async fn drop_memory(&mut self) -> Result<()> {
        self.wake_as_it_is().await?;
        if let Err(error) = self.hibernate(Keep::Disk).await {
            // It must not continue with the outdated state.
            if let Err(error) = self.hibernate(Keep::Memory).await {
                tracing::error!(
                    sandbox = %self.record.spec.id, error = %chain(&error),
                    "a sandbox with an outdated state runs, because it cannot be put to sleep again"
                );
            }
            return Err(error);
        }
        Ok(())
    }

    pub(super) fn has_disk_alone(&self) -> Result<bool> {
        Ok(self.record.sleeps_on_disk() && self.sleeps_with_disk_alone()?)
    }

    pub(super) async fn wake_as_it_is(&mut self) -> Result<()> {
        if self.record.sleeps_in_memory() {
            self.resume_marked(Transition::Woken, async |driver| driver.run_guest_ahead().await).await?;
        } else {
            self.host.free_memory(self.record.shape, 1, Some(&self.record.spec.id)).await?;
            match self.wake_from_disk().await {
                Ok(live) => self.live = Some(live),
                Err(error) => return Err(self.fail_wake(error).await),
            }
            fault::point("wake.restored").await;
            self.step(Transition::Woken).await?;
        }
        // A sandbox is woken to be used: its idle time starts again, however long this took.
        self.activity.touch();
        fault::point("wake.recorded").await;
        self.host.remove_dir(self.host.layout.sleep(&self.record.spec.id)).await;
        Ok(())
    }

    /// If its machine has run, its saved memory can no longer be used; see [`crate::launch`].
    async fn fail_wake(&mut self, error: AgentError) -> AgentError {
        if self.record.state != SandboxState::Running {
            return error;
        }
        let reason = format!(
            "the sandbox could not be woken: {}; its volumes may have changed since it went \
             to sleep, so its memory cannot be used again; data on the volumes is kept",
            error.logged_public_text()
        );
        self.fail(reason.clone()).await;
        self.host.remove_dir(self.host.layout.sleep(&self.record.spec.id)).await;
        AgentError::Failed(reason)
    }

    async fn wake_from_disk(&mut self) -> Result<RunningMachine> {
        let sleep = self.host.layout.sleep(&self.record.spec.id);
        let manifest: Manifest = read_json(&sleep.join(names::MANIFEST))?;
        if manifest.disk_only {
            crate::integrity::check_seals(&sleep, &manifest.seals)?;
            snapshot::verify(&sleep, &manifest, &self.host.shutdown).await?;
            let kernel = kernel_files(&self.host.resources).await?;
            return launch::boot(&self.host, &mut self.record, &sleep.join(names::DISK), kernel).await;
        }
        let snapshot = self.open_sleep()?;
        launch::restore(&self.host, &mut self.record, &snapshot, Stages::begin()).await
    }

    /// Returns whether a sandbox asleep on disk kept only its disk.
    pub(super) fn sleeps_with_disk_alone(&self) -> Result<bool> {
        let sleep = self.host.layout.sleep(&self.record.spec.id);
        let manifest: Manifest = read_json(&sleep.join(names::MANIFEST))?;
        Ok(manifest.disk_only)
    }

    /// Opens the snapshot of a sandbox that sleeps on disk.
    pub(super) fn open_sleep(&self) -> Result<Snapshot> {
        let sleep = self.host.layout.sleep(&self.record.spec.id);
        Snapshot::open(&sleep, self.host.engine.capabilities())
    }

    pub(super) fn live(&self) -> Result<&RunningMachine> {
        self.live.as_ref().ok_or_else(|| AgentError::Conflict("the sandbox has no machine".to_owned()))
    }
}
