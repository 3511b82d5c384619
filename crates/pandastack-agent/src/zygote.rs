//! Zygotes: one stopped, warmed machine per template, from which creates are forked.
//!
//! A zygote is a hot form of the template's snapshot, not a pool: one serves any number of creates and uses no
//! processor time. Where there is none yet, creates restore the snapshot and a zygote is made behind them. It runs no
//! tenant code, and keeps just enough privilege to give each child a user of its own.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pandastack_engine::{Confinement, Machine, MachineRecord, Restore, SaveTarget};
use pandastack_guest_proto::client::GuestClient;
use pandastack_guest_proto::message::ProcessSpec;
use serde::{Deserialize, Serialize};

use crate::error::{AgentError, Result};
use crate::home::{Home, Origin};
use crate::host::Host;
use crate::launch::{self, GUEST_ANSWER_MAX};
use crate::layout::RECORD;
use crate::record::{BootMode, read_json, write_json};
use crate::template::Baked;
use pandastack_net::NetworkPolicy;

/// Zygotes kept at once; the least recently used goes first.
const ZYGOTES_MAX: usize = 8;
/// How long one warm-up command may take.
pub(crate) const WARM_COMMAND_MAX: Duration = Duration::from_secs(120);

/// A stopped machine to fork from.
pub(crate) struct Zygote {
    pub machine: Arc<dyn Machine>,
    pub home: Home,
    /// Kept open: a guest that is forked while connected finds its new host connected from its first instruction.
    _guest: Option<GuestClient>,
    /// Key of the template it was made from.
    key: String,
    used: Mutex<Instant>,
}

/// The zygotes of a host.
pub(crate) struct Zygotes {
    by_template: Mutex<HashMap<String, State>>,
}

enum State {
    Making,
    Ready(Arc<Zygote>),
}

/// What is written down about a zygote.
#[derive(Serialize, Deserialize)]
struct ZygoteRecord {
    key: String,
    machine: MachineRecord,
    slot: Option<u32>,
}

impl Zygotes {
    pub(crate) fn new() -> Self {
        Self { by_template: Mutex::new(HashMap::new()) }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, State>> {
        self.by_template.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The zygote of that template, if there is one now.
    pub(crate) fn get(&self, baked: &Baked) -> Option<Arc<Zygote>> {
        match self.lock().get(&baked.name) {
            Some(State::Ready(zygote))
                if zygote.key == baked.key && zygote.machine.exited().borrow().is_none() =>
            {
                *zygote.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                Some(zygote.clone())
            }
            _ => None,
        }
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
            State::Making => None,
        };
        self.lock().values().filter_map(ready).collect()
    }

    /// Makes a zygote in the background unless one is there or being made, or forks do not work here.
    pub(crate) fn make_behind(&self, host: &Arc<Host>, baked: &Arc<Baked>) {
        let wanted = host.config.zygotes && host.engine.capabilities().fork;
        if !wanted || self.get(baked).is_some() {
            return;
        }
        let outdated = match self.lock().insert(baked.name.clone(), State::Making) {
            Some(State::Making) => return,
            Some(State::Ready(zygote)) => Some(zygote),
            None => None,
        };
        let (host, baked) = (host.clone(), baked.clone());
        host.tasks.clone().spawn(async move {
            if let Some(zygote) = outdated {
                end(&host, zygote).await;
            }
            match make(&host, &baked).await {
                Ok(zygote) => {
                    tracing::info!(template = baked.name, pid = zygote.machine.record().pid, "zygote ready");
                    host.zygotes.lock().insert(baked.name.clone(), State::Ready(Arc::new(zygote)));
                }
                Err(error) => {
                    tracing::warn!(template = baked.name, %error, "no zygote; creates restore the snapshot instead");
                    host.zygotes.lock().remove(&baked.name);
                }
            }
            host.zygotes.evict(&host).await;
            host.changed.notify_one();
        });
    }

    /// Ends the least recently used zygotes beyond [`ZYGOTES_MAX`].
    async fn evict(&self, host: &Host) {
        loop {
            let oldest = {
                let mut zygotes = self.lock();
                let used = |state: &State| match state {
                    State::Ready(zygote) => Some(*zygote.used.lock().unwrap_or_else(PoisonError::into_inner)),
                    State::Making => None,
                };
                if zygotes.len() <= ZYGOTES_MAX {
                    return;
                }
                let oldest =
                    zygotes.iter().filter_map(|(name, state)| Some((used(state)?, name.clone()))).min();
                oldest.and_then(|(_, name)| zygotes.remove(&name))
            };
            let Some(State::Ready(zygote)) = oldest else { return };
            end(host, zygote).await;
        }
    }

    /// Takes over the zygotes of the agent's predecessor. The ones that cannot be are removed.
    pub(crate) async fn adopt(&self, host: &Host) {
        for entry in std::fs::read_dir(host.layout.zygotes()).into_iter().flatten().flatten() {
            let (dir, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            match adopt_one(host, &name, &dir).await {
                Ok(zygote) => drop(self.lock().insert(name, State::Ready(Arc::new(zygote)))),
                Err(error) => {
                    tracing::info!(template = name, %error, "a zygote did not survive; it is made again");
                    host.remove_dir(dir).await;
                }
            }
        }
    }

    /// Slots of zygotes that a predecessor left, for the slot pool to keep.
    pub(crate) fn slots_on_disk(host: &Host) -> Vec<u32> {
        let dirs = std::fs::read_dir(host.layout.zygotes()).into_iter().flatten().flatten();
        let records = dirs.filter_map(|dir| read_json::<ZygoteRecord>(&dir.path().join(RECORD)).ok());
        records.filter_map(|record| record.slot).collect()
    }
}

fn zygote_name(template: &str) -> String {
    format!("zygote-{template}")
}

async fn adopt_one(host: &Host, name: &str, dir: &Path) -> Result<Zygote> {
    let record: ZygoteRecord = read_json(&dir.join(RECORD))?;
    let runtime_dir = record.machine.runtime_dir.clone();
    let machine = host.engine.adopt(record.machine).await?;
    let home = Home::adopted(host, &zygote_name(name), dir.join("machine"), runtime_dir, record.slot);
    Ok(Zygote { machine, home, _guest: None, key: record.key, used: Mutex::new(Instant::now()) })
}

/// Ends a zygote nobody forks from any more. A create that still holds it fails over to a plain restore.
async fn end(host: &Host, zygote: Arc<Zygote>) {
    launch::kill(zygote.machine.as_ref()).await;
    if let Some(Zygote { mut home, .. }) = Arc::into_inner(zygote) {
        home.release(host).await;
        home.remove(host).await;
    }
}

async fn make(host: &Arc<Host>, baked: &Baked) -> Result<Zygote> {
    let dir = host.layout.zygotes().join(&baked.name);
    host.remove_dir(dir.clone()).await;
    let dir = dir.join("machine");
    let snapshot = &baked.snapshot;
    let origin =
        Origin { memory: &snapshot.memory(), disk: Some(&snapshot.disk()), shape: snapshot.manifest.shape };
    let name = zygote_name(&baked.name);
    let (mut home, place) =
        Home::prepare(host, &name, dir, &origin, Confinement::Zygote, &NetworkPolicy::all()).await?;
    let restore = Restore { shape: origin.shape, place, state: snapshot.state(), memory: home.memory() };
    let machine = match host.engine.restore(restore).await {
        Ok(machine) => machine,
        Err(error) => {
            home.release(host).await;
            home.remove(host).await;
            return Err(error.into());
        }
    };
    match warm_and_stop(host, &home, machine.as_ref(), baked).await {
        Ok(guest) => {
            let (key, used) = (baked.key.clone(), Mutex::new(Instant::now()));
            Ok(Zygote { machine, home, _guest: Some(guest), key, used })
        }
        Err(error) => {
            launch::kill(machine.as_ref()).await;
            home.release(host).await;
            home.remove(host).await;
            Err(error)
        }
    }
}

async fn warm_and_stop(
    host: &Host,
    home: &Home,
    machine: &dyn Machine,
    baked: &Baked,
) -> Result<GuestClient> {
    let pid = machine.record().pid;
    home.cgroup().add(pid).map_err(AgentError::io("move into the control group", &home.dir))?;
    let stream = machine.connect_guest().await?;
    machine.resume().await?;
    let guest = GuestClient::connect(stream, GUEST_ANSWER_MAX).await?;
    let record = launch::new_record(
        baked.warm_spec(),
        &baked.name,
        baked.snapshot.manifest.shape,
        crate::host::UID_FIRST,
        BootMode::Restore,
    );
    guest.set_identity(launch::identity(&record, false)).await?;
    warm(&guest, &baked.warm_commands).await?;
    // The file system is synced while the machine still runs: a clone of a dirty file flushes it first, and that
    // flush would be part of every create.
    guest.quiesce(true).await?;
    machine.pause().await?;
    sync_file(&home.disk()).await?;
    save_below(host, home, machine).await?;
    let slot = home.slot.map(|index| u32::from(index.0));
    let record = ZygoteRecord { key: baked.key.clone(), machine: machine.record().clone(), slot };
    write_json(&host.layout.zygotes().join(&baked.name).join(RECORD), &record)?;
    Ok(guest)
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
