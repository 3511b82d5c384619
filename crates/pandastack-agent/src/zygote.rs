//! Zygotes: one stopped, warmed machine per template, from which creates are forked.
//!
//! A zygote is a hot form of the template's snapshot, not a pool: one serves any number of creates and uses no
//! processor time. Where there is none yet, creates restore the snapshot and a zygote is made behind them. It runs no
//! tenant code, and keeps just enough privilege to give each child a user of its own.
//!
//! Snapshots that are used often get one too, under other rules: see [`crate::snapshot_zygote`]. Here all of them are kept,
//! handed out ([`Lease`]), limited, ended, and adopted from a predecessor.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pandastack_engine::{Confinement, Machine, MachineRecord, Place, Restore, SaveTarget};
use pandastack_guest_proto::client::GuestClient;
use pandastack_guest_proto::message::{Identity, ProcessSpec};
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use crate::error::{AgentError, Result};
use crate::home::{Home, Origin};
use crate::host::Host;
use crate::launch::{self, GUEST_ANSWER_MAX};
use crate::layout::RECORD;
use crate::record::{BootMode, read_json, write_json};
use crate::snapshot::Snapshot;
use crate::snapshot_zygote::{SnapshotUses, end_orphan, is_of_snapshot};
use crate::template::Baked;
use crate::volume::Original;
use pandastack_net::NetworkPolicy;
use pandastack_types::agent_api::VolumeSpec;

/// Zygotes of templates kept at once; the least recently used goes first.
const TEMPLATE_ZYGOTES_MAX: usize = 8;
/// The same for zygotes of snapshots, which never crowd out those of templates.
const SNAPSHOT_ZYGOTES_MAX: usize = 4;
/// How often the beginning of a child is gone through before a zygote stops.
const REHEARSALS: u32 = 2;
/// How long one warm-up command may take.
pub(crate) const WARM_COMMAND_MAX: Duration = Duration::from_secs(120);

/// A stopped machine to fork from.
pub(crate) struct Zygote {
    pub machine: Arc<dyn Machine>,
    pub home: Home,
    /// Kept open: a guest that is forked while connected finds its new host connected from its first instruction.
    _guest: Option<GuestClient>,
    /// Key of the template it was made from, or id of the snapshot.
    key: String,
    /// Volumes that its children get copies of.
    volumes: Vec<VolumeSpec>,
    used: Mutex<Instant>,
    /// Shared by those who fork from it; whoever ends it waits for them.
    users: Arc<RwLock<()>>,
}

impl Zygote {
    fn new(
        machine: Arc<dyn Machine>,
        home: Home,
        guest: Option<GuestClient>,
        key: String,
        volumes: Vec<VolumeSpec>,
    ) -> Self {
        let used = Mutex::new(Instant::now());
        Self { machine, home, _guest: guest, key, volumes, used, users: Arc::default() }
    }

    /// What its children get copies of.
    pub(crate) fn originals(&self) -> Vec<Original> {
        self.home.volumes(&self.volumes)
    }
}

/// A zygote that stays while this is held.
pub(crate) struct Lease {
    zygote: Arc<Zygote>,
    _user: OwnedRwLockReadGuard<()>,
}

impl Deref for Lease {
    type Target = Zygote;

    fn deref(&self) -> &Zygote {
        &self.zygote
    }
}

/// The zygotes of a host, by the names of their directories.
pub(crate) struct Zygotes {
    by_name: Mutex<HashMap<String, State>>,
    pub(crate) snapshot_uses: SnapshotUses,
}

enum State {
    Making,
    Ready(Arc<Zygote>),
    /// Its directory still belongs to one that is on its way out.
    Ending,
}

/// What is written down about a zygote.
#[derive(Serialize, Deserialize)]
struct ZygoteRecord {
    key: String,
    machine: MachineRecord,
    slot: Option<u32>,
    #[serde(default)]
    volumes: Vec<VolumeSpec>,
}

impl Zygotes {
    pub(crate) fn new() -> Self {
        Self { by_name: Mutex::new(HashMap::new()), snapshot_uses: SnapshotUses::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, State>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The zygote of that template, if there is one now.
    pub(crate) fn get(&self, baked: &Baked) -> Option<Lease> {
        self.lease(&baked.name, &baked.key)
    }

    pub(crate) fn lease(&self, name: &str, key: &str) -> Option<Lease> {
        let zygotes = self.lock();
        let Some(State::Ready(zygote)) = zygotes.get(name) else { return None };
        if zygote.key != key || zygote.machine.exited().borrow().is_some() {
            return None;
        }
        let user = zygote.users.clone().try_read_owned().ok()?;
        *zygote.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Some(Lease { zygote: zygote.clone(), _user: user })
    }

    /// Processes of zygotes.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.records().into_iter().map(|record| record.pid).collect()
    }

    /// Socket directories of zygotes.
    pub(crate) fn runtime_dirs(&self) -> Vec<PathBuf> {
        self.records().into_iter().map(|record| record.runtime_dir).collect()
    }

    fn records(&self) -> Vec<MachineRecord> {
        let ready = |state: &State| match state {
            State::Ready(zygote) => Some(zygote.machine.record().clone()),
            State::Making | State::Ending => None,
        };
        self.lock().values().filter_map(ready).collect()
    }

    /// Makes the zygote of a template in the background unless one is there or being made, or forks do not work here.
    pub(crate) fn make_behind(&self, host: &Arc<Host>, baked: &Arc<Baked>) {
        let making = {
            let (host, baked) = (host.clone(), baked.clone());
            async move { make(&host, &baked).await }
        };
        self.begin(host, &baked.name, &baked.key, making);
    }

    /// Runs `making` in the background unless the zygote is there or being made, or forks do not work here.
    pub(crate) fn begin(
        &self,
        host: &Arc<Host>,
        name: &str,
        key: &str,
        making: impl Future<Output = Result<Zygote>> + Send + 'static,
    ) {
        let wanted = host.config.zygotes && host.engine.capabilities().fork;
        if !wanted || self.lease(name, key).is_some() {
            return;
        }
        let outdated = {
            let mut zygotes = self.lock();
            if matches!(zygotes.get(name), Some(State::Making | State::Ending)) {
                return;
            }
            match zygotes.insert(name.to_owned(), State::Making) {
                Some(State::Ready(zygote)) => Some(zygote),
                _ => None,
            }
        };
        let (host, name) = (host.clone(), name.to_owned());
        host.tasks.clone().spawn(async move {
            if let Some(zygote) = outdated {
                end(&host, &name, zygote).await;
            }
            match making.await {
                Ok(zygote) => {
                    tracing::info!(of = name, pid = zygote.machine.record().pid, "zygote ready");
                    host.zygotes.lock().insert(name.clone(), State::Ready(Arc::new(zygote)));
                    end_orphan(&host, &name).await;
                }
                Err(error) => {
                    tracing::warn!(of = name, %error, "no zygote; creates restore the snapshot instead");
                    host.zygotes.lock().remove(&name);
                }
            }
            host.zygotes.evict(&host, false, TEMPLATE_ZYGOTES_MAX).await;
            host.zygotes.evict(&host, true, SNAPSHOT_ZYGOTES_MAX).await;
            host.changed.notify_one();
        });
    }

    /// Ends the least recently used zygotes, of snapshots or of templates, beyond `max`.
    pub(crate) async fn evict(&self, host: &Host, of_snapshots: bool, max: usize) {
        loop {
            let oldest = {
                let zygotes = self.lock();
                let used = |state: &State| match state {
                    State::Ready(zygote) => Some(*zygote.used.lock().unwrap_or_else(PoisonError::into_inner)),
                    State::Making | State::Ending => None,
                };
                let of_kind = zygotes.iter().filter(|(name, _)| is_of_snapshot(name) == of_snapshots);
                let mut ready: Vec<_> =
                    of_kind.filter_map(|(name, state)| Some((used(state)?, name.clone()))).collect();
                if ready.len() <= max {
                    return;
                }
                ready.sort();
                ready.swap_remove(0).1
            };
            self.remove(host, &oldest).await;
        }
    }

    /// Ends zygotes of snapshots that nobody used for that long; answers when the next may be unused for as long.
    pub(crate) async fn end_unused(&self, host: &Host, unused_max: Duration) -> Duration {
        let mut next = unused_max;
        let mut over = Vec::new();
        for (name, state) in self.lock().iter() {
            let State::Ready(zygote) = state else { continue };
            let unused = zygote.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
            match unused_max.checked_sub(unused).filter(|left| !left.is_zero()) {
                Some(left) => next = next.min(left),
                None if is_of_snapshot(name) => over.push(name.clone()),
                None => {}
            }
        }
        for name in over {
            self.remove(host, &name).await;
        }
        next
    }

    /// Ends the zygote of that name. One that is being made is not there yet.
    pub(crate) async fn remove(&self, host: &Host, name: &str) {
        let found = match self.lock().get_mut(name) {
            Some(state @ State::Ready(_)) => std::mem::replace(state, State::Ending),
            _ => return,
        };
        // Also when this is given up half way.
        let _unlist = Unlist { zygotes: self, name };
        if let State::Ready(zygote) = found {
            end(host, name, zygote).await;
        }
    }

    /// Takes over the zygotes of the agent's predecessor. The ones that cannot be are removed. `slots`: which of theirs are there and
    /// no sandbox's.
    pub(crate) async fn adopt(&self, host: &Host, slots: &HashSet<u32>) {
        for entry in std::fs::read_dir(host.layout.zygotes()).into_iter().flatten().flatten() {
            let (dir, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            match adopt_one(host, &name, &dir, slots).await {
                Ok(zygote) => {
                    self.lock().insert(name.clone(), State::Ready(Arc::new(zygote)));
                    end_orphan(host, &name).await;
                }
                Err(error) => {
                    tracing::info!(template = name, %error, "a zygote did not survive; it is made again");
                    release_lost(host, &name, &dir, slots).await;
                    host.remove_dir(dir).await;
                }
            }
        }
    }

    /// Slots of zygotes that a predecessor left, for the slot pool to keep.
    pub(crate) fn slots_on_disk(host: &Host) -> HashSet<u32> {
        let dirs = std::fs::read_dir(host.layout.zygotes()).into_iter().flatten().flatten();
        let records = dirs.filter_map(|dir| read_json::<ZygoteRecord>(&dir.path().join(RECORD)).ok());
        records.filter_map(|record| record.slot).collect()
    }
}

/// Takes a name off the list at its end.
struct Unlist<'a> {
    zygotes: &'a Zygotes,
    name: &'a str,
}

impl Drop for Unlist<'_> {
    fn drop(&mut self) {
        self.zygotes.lock().remove(self.name);
    }
}

fn zygote_name(template: &str) -> String {
    format!("zygote-{template}")
}

async fn adopt_one(host: &Host, name: &str, dir: &Path, slots: &HashSet<u32>) -> Result<Zygote> {
    let record: ZygoteRecord = read_json(&dir.join(RECORD))?;
    let runtime_dir = record.machine.runtime_dir.clone();
    let machine = host.engine.adopt(record.machine).await?;
    let slot = record.slot.filter(|slot| slots.contains(slot));
    let home = Home::adopted(host, &zygote_name(name), dir.join("machine"), runtime_dir, slot);
    Ok(Zygote::new(machine, home, None, record.key, record.volumes))
}

/// Gives back what a zygote held that is no more: its slot was kept for it.
async fn release_lost(host: &Host, name: &str, dir: &Path, slots: &HashSet<u32>) {
    if let Ok(record) = read_json::<ZygoteRecord>(&dir.join(RECORD)) {
        let (home, sockets) = (dir.join("machine"), record.machine.runtime_dir);
        let slot = record.slot.filter(|slot| slots.contains(slot));
        Home::adopted(host, &zygote_name(name), home, sockets, slot).release(host).await;
    }
}

/// Ends a zygote once nobody forks from it any more. No one can have begun meanwhile: it is no longer listed.
async fn end(host: &Host, name: &str, zygote: Arc<Zygote>) {
    let _alone = zygote.users.write().await;
    launch::kill(zygote.machine.as_ref()).await;
    let slot = zygote.home.slot.map(|index| u32::from(index.0));
    let runtime_dir = zygote.machine.record().runtime_dir.clone();
    let dir = host.layout.zygotes().join(name);
    let mut home = Home::adopted(host, &zygote_name(name), dir.join("machine"), runtime_dir, slot);
    home.release(host).await;
    host.remove_dir(dir).await;
}

async fn make(host: &Arc<Host>, baked: &Baked) -> Result<Zygote> {
    let (confinement, network) = (Confinement::Zygote, NetworkPolicy::all());
    let started = Started::restore(host, &baked.name, &baked.snapshot, confinement, &network).await?;
    let warmed = warm_template(&started, baked).await;
    started.stop(host, &baked.name, &baked.key, warmed).await
}

async fn warm_template(started: &Started, baked: &Baked) -> Result<GuestClient> {
    let guest = started.run().await?;
    let record = launch::new_record(
        baked.warm_spec(),
        &baked.template,
        baked.snapshot.manifest.shape,
        crate::host::UID_FIRST,
        BootMode::Restore,
    );
    guest.set_identity(launch::identity(&record, false)).await?;
    warm(&guest, &baked.warm_commands).await?;
    let mut guest = guest;
    for _ in 0..REHEARSALS {
        guest = started.rehearse(guest, launch::identity(&record, false)).await?;
    }
    Ok(guest)
}

/// A machine that is to become a zygote.
pub(crate) struct Started {
    machine: Arc<dyn Machine>,
    home: Home,
    volumes: Vec<VolumeSpec>,
}

impl Started {
    /// Restores a snapshot in surroundings of its own.
    pub(crate) async fn restore(
        host: &Host,
        name: &str,
        snapshot: &Snapshot,
        confinement: Confinement,
        network: &NetworkPolicy,
    ) -> Result<Self> {
        let dir = host.layout.zygotes().join(name);
        host.remove_dir(dir.clone()).await;
        let (memory, disk, shape) = (snapshot.memory(), snapshot.disk(), snapshot.manifest.shape);
        let origin = Origin { memory: &memory, disk: Some(&disk), shape };
        let (name, home) = (zygote_name(name), dir.join("machine"));
        let (mut home, place) = Home::prepare(host, &name, home, &origin, confinement, network).await?;
        let restored = async {
            let volumes = home.take_volumes(host, snapshot.volumes(&host.layout)).await?;
            let (state, memory) = (snapshot.state(), home.memory());
            let restore = Restore { shape, place: Place { volumes, ..place }, state, memory };
            Ok::<_, AgentError>(host.engine.restore(restore).await?)
        };
        match restored.await {
            Ok(machine) => Ok(Self { machine, home, volumes: snapshot.manifest.volumes.clone() }),
            Err(error) => {
                home.release(host).await;
                host.remove_dir(dir).await;
                Err(error)
            }
        }
    }

    /// Lets it run and waits for its guest.
    pub(crate) async fn run(&self) -> Result<GuestClient> {
        let pid = self.machine.record().pid;
        let group = self.home.cgroup();
        group.add(pid).map_err(AgentError::io("move into the control group", &self.home.dir))?;
        let stream = self.machine.connect_guest().await?;
        self.machine.resume().await?;
        Ok(GuestClient::connect(stream, GUEST_ANSWER_MAX).await?)
    }

    /// Goes through what a machine goes through when it begins: frozen, stopped, on with a new connection and a new identity.
    /// Code that only this runs is translated here, once, instead of in every child.
    async fn rehearse(&self, guest: GuestClient, identity: Identity) -> Result<GuestClient> {
        guest.quiesce(true).await?;
        self.machine.pause().await?;
        drop(guest);
        let stream = self.machine.connect_guest().await?;
        self.machine.resume().await?;
        let (guest, _) = GuestClient::connect_with_identity(stream, identity, GUEST_ANSWER_MAX).await?;
        Ok(guest)
    }

    /// Stops it for good and writes it down; if it could not be warmed or stopped, nothing is left of it.
    pub(crate) async fn stop(
        mut self,
        host: &Host,
        name: &str,
        key: &str,
        warmed: Result<GuestClient>,
    ) -> Result<Zygote> {
        let stopped = match warmed {
            Ok(guest) => self.stop_and_record(host, name, key, &guest).await.map(|()| guest),
            Err(error) => Err(error),
        };
        match stopped {
            Ok(guest) => Ok(Zygote::new(self.machine, self.home, Some(guest), key.to_owned(), self.volumes)),
            Err(error) => {
                launch::kill(self.machine.as_ref()).await;
                self.home.release(host).await;
                host.remove_dir(host.layout.zygotes().join(name)).await;
                Err(error)
            }
        }
    }

    async fn stop_and_record(&self, host: &Host, name: &str, key: &str, guest: &GuestClient) -> Result<()> {
        // The file system is synced while the machine still runs: a clone of a dirty file flushes it first, and that
        // flush would be part of every create.
        guest.quiesce(true).await?;
        self.machine.pause().await?;
        sync_file(&self.home.disk()).await?;
        for (_, image) in self.home.volumes(&self.volumes) {
            sync_file(&image).await?;
        }
        save_below(host, &self.home, self.machine.as_ref()).await?;
        let slot = self.home.slot.map(|index| u32::from(index.0));
        let (machine, volumes) = (self.machine.record().clone(), self.volumes.clone());
        let record = ZygoteRecord { key: key.to_owned(), machine, slot, volumes };
        write_json(&host.layout.zygotes().join(name).join(RECORD), &record)
    }
}

/// Writes the warmed memory down as what children stand on. Warming made pages that are private in the zygote and in every
/// child, though no child wrote them; over this file a child's snapshot consists of what the child itself changed.
async fn save_below(host: &Host, home: &Home, machine: &dyn Machine) -> Result<()> {
    let (store, base) = (host.store.clone(), home.memory());
    let (memory, state) = (home.dir.join("memory.warm"), home.dir.join("state.warm"));
    let target = SaveTarget { state: state.clone(), memory: memory.clone(), base: base.clone() };
    let clone = {
        let (base, memory) = (base.clone(), memory.clone());
        move || store.clone_file(&base, &memory)
    };
    crate::blocking(clone).await?;
    let saved = machine.save(target).await?;
    tracing::debug!(bytes = saved.memory_bytes_written, "saved a zygote's memory");
    crate::blocking(move || {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&memory, std::fs::Permissions::from_mode(0o444))
            .map_err(AgentError::io("set permissions of", &memory))?;
        std::fs::remove_file(&state).map_err(AgentError::io("remove", &state))?;
        // The zygote's own mapping keeps the file it was restored from.
        std::fs::rename(&memory, &base).map_err(AgentError::io("rename", &base))
    })
    .await
}

/// Runs what users run first, so that its pages and translated code are there already. A command that fails is
/// reported, not fatal: the template is as usable as before.
pub(crate) async fn warm(guest: &GuestClient, commands: &[String]) -> Result<()> {
    for command in commands {
        let mut spec = ProcessSpec::shell(command.clone());
        spec.tag = Some(crate::process::WARM_TAG.to_owned());
        spec.timeout_ms = Some(WARM_COMMAND_MAX.as_millis() as u64);
        let outcome = crate::exec::run_to_end(guest, spec).await?;
        if outcome.exit.shell_code() != 0 {
            let stderr = String::from_utf8_lossy(&outcome.stderr).into_owned();
            tracing::warn!(command, code = outcome.exit.shell_code(), stderr, "a warm-up command failed");
        }
    }
    Ok(())
}

/// Waits until a file's contents are on disk.
pub(crate) async fn sync_file(path: &std::path::Path) -> Result<()> {
    let path = path.to_owned();
    crate::blocking(move || {
        let file = std::fs::File::open(&path).map_err(AgentError::io("open", &path))?;
        file.sync_all().map_err(AgentError::io("sync", &path))
    })
    .await
}
