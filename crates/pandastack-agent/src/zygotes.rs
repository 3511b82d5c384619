//! The zygotes of a host: stores them by name, hands them out, limits and removes them, and adopts
//! them from a previous agent.
//!
//! One stopped machine per template and per frequently used snapshot ([`crate::snapshot_zygote`]).
//! While there is none, creates restore the snapshot and a zygote is made in the background.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pandastack_engine::{Confinement, MachineRecord};
use pandastack_guest_proto::client::GuestClient;
use pandastack_net::NetworkPolicy;
use pandastack_types::{SnapshotId, chain};

use crate::error::Result;
use crate::host_resources::{HostResources, UID_FIRST};
use crate::identity::identity;
use crate::record::{BootMode, SandboxRecord};
use crate::variant::BakedTemplate;
use crate::warm;
use crate::zygote::{self, StartedZygote, Zygote, ZygoteLease};

/// Zygotes of templates kept at once; the least recently used goes first.
const TEMPLATE_ZYGOTES_MAX: usize = 8;
/// The same for zygotes of snapshots, which never crowd out those of templates.
const SNAPSHOT_ZYGOTES_MAX: usize = 4;
/// Number of times that a zygote rehearses the start of a child before it stops.
const REHEARSALS: u32 = 2;
/// Snapshots whose uses are counted; those not used for longest are forgotten, and counted again.
const COUNTED_MAX: usize = 256;
/// Prefix of the directory names of these zygotes. No template's name has an `@`.
const SNAPSHOT_PREFIX: &str = "snapshot@";

/// Returns whether a zygote's name belongs to a snapshot.
fn is_of_snapshot(name: &str) -> bool {
    name.starts_with(SNAPSHOT_PREFIX)
}

/// Name of a snapshot's zygote.
pub(crate) fn of_snapshot(id: &SnapshotId) -> String {
    format!("{SNAPSHOT_PREFIX}{id}")
}

/// Use counts of snapshots, the latest last.
#[derive(Default)]
pub(crate) struct SnapshotUses {
    counted: Mutex<VecDeque<(SnapshotId, u32)>>,
}

impl SnapshotUses {
    /// Counts a use and returns how many there were.
    pub(crate) fn count(&self, id: &SnapshotId) -> u32 {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let at = counted.iter().position(|(known, _)| known == id);
        let before = at.and_then(|at| counted.remove(at)).map_or(0, |(_, uses)| uses);
        if counted.len() == COUNTED_MAX {
            counted.pop_front();
        }
        let uses = before.saturating_add(1);
        counted.push_back((id.clone(), uses));
        uses
    }
}

/// The zygotes of a host, by the names of their directories.
pub(crate) struct Zygotes {
    host: Arc<HostResources>,
    by_name: Mutex<HashMap<String, State>>,
    pub(crate) snapshot_uses: SnapshotUses,
}

enum State {
    Making,
    Ready(Arc<Zygote>),
    /// The zygote's directory still belongs to a predecessor that is ending.
    Ending,
}

impl Zygotes {
    pub(crate) fn new(host: Arc<HostResources>) -> Arc<Self> {
        Arc::new(Self { host, by_name: Mutex::new(HashMap::new()), snapshot_uses: SnapshotUses::default() })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, State>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The zygote of that template, if there is one now.
    pub(crate) fn get(&self, baked: &BakedTemplate) -> Option<ZygoteLease> {
        self.lease(&baked.name, &baked.key)
    }

    pub(crate) fn lease(&self, name: &str, key: &str) -> Option<ZygoteLease> {
        let zygotes = self.lock();
        let Some(State::Ready(zygote)) = zygotes.get(name) else { return None };
        if zygote.key != key || zygote.machine.exited().borrow().is_some() {
            return None;
        }
        ZygoteLease::take(zygote)
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

    /// Creates the zygote of a template in the background unless it exists or is being made, or forks do
    /// not work here.
    pub(crate) fn create_in_background(self: &Arc<Self>, baked: &Arc<BakedTemplate>) {
        let making = {
            let (host, baked) = (self.host.clone(), baked.clone());
            async move { make(&host, &baked).await }
        };
        self.begin(&baked.name, &baked.key, making);
    }

    /// Runs `making` in the background unless the zygote exists or is being made, or forks do not
    /// work here.
    pub(crate) fn begin(
        self: &Arc<Self>,
        name: &str,
        key: &str,
        making: impl Future<Output = Result<Zygote>> + Send + 'static,
    ) {
        let wanted = self.host.config.zygotes && self.host.engine.capabilities().fork;
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
        let (zygotes, name) = (self.clone(), name.to_owned());
        self.host.tasks.spawn(async move {
            if let Some(zygote) = outdated {
                zygote::end(&zygotes.host, &name, zygote).await;
            }
            match making.await {
                Ok(zygote) => {
                    tracing::info!(of = name, pid = zygote.machine.record().pid, "zygote ready");
                    zygotes.lock().insert(name.clone(), State::Ready(Arc::new(zygote)));
                    zygotes.end_orphan(&name).await;
                }
                Err(error) => {
                    tracing::warn!(
                        of = name, error = %chain(&error),
                        "no zygote; creates restore the snapshot instead"
                    );
                    zygotes.lock().remove(&name);
                }
            }
            zygotes.evict(false, TEMPLATE_ZYGOTES_MAX).await;
            zygotes.evict(true, SNAPSHOT_ZYGOTES_MAX).await;
            zygotes.host.changed.notify_one();
        });
    }

    /// Ends the least recently used zygotes, of snapshots or of templates, beyond `max`.
    async fn evict(&self, of_snapshots: bool, max: usize) {
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
            self.remove(&oldest).await;
        }
    }

    /// Ends zygotes of snapshots unused for that long; returns the time until the next may be.
    pub(crate) async fn end_unused(&self, unused_max: Duration) -> Duration {
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
            self.remove(&name).await;
        }
        next
    }

    /// Ends the zygote of that name. A zygote still being made is not affected.
    pub(crate) async fn remove(&self, name: &str) {
        let found = match self.lock().get_mut(name) {
            Some(state @ State::Ready(_)) => std::mem::replace(state, State::Ending),
            _ => return,
        };
        // Also if this future is dropped early.
        let _unlist = UnlistOnDrop { zygotes: self, name };
        if let State::Ready(zygote) = found {
            zygote::end(&self.host, name, zygote).await;
        }
    }

    /// Takes over the zygotes of the agent's predecessor. Zygotes that cannot be adopted are
    /// removed. `slots`: their slots that exist and belong to no sandbox.
    pub(crate) async fn adopt(&self, slots: &HashSet<u32>) {
        let host = &self.host;
        for entry in std::fs::read_dir(host.layout.zygotes()).into_iter().flatten().flatten() {
            let (dir, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            match zygote::adopt(host, &name, &dir, slots).await {
                Ok(zygote) => {
                    self.lock().insert(name.clone(), State::Ready(Arc::new(zygote)));
                    self.end_orphan(&name).await;
                }
                Err(error) => {
                    tracing::info!(
                        template = name, error = %chain(&error),
                        "a zygote did not survive the restart; creating it again"
                    );
                    zygote::release_lost(host, &name, &dir, slots).await;
                    host.remove_dir(dir).await;
                }
            }
        }
    }

    /// Ends the zygote of a snapshot that is being deleted.
    pub(crate) async fn remove_of_snapshot(&self, id: &SnapshotId) {
        self.remove(&of_snapshot(id)).await;
    }

    /// Ends all zygotes of snapshots: memory is needed for machines that run.
    pub(crate) async fn end_all_of_snapshots(&self) {
        self.evict(true, 0).await;
    }

    /// Ends a zygote whose snapshot was deleted while it was being made, or while no agent ran.
    async fn end_orphan(&self, name: &str) {
        let id = name.strip_prefix(SNAPSHOT_PREFIX).and_then(|id| id.parse::<SnapshotId>().ok());
        if id.is_some_and(|id| !self.host.layout.snapshot(&id).exists()) {
            self.remove(name).await;
        }
    }
}

/// Takes a name off the list at its end.
struct UnlistOnDrop<'a> {
    zygotes: &'a Zygotes,
    name: &'a str,
}

impl Drop for UnlistOnDrop<'_> {
    fn drop(&mut self) {
        self.zygotes.lock().remove(self.name);
    }
}

async fn make(host: &HostResources, baked: &BakedTemplate) -> Result<Zygote> {
    let (confinement, network) = (Confinement::Zygote, NetworkPolicy::all());
    let started = StartedZygote::restore(host, &baked.name, &baked.snapshot, confinement, &network).await?;
    let warmed = warm_template(host, &started, baked).await;
    started.stop(host, &baked.name, &baked.key, warmed).await
}

async fn warm_template(
    host: &HostResources,
    started: &StartedZygote,
    baked: &BakedTemplate,
) -> Result<GuestClient> {
    let guest = started.run().await?;
    let record = SandboxRecord::new(
        baked.warm_spec(),
        &baked.template,
        baked.snapshot.manifest.shape,
        UID_FIRST,
        BootMode::Restore,
    );
    let guests = &host.config.guests;
    guest.set_identity(identity(&record, guests, false)).await?;
    warm::warm(&guest, &baked.warm_commands).await?;
    let mut guest = guest;
    for _ in 0..REHEARSALS {
        guest = started.rehearse(guest, identity(&record, guests, false)).await?;
    }
    Ok(guest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_uses_are_counted_and_old_ones_forgotten() {
        let (uses, first) = (SnapshotUses::default(), SnapshotId::random());
        assert_eq!([uses.count(&first), uses.count(&first)], [1, 2]);
        (1..COUNTED_MAX).for_each(|_| assert_eq!(uses.count(&SnapshotId::random()), 1));
        assert_eq!(uses.count(&first), 3, "used lately");
        (0..COUNTED_MAX).for_each(|_| assert_eq!(uses.count(&SnapshotId::random()), 1));
        assert_eq!(uses.count(&first), 1, "forgotten");
    }

    #[test]
    fn zygote_names_identify_snapshot_zygotes() {
        assert!(is_of_snapshot(&of_snapshot(&SnapshotId::random())));
        assert!(!is_of_snapshot("base") && !is_of_snapshot("snapshot-tools"));
    }
}
