//! The resources of one machine: its directory, sockets, network slot and control group.
//!
//! [`MachineResources::prepare`] acquires all of them or none. [`MachineResources::release`] gives
//! back what a machine holds while it is awake, and [`MachineResources::remove`] removes the
//! directory too. Both can be repeated.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use pandastack_engine::{Confinement, MachineFiles, Shape, Volume};
use pandastack_net::{NetworkPolicy, Resolved, SlotIndex, Traffic};
use pandastack_types::agent_api::VolumeSpec;

use crate::blocking::blocking;
use crate::cgroup::Cgroup;
use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;
use crate::layout::machine as names;
use crate::layout::snapshot::volume as volume_name;
use crate::volume::Original;

/// The resources of one machine.
#[derive(Debug)]
pub(crate) struct MachineResources {
    /// Name of the control group: the sandbox id, or the zygote's.
    name: String,
    pub dir: PathBuf,
    runtime_dir: PathBuf,
    pub slot: Option<SlotIndex>,
    /// Where the host reaches the guest.
    pub guest_ip: Option<String>,
    cgroup: Cgroup,
}

/// Files that a new machine starts from.
pub(crate) struct Origin<'a> {
    pub memory: &'a Path,
    /// `None` when the disk can be cloned only later, while the parent is paused: until then its
    /// file is empty.
    pub disk: Option<&'a Path>,
    pub shape: Shape,
}

impl MachineResources {
    /// Makes directory, files, slot and group for a machine that starts from `origin`.
    pub(crate) async fn prepare(
        host: &HostResources,
        name: &str,
        dir: PathBuf,
        origin: &Origin<'_>,
        confinement: Confinement,
        network: &NetworkPolicy,
    ) -> Result<(MachineResources, MachineFiles)> {
        let mut resources = MachineResources {
            name: name.to_owned(),
            dir,
            runtime_dir: host.layout.machine_runtime(),
            slot: None,
            guest_ip: None,
            cgroup: host.cgroups.group(name),
        };
        let limited = matches!(confinement, Confinement::Full { .. });
        match resources.fill(host, origin, limited, network).await {
            Ok(tap) => {
                let place = resources.place(tap, confinement);
                Ok((resources, place))
            }
            Err(error) => {
                resources.release(host).await;
                resources.remove(host).await;
                Err(error)
            }
        }
    }

    /// The resources of a machine that outlived its agent.
    pub(crate) fn adopted(
        host: &HostResources,
        name: &str,
        dir: PathBuf,
        runtime_dir: PathBuf,
        slot: Option<u32>,
    ) -> MachineResources {
        let slot = slot.and_then(|index| u16::try_from(index).ok()).map(SlotIndex);
        MachineResources {
            name: name.to_owned(),
            dir,
            runtime_dir,
            guest_ip: slot.map(|index| host.slots.address(index).to_string()),
            slot,
            cgroup: host.cgroups.group(name),
        }
    }

    async fn fill(
        &mut self,
        host: &HostResources,
        origin: &Origin<'_>,
        limited: bool,
        network: &NetworkPolicy,
    ) -> Result<OwnedFd> {
        let (dir, runtime_dir, store) = (self.dir.clone(), self.runtime_dir.clone(), host.store.clone());
        let (memory, disk) = (origin.memory.to_owned(), origin.disk.map(Path::to_owned));
        let (cgroups, name) = (host.cgroups.clone(), self.name.clone());
        let shape = limited.then_some(origin.shape);
        let files = blocking(move || {
            make_dir(&dir)?;
            make_dir(&runtime_dir)?;
            let link = dir.join(names::MEMORY);
            if link != memory {
                std::fs::hard_link(&memory, &link).map_err(AgentError::io("link", &link))?;
            }
            let own_disk = dir.join(names::DISK);
            match disk {
                Some(disk) => store.clone_file(&disk, &own_disk)?,
                None => drop(store.create_sparse(&own_disk, 0)?),
            }
            let console = dir.join(names::CONSOLE);
            std::fs::write(&console, b"").map_err(AgentError::io("create", &console))?;
            cgroups.create(&name, shape).map_err(AgentError::io("create the control group of", &dir))?;
            Ok::<_, AgentError>(())
        });
        let (files, slot) = tokio::join!(files, host.slots.take(network));
        if let Ok(slot) = &slot {
            self.slot = Some(slot.index);
            self.guest_ip = Some(slot.address.to_string());
        }
        files?;
        Ok(slot?.tap)
    }

    /// Clones volumes into the directory, for a machine that is not a sandbox and has no volumes of
    /// the host: a bake, a zygote.
    pub(crate) async fn take_volumes(
        &self,
        host: &HostResources,
        originals: Vec<Original>,
    ) -> Result<Vec<Volume>> {
        let (store, dir) = (host.store.clone(), self.dir.clone());
        let open = move || {
            let mut volumes = Vec::with_capacity(originals.len());
            for (place, (_, image)) in originals.into_iter().enumerate() {
                let own = dir.join(volume_name(place));
                store.clone_file(&image, &own)?;
                let file = std::fs::OpenOptions::new().read(true).write(true).open(&own);
                let image = file.map_err(AgentError::io("open", &own))?;
                let bytes = image.metadata().map_err(AgentError::io("look at", &own))?.len();
                volumes.push(Volume { image, bytes });
            }
            Ok(volumes)
        };
        blocking(open).await
    }

    /// The volumes that [`MachineResources::take_volumes`] made.
    pub(crate) fn volumes(&self, specs: &[VolumeSpec]) -> Vec<Original> {
        let own = |(place, spec): (usize, &VolumeSpec)| (spec.id.clone(), self.dir.join(volume_name(place)));
        specs.iter().enumerate().map(own).collect()
    }

    fn place(&self, tap: OwnedFd, confinement: Confinement) -> MachineFiles {
        MachineFiles {
            runtime_dir: self.runtime_dir.clone(),
            disk: self.disk(),
            volumes: Vec::new(),
            console: self.console(),
            tap: Some(tap),
            confinement,
        }
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.dir.join(names::DISK)
    }

    pub(crate) fn memory(&self) -> PathBuf {
        self.dir.join(names::MEMORY)
    }

    pub(crate) fn console(&self) -> PathBuf {
        self.dir.join(names::CONSOLE)
    }

    /// What its machine sent and received since it has its slot.
    pub(crate) fn traffic(&self, host: &HostResources) -> Traffic {
        self.slot.map_or_else(Traffic::default, |index| host.slots.traffic(index))
    }

    /// Lets its guest, before it runs, go on with what it resolved in another slot. Where that
    /// cannot be, its programs are refused until they resolve again.
    pub(crate) async fn restore_resolved(&self, host: &HostResources, resolved: &[Resolved]) {
        let Some(slot) = self.slot.filter(|_| !resolved.is_empty()) else { return };
        if let Err(error) = host.slots.restore_resolved(slot, resolved).await {
            tracing::warn!(name = self.name, %error, "cannot restore resolved addresses; they are closed");
        }
    }

    pub(crate) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Gives back slot, group and sockets. The machine's process must be gone.
    pub(crate) async fn release(&mut self, host: &HostResources) {
        if let Some(index) = self.slot.take() {
            host.slots.release(index);
        }
        self.guest_ip = None;
        let (cgroup, runtime_dir) = (self.cgroup.clone(), self.runtime_dir.clone());
        let removed = blocking(move || {
            cgroup.remove();
            match std::fs::remove_dir_all(&runtime_dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(AgentError::io("remove", &runtime_dir)(error))
                }
                _ => Ok(()),
            }
        });
        if let Err(error) = removed.await {
            tracing::warn!(%error, "cannot remove sockets; the next start of the agent removes them");
        }
    }

    /// Removes the directory with everything in it.
    pub(crate) async fn remove(&self, host: &HostResources) {
        host.remove_dir(self.dir.clone()).await;
    }
}

/// What the guest of a slot has resolved and may go on with elsewhere. What cannot be read is
/// resolved again there.
pub(crate) async fn resolved(host: &HostResources, slot: Option<SlotIndex>) -> Vec<Resolved> {
    let Some(slot) = slot else { return Vec::new() };
    host.slots.resolved(slot).await.unwrap_or_else(|error| {
        tracing::warn!(%slot, %error, "cannot save resolved addresses");
        Vec::new()
    })
}

/// Makes a directory for its owner alone.
pub(crate) fn make_dir(dir: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(dir).map_err(AgentError::io("create", dir))
}
