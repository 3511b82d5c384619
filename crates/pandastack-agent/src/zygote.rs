//! Zygotes: stopped, warmed machines from which creates are forked.
//!
//! A zygote is a hot form of a snapshot, not a pool: one serves any number of creates and uses no
//! processor time. Those of templates run no tenant code, and keep just enough privilege to give
//! each child a user of its own. Those of other snapshots have other rules: see
//! [`crate::snapshot_zygote`]. [`crate::zygotes`] keeps all of them.

use std::collections::HashSet;
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pandastack_engine::{Confinement, Machine, MachineFiles, MachineRecord, Restore, SaveTarget};
use pandastack_guest_proto::client::GuestClient;
use pandastack_guest_proto::message::Identity;
use pandastack_net::NetworkPolicy;
use pandastack_types::agent_api::VolumeSpec;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use crate::error::{AgentError, Result};
use crate::host_resources::HostResources;
use crate::launch::GUEST_ANSWER_MAX;
use crate::layout::{Layout, RECORD};
use crate::machine_resources::{MachineResources, Origin};
use crate::record::{read_json, write_json};
use crate::running_machine::kill;
use crate::snapshot::Snapshot;
use crate::volume::Original;

/// A stopped machine to fork from.
pub(crate) struct Zygote {
    pub machine: Arc<dyn Machine>,
    pub resources: MachineResources,
    /// Kept open: a guest that is forked while connected finds its new host connected from its
    /// first instruction.
    _guest: Option<GuestClient>,
    /// Key of the template it was made from, or id of the snapshot.
    pub key: String,
    /// Volumes that its children get copies of.
    volumes: Vec<VolumeSpec>,
    pub used: Mutex<Instant>,
    /// Shared by forks in progress; ending the zygote waits for them.
    users: Arc<RwLock<()>>,
}

impl Zygote {
    fn new(
        machine: Arc<dyn Machine>,
        resources: MachineResources,
        guest: Option<GuestClient>,
        key: String,
        volumes: Vec<VolumeSpec>,
    ) -> Self {
        let used = Mutex::new(Instant::now());
        Self { machine, resources, _guest: guest, key, volumes, used, users: Arc::default() }
    }

    /// Volume images that its children clone.
    pub(crate) fn originals(&self) -> Vec<Original> {
        self.resources.volumes(&self.volumes)
    }
}

/// A zygote that stays while this is held.
pub(crate) struct ZygoteLease {
    zygote: Arc<Zygote>,
    _user: OwnedRwLockReadGuard<()>,
}

impl ZygoteLease {
    /// A lease of a zygote that is not being ended.
    pub(crate) fn take(zygote: &Arc<Zygote>) -> Option<Self> {
        let user = zygote.users.clone().try_read_owned().ok()?;
        *zygote.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Some(Self { zygote: zygote.clone(), _user: user })
    }
}

impl Deref for ZygoteLease {
    type Target = Zygote;

    fn deref(&self) -> &Zygote {
        &self.zygote
    }
}

/// The record of a zygote on disk.
#[derive(Serialize, Deserialize)]
struct ZygoteRecord {
    key: String,
    machine: MachineRecord,
    slot: Option<u32>,
    #[serde(default)]
    volumes: Vec<VolumeSpec>,
}

/// Slots of zygotes that a predecessor left, for the slot pool to keep.
pub(crate) fn slots_on_disk(layout: &Layout) -> HashSet<u32> {
    let dirs = std::fs::read_dir(layout.zygotes()).into_iter().flatten().flatten();
    let records = dirs.filter_map(|dir| read_json::<ZygoteRecord>(&dir.path().join(RECORD)).ok());
    records.filter_map(|record| record.slot).collect()
}

fn zygote_name(template: &str) -> String {
    format!("zygote-{template}")
}

/// Takes over a zygote of the agent's predecessor.
pub(crate) async fn adopt(
    host: &HostResources,
    name: &str,
    dir: &Path,
    slots: &HashSet<u32>,
) -> Result<Zygote> {
    let record: ZygoteRecord = read_json(&dir.join(RECORD))?;
    let runtime_dir = record.machine.runtime_dir.clone();
    let machine = host.engine.adopt(record.machine).await?;
    let slot = record.slot.filter(|slot| slots.contains(slot));
    let resources =
        MachineResources::adopted(host, &zygote_name(name), dir.join("machine"), runtime_dir, slot);
    Ok(Zygote::new(machine, resources, None, record.key, record.volumes))
}

/// Releases the slot that was kept for a zygote that no longer exists.
pub(crate) async fn release_lost(host: &HostResources, name: &str, dir: &Path, slots: &HashSet<u32>) {
    if let Ok(record) = read_json::<ZygoteRecord>(&dir.join(RECORD)) {
        let (machine_dir, sockets) = (dir.join("machine"), record.machine.runtime_dir);
        let slot = record.slot.filter(|slot| slots.contains(slot));
        MachineResources::adopted(host, &zygote_name(name), machine_dir, sockets, slot).release(host).await;
    }
}

/// Ends a zygote once no fork from it is in progress. No new fork can start: the zygote is no
/// longer listed.
pub(crate) async fn end(host: &HostResources, name: &str, zygote: Arc<Zygote>) {
    let _alone = zygote.users.write().await;
    kill(zygote.machine.as_ref()).await;
    let slot = zygote.resources.slot.map(|index| u32::from(index.0));
    let runtime_dir = zygote.machine.record().runtime_dir.clone();
    let dir = host.layout.zygotes().join(name);
    let mut resources =
        MachineResources::adopted(host, &zygote_name(name), dir.join("machine"), runtime_dir, slot);
    resources.release(host).await;
    host.remove_dir(dir).await;
}

/// A machine that is to become a zygote.
pub(crate) struct StartedZygote {
    machine: Arc<dyn Machine>,
    resources: MachineResources,
    volumes: Vec<VolumeSpec>,
}

impl StartedZygote {
    /// Restores a snapshot in surroundings of its own.
    pub(crate) async fn restore(
        host: &HostResources,
        name: &str,
        snapshot: &Snapshot,
        confinement: Confinement,
        network: &NetworkPolicy,
    ) -> Result<Self> {
        let dir = host.layout.zygotes().join(name);
        host.remove_dir(dir.clone()).await;
        let (memory, disk, shape) = (snapshot.memory(), snapshot.disk(), snapshot.manifest.shape);
        let origin = Origin { memory: &memory, disk: Some(&disk), shape };
        let (name, machine_dir) = (zygote_name(name), dir.join("machine"));
        let (mut resources, place) =
            MachineResources::prepare(host, &name, machine_dir, &origin, confinement, network).await?;
        let restored = async {
            let volumes = resources.take_volumes(host, snapshot.volumes(&host.layout)).await?;
            let (state, memory) = (snapshot.state(), resources.memory());
            let restore = Restore { shape, place: MachineFiles { volumes, ..place }, state, memory };
            Ok::<_, AgentError>(host.engine.restore(restore).await?)
        };
        match restored.await {
            Ok(machine) => Ok(Self { machine, resources, volumes: snapshot.manifest.volumes.clone() }),
            Err(error) => {
                resources.release(host).await;
                host.remove_dir(dir).await;
                Err(error)
            }
        }
    }

    /// Resumes it and waits for its guest.
    pub(crate) async fn run(&self) -> Result<GuestClient> {
        let pid = self.machine.record().pid;
        let group = self.resources.cgroup();
        group.add(pid).map_err(AgentError::io("move into the control group", &self.resources.dir))?;
        let stream = self.machine.connect_guest().await?;
        self.machine.resume().await?;
        Ok(GuestClient::connect(stream, GUEST_ANSWER_MAX).await?)
    }

    /// Rehearses a machine's start: freezes, stops, and continues with a new connection and a new
    /// identity. Code that only this path runs is translated here once, instead of in every child.
    pub(crate) async fn rehearse(&self, guest: GuestClient, identity: Identity) -> Result<GuestClient> {
        guest.quiesce(true).await?;
        self.machine.pause().await?;
        drop(guest);
        let stream = self.machine.connect_guest().await?;
        self.machine.resume().await?;
        let (guest, _) = GuestClient::connect_with_identity(stream, identity, GUEST_ANSWER_MAX).await?;
        Ok(guest)
    }

    /// Stops it for good and records it. If it could not be warmed or stopped, removes it.
    pub(crate) async fn stop(
        mut self,
        host: &HostResources,
        name: &str,
        key: &str,
        warmed: Result<GuestClient>,
    ) -> Result<Zygote> {
        let stopped = match warmed {
            Ok(guest) => self.stop_and_record(host, name, key, &guest).await.map(|()| guest),
            Err(error) => Err(error),
        };
        match stopped {
            Ok(guest) => {
                Ok(Zygote::new(self.machine, self.resources, Some(guest), key.to_owned(), self.volumes))
            }
            Err(error) => {
                kill(self.machine.as_ref()).await;
                self.resources.release(host).await;
                host.remove_dir(host.layout.zygotes().join(name)).await;
                Err(error)
            }
        }
    }

    async fn stop_and_record(
        &self,
        host: &HostResources,
        name: &str,
        key: &str,
        guest: &GuestClient,
    ) -> Result<()> {
        // The file system is synced while the machine still runs: a clone of a dirty file flushes
        // it first, and that flush would be part of every create.
        guest.quiesce(true).await?;
        self.machine.pause().await?;
        sync_file(&self.resources.disk()).await?;
        for (_, image) in self.resources.volumes(&self.volumes) {
            sync_file(&image).await?;
        }
        save_below(host, &self.resources, self.machine.as_ref()).await?;
        let slot = self.resources.slot.map(|index| u32::from(index.0));
        let (machine, volumes) = (self.machine.record().clone(), self.volumes.clone());
        let record = ZygoteRecord { key: key.to_owned(), machine, slot, volumes };
        write_json(&host.layout.zygotes().join(name).join(RECORD), &record)
    }
}

/// Writes the warmed memory to the file that children are based on. Warming created pages that are
/// private in the zygote and in every child, though no child wrote them; relative to this file, a
/// child's snapshot contains only the child's own changes.
async fn save_below(host: &HostResources, resources: &MachineResources, machine: &dyn Machine) -> Result<()> {
    let (store, base) = (host.store.clone(), resources.memory());
    let (memory, state) = (resources.dir.join("memory.warm"), resources.dir.join("state.warm"));
    let target = SaveTarget { state: state.clone(), memory: memory.clone(), base: base.clone() };
    let clone = {
        let (base, memory) = (base.clone(), memory.clone());
        move || store.clone_file(&base, &memory)
    };
    crate::blocking::blocking(clone).await?;
    let saved = machine.save(target).await?;
    tracing::debug!(bytes = saved.memory_bytes_written, "saved a zygote's memory");
    crate::blocking::blocking(move || {
        crate::snapshot::keep_private(&memory)?;
        std::fs::remove_file(&state).map_err(AgentError::io("remove", &state))?;
        // The zygote's own mapping keeps the file it was restored from.
        std::fs::rename(&memory, &base).map_err(AgentError::io("rename", &base))
    })
    .await
}

/// Waits until a file's contents are on disk.
pub(crate) async fn sync_file(path: &std::path::Path) -> Result<()> {
    let path = path.to_owned();
    crate::blocking::blocking(move || {
        let file = std::fs::File::open(&path).map_err(AgentError::io("open", &path))?;
        file.sync_all().map_err(AgentError::io("sync", &path))
    })
    .await
}
