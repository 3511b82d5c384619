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
use pandastack_types::chain;

use crate::blocking::blocking;
use crate::cgroup::Cgroup;
use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;
use crate::layout::machine as names;
use crate::layout::snapshot::volume as volume_name;
use crate::spares::SpareMachine;
use crate::volume::Original;

/// The resources of one machine.
#[derive(Debug)]
pub(crate) struct MachineResources {
    /// Name of the control group: the sandbox id, or the zygote's.
    name: String,
    pub dir: PathBuf,
    runtime_dir: PathBuf,
    pub slot: Option<SlotIndex>,
    /// Address at which the host reaches the guest.
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
    /// Creates directory, files, slot and group for a machine that starts from `origin`.
    pub(crate) async fn prepare(
        host: &HostResources,
        name: &str,
        dir: PathBuf,
        origin: &Origin<'_>,
        confinement: Confinement,
        network: &NetworkPolicy,
    ) -> Result<(MachineResources, MachineFiles)> {
        Self::prepare_in(host, None, name, dir, origin, confinement, network).await
    }

    /// The same in a place that was prepared ahead, whose user `confinement` names.
    pub(crate) async fn prepare_in(
        host: &HostResources,
        spare: Option<SpareMachine>,
        name: &str,
        dir: PathBuf,
        origin: &Origin<'_>,
        confinement: Confinement,
        network: &NetworkPolicy,
    ) -> Result<(MachineResources, MachineFiles)> {
        let (slot, runtime_dir, process) = match spare {
            Some(SpareMachine { slot, runtime_dir, process, .. }) => (Some(slot), runtime_dir, Some(process)),
            None => (None, host.layout.machine_runtime(), None),
        };
        let mut resources = MachineResources {
            name: name.to_owned(),
            dir,
            runtime_dir,
            slot,
            guest_ip: slot.map(|index| host.slots.address(index).to_string()),
            cgroup: host.cgroups.group(name),
        };
        let limited = matches!(confinement, Confinement::Full { .. });
        match resources.fill(host, origin, limited, network).await {
            Ok(tap) => {
                let place = resources.place(tap, confinement);
                Ok((resources, MachineFiles { spare: process, ..place }))
            }
            Err(error) => {
                drop(process);
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
    ) -> Result<Option<OwnedFd>> {
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
        let leased = self.slot;
        let slot = async {
            match leased {
                Some(index) if network.is_default() => Ok((index, None)),
                Some(index) => host.slots.set_policy(index, network).await.map(|()| (index, None)),
                None => host.slots.take(network).await.map(|slot| (slot.index, Some(slot.tap))),
            }
        };
        let (files, slot) = tokio::join!(files, slot);
        if let Ok((index, _)) = &slot {
            self.slot = Some(*index);
            self.guest_ip = Some(host.slots.address(*index).to_string());
        }
        files?;
        Ok(slot?.1)
    }

    /// Clones volumes into the directory of a bake or a zygote, which have no volumes of the host.
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
                let bytes = image.metadata().map_err(AgentError::io("read the metadata of", &own))?.len();
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

    fn place(&self, tap: Option<OwnedFd>, confinement: Confinement) -> MachineFiles {
        MachineFiles {
            runtime_dir: self.runtime_dir.clone(),
            disk: self.disk(),
            volumes: Vec::new(),
            console: self.console(),
            tap,
            confinement,
            spare: None,
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

    /// Bytes that the machine sent and received since it got its slot.
    pub(crate) fn traffic(&self, host: &HostResources) -> Traffic {
        self.slot.map_or_else(Traffic::default, |index| host.slots.traffic(index))
    }

    /// Before the guest runs, restores the names that it resolved in another slot. If that fails, its
    /// programs are refused until they resolve again.
    pub(crate) async fn restore_resolved(&self, host: &HostResources, resolved: &[Resolved]) {
        let Some(slot) = self.slot.filter(|_| !resolved.is_empty()) else { return };
        if let Err(error) = host.slots.restore_resolved(slot, resolved).await {
            tracing::warn!(
                name = self.name, error = %chain(&error),
                "cannot restore resolved addresses; they are closed"
            );
        }
    }

    pub(crate) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Releases slot, group and sockets. The machine's process must be gone.
    pub(crate) async fn release(&mut self, host: &HostResources) {
        if let Some(index) = self.slot.take() {
            host.slots.release(index);
        }
        self.guest_ip = None;
        let cgroup = self.cgroup.clone();
        let removed = blocking(move || {
            cgroup.remove();
            Ok::<_, AgentError>(())
        });
        if let Err(error) = removed.await {
            let error = chain(&error);
            tracing::warn!(%error, "cannot remove a control group; the next start of the agent does");
        }
        remove_runtime_dir(self.runtime_dir.clone()).await;
    }

    /// Removes the directory with everything in it.
    pub(crate) async fn remove(&self, host: &HostResources) {
        host.remove_dir(self.dir.clone()).await;
    }
}

/// Names that the guest of a slot has resolved and may keep using elsewhere. Names that cannot be
/// read are resolved again there.
pub(crate) async fn resolved(host: &HostResources, slot: Option<SlotIndex>) -> Vec<Resolved> {
    let Some(slot) = slot else { return Vec::new() };
    host.slots.resolved(slot).await.unwrap_or_else(|error| {
        tracing::warn!(%slot, error = %chain(&error), "cannot save resolved addresses");
        Vec::new()
    })
}

/// Removes the sockets of a machine.
pub(crate) async fn remove_runtime_dir(dir: PathBuf) {
    let remove = move || match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(AgentError::io("remove", &dir)(error))
        }
        _ => Ok(()),
    };
    if let Err(error) = blocking(remove).await {
        tracing::warn!(
            error = %chain(&error),
            "sockets stay behind; the next start of the agent removes them"
        );
    }
}

/// Creates a directory that only its owner can access.
pub(crate) fn make_dir(dir: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(dir).map_err(AgentError::io("create", dir))
}
