//! Resources that the machines of a host share: the engine, the store, network slots, control
//! groups and the agent's tasks.
//!
//! Everything that makes, saves or ends machines needs this and no more. Sandboxes and templates
//! are above it, in [`crate::host`].

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pandastack_engine::Engine;
use pandastack_image::Store;
use pandastack_net::SlotPool;
use pandastack_types::chain;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::blocking::blocking;
use crate::budget::HeldOutput;
use crate::cgroup::Cgroups;
use crate::config::AgentConfig;
use crate::layout::Layout;
use crate::log_limit::LogLimit;
use crate::spares::Spares;

/// First user id of machines: above what distributions, containers and directory services hand out.
pub(crate) const UID_FIRST: u32 = 0x7000_0000;
/// User ids of machines; after this many lineages they are reused.
const UID_COUNT: u32 = 0x0fff_0000;

/// Resources shared by the machines of a host.
pub(crate) struct HostResources {
    pub config: AgentConfig,
    pub engine: Arc<dyn Engine>,
    pub store: Arc<Store>,
    pub slots: Arc<SlotPool>,
    pub cgroups: Cgroups,
    /// Keeps what machines log bounded.
    pub log_limit: Arc<LogLimit>,
    /// Output that is held for callers.
    pub held_output: Arc<HeldOutput>,
    pub layout: Layout,
    /// Rung after every change that control should hear of.
    pub changed: Notify,
    /// Owns every task that outlives the request that began it.
    pub tasks: TaskTracker,
    pub shutdown: CancellationToken,
    /// Checksums are computed one snapshot at a time.
    pub checksum_turn: Arc<Semaphore>,
    /// Volumes are removed one after the other: a second request finds the volume gone, not in use.
    pub removal_turn: Arc<tokio::sync::Mutex<()>>,
    /// Places for machines that are prepared ahead.
    pub spares: Spares,
    next_uid: AtomicU32,
}

/// The parts of [`HostResources`].
pub(crate) struct HostParts {
    pub config: AgentConfig,
    pub engine: Arc<dyn Engine>,
    pub store: Arc<Store>,
    pub slots: Arc<SlotPool>,
    pub cgroups: Cgroups,
    pub log_limit: Arc<LogLimit>,
    pub layout: Layout,
    pub shutdown: CancellationToken,
}

impl HostResources {
    pub(crate) fn new(parts: HostParts) -> Arc<Self> {
        let HostParts { config, engine, store, slots, cgroups, log_limit, layout, shutdown } = parts;
        Arc::new(Self {
            config,
            engine,
            store,
            slots,
            cgroups,
            log_limit,
            held_output: Arc::default(),
            layout,
            changed: Notify::new(),
            tasks: TaskTracker::new(),
            shutdown,
            checksum_turn: Arc::new(Semaphore::new(1)),
            removal_turn: Arc::default(),
            spares: Spares::default(),
            next_uid: AtomicU32::new(0),
        })
    }

    /// A user id for a new lineage.
    pub(crate) fn new_uid(&self) -> u32 {
        UID_FIRST + self.next_uid.fetch_add(1, Ordering::Relaxed) % UID_COUNT
    }

    /// Makes sure that new lineages get numbers above one in use.
    pub(crate) fn reserve_uid(&self, uid: u32) {
        self.next_uid.fetch_max(uid.saturating_sub(UID_FIRST) + 1, Ordering::Relaxed);
    }

    /// Removes a directory of the store; what cannot be removed is logged and swept by the next start.
    pub(crate) async fn remove_dir(&self, dir: PathBuf) {
        let store = self.store.clone();
        let shown = dir.display().to_string();
        if let Err(error) = blocking(move || store.remove(&dir)).await {
            tracing::warn!(dir = shown, error = %chain(&error), "cannot remove a directory");
        }
    }
}
