//! Operations on a volume while a sandbox uses it.

use pandastack_types::{SandboxState, VolumeId};

use super::driver::Driver;
use crate::blocking::blocking;
use crate::error::{AgentError, Result};
use crate::volume;

impl Driver {
    /// Grows a volume: its image, its device, and the file system in the running guest.
    pub(super) async fn grow_volume(&mut self, id: VolumeId, bytes: u64) -> Result<()> {
        let place = self.place_of(&id)?;
        if self.record.state != SandboxState::Running {
            return Err(self.refusal(
                "the sandbox that has the volume sleeps or is paused; wake it first, or delete it",
            ));
        }
        let (store, layout, own) = (self.host.store.clone(), self.host.layout.clone(), id.clone());
        blocking(move || volume::check_growth(&store, &layout, &own, bytes)).await?;
        self.live()?.machine.grow_volume(place, bytes).await?;
        volume::settle(&self.host, id).await?;
        let device = self.host.engine.capabilities().volume_device(place);
        Ok(self.guest().await?.grow_volume(device, bytes).await?)
    }

    /// Copies a volume. A running guest first writes out its caches, and its processors are paused
    /// during the copy. The copy is therefore in the state after a power failure at that instant,
    /// from which a file system with a journal, and a database with a log, recover.
    pub(super) async fn copy_volume(&mut self, from: VolumeId, to: VolumeId) -> Result<()> {
        self.place_of(&from)?;
        let image = volume::image(&self.host.layout, &from)?;
        let running = self.record.state == SandboxState::Running;
        if running {
            self.guest().await?.quiesce(true).await?;
            crate::zygote::sync_file(&image).await?;
            self.live()?.machine.pause().await?;
        }
        let (store, layout) = (self.host.store.clone(), self.host.layout.clone());
        let copied = blocking(move || volume::make(&store, &layout, &to, 0, &image)).await;
        if running {
            self.run_guest().await?;
        }
        copied.map(drop)
    }

    fn place_of(&self, id: &VolumeId) -> Result<usize> {
        let place = self.record.spec.volumes.iter().position(|volume| volume.id == *id);
        place.ok_or_else(|| AgentError::Conflict(format!("the sandbox does not have volume {id}")))
    }
}
