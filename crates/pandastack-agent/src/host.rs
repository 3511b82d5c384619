//! State that the parts of an agent share.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pandastack_engine::Shape;
use pandastack_types::{SandboxId, SnapshotId, chain};

use crate::denial_queue::DenialQueue;
use crate::error::{AgentError, Result};
use crate::host_resources::{HostParts, HostResources};
use crate::link::Link;
use crate::sandbox::handle::SandboxHandle;
use crate::template::Templates;
use crate::zygotes::Zygotes;

/// Memory left to the host and to the agent when the configuration names no limit.
const HOST_RESERVE_MB: u64 = 1024;
/// Percent of a sandbox's memory that is promised to it where all belong to one workspace. An idle
/// sandbox of 512 MiB has written 8 to 14 MiB and shares the rest with its template; the agent also
/// watches the memory that is really used.
const MEMORY_PROMISED_PERCENT_ALONE: u32 = 8;
/// The same with several workspaces: no workspace can use memory that was promised to another.
const MEMORY_PROMISED_PERCENT_SHARED: u32 = 100;
/// Longest time that a request may wait while others are written out to free memory.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(20);

/// Marks a driver as waiting for memory, until it is dropped.
struct MemoryRequest<'a> {
    host: &'a Host,
    by: &'a SandboxId,
}

impl<'a> MemoryRequest<'a> {
    fn begin(host: &'a Host, by: &'a SandboxId) -> Self {
        host.memory_requests().insert(by.clone());
        Self { host, by }
    }
}

impl Drop for MemoryRequest<'_> {
    fn drop(&mut self) {
        self.host.memory_requests().remove(self.by);
    }
}

/// One agent's state: the resources of its machines, its sandboxes and its templates.
pub(crate) struct Host {
    pub resources: Arc<HostResources>,
    pub templates: Arc<Templates>,
    pub zygotes: Arc<Zygotes>,
    pub link: Arc<Link>,
    /// Refused connections that were not reported to control yet.
    pub denials: DenialQueue,
    /// Whether several workspaces have sandboxes, as last reported by control.
    shared: AtomicBool,
    /// Sandboxes whose drivers wait for others to be written out, and serve no requests until then.
    memory_requests: Mutex<HashSet<SandboxId>>,
    sandboxes: Mutex<HashMap<SandboxId, SandboxHandle>>,
}

impl Deref for Host {
    type Target = HostResources;

    fn deref(&self) -> &HostResources {
        &self.resources
    }
}

impl Host {
    pub(crate) fn new(parts: HostParts, link: Link) -> Arc<Self> {
        let resources = HostResources::new(parts);
        let zygotes = Zygotes::new(resources.clone());
        Arc::new(Self {
            templates: Templates::new(resources.clone(), zygotes.clone()),
            zygotes,
            resources,
            link: Arc::new(link),
            denials: DenialQueue::default(),
            shared: AtomicBool::new(false),
            memory_requests: Mutex::default(),
            sandboxes: Mutex::new(HashMap::new()),
        })
    }

    pub(crate) fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, SandboxHandle>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sandbox(&self, id: &SandboxId) -> Result<SandboxHandle> {
        self.sandboxes().get(id).cloned().ok_or_else(|| AgentError::NoSandbox(id.clone()))
    }

    /// Frees memory for machines by ending zygotes and writing out sandboxes asleep in memory;
    /// refuses if that is not enough. `by`: the sandbox whose driver calls, so that it does not
    /// wait for itself.
    pub(crate) async fn free_memory(&self, shape: Shape, count: u64, by: Option<&SandboxId>) -> Result<()> {
        match self.admit_without_zygotes(shape, count).await {
            Err(AgentError::NoCapacity(_)) => {
                self.write_out_sleepers(shape, count, by).await;
                self.admit_without_zygotes(shape, count).await
            }
            admitted => admitted,
        }
    }

    async fn admit_without_zygotes(&self, shape: Shape, count: u64) -> Result<()> {
        match self.admit(shape, count) {
            Err(AgentError::NoCapacity(_)) if self.promised_mb(shape) * count <= self.unpromised_mb() => {
                self.zygotes.end_all_of_snapshots().await;
                self.admit(shape, count)
            }
            admitted => admitted,
        }
    }

    /// Writes sandboxes asleep in memory to disk until enough memory is free, the least recently
    /// used first. No two drivers wait here for each other: later calls skip a waiting driver.
    async fn write_out_sleepers(&self, shape: Shape, count: u64, by: Option<&SandboxId>) {
        let _asking = by.map(|by| MemoryRequest::begin(self, by));
        if self.promised_mb(shape) * count > self.memory_free_mb() + self.memory_held_asleep_mb() {
            return;
        }
        let writing = async {
            for sleeper in self.light_sleepers() {
                if !matches!(self.admit(shape, count), Err(AgentError::NoCapacity(_))) {
                    return;
                }
                if let Err(error) = sleeper.write_out().await {
                    tracing::warn!(error = %chain(&error), "cannot write a sleeping sandbox to disk; it stays in memory");
                }
            }
        };
        if tokio::time::timeout(MEMORY_WAIT_MAX, writing).await.is_err() {
            tracing::warn!("sleeping sandboxes were not written to disk in time");
        }
    }

    /// Sandboxes that sleep in memory and do not wait for more of it, least recently used first.
    fn light_sleepers(&self) -> Vec<SandboxHandle> {
        let asking = self.memory_requests();
        let sandboxes = self.sandboxes();
        let asleep =
            sandboxes.iter().filter(|(id, handle)| handle.sleeps_in_memory() && !asking.contains(id));
        let mut asleep: Vec<SandboxHandle> = asleep.map(|(_, handle)| handle.clone()).collect();
        asleep.sort_by_cached_key(|handle| std::cmp::Reverse(handle.view().idle_seconds));
        asleep
    }

    /// Refuses machines that the host has no room for now.
    pub(crate) fn admit(&self, shape: Shape, count: u64) -> Result<()> {
        let wanted = self.promised_mb(shape) * count;
        let free = self.memory_free_mb();
        if wanted > free {
            return Err(AgentError::NoCapacity(format!(
                "this host has {free} MiB of memory left and the request needs {wanted} MiB; delete or hibernate \
                 sandboxes, or add a host"
            )));
        }
        Ok(self.store.require(0)?)
    }

    /// Memory that may be promised.
    pub(crate) fn memory_total_mb(&self) -> u64 {
        let all = meminfo_mb("MemTotal:").saturating_sub(HOST_RESERVE_MB);
        self.config.memory_limit_mb.map_or(all, |limit| limit.min(all))
    }

    /// Memory not promised to anyone, and really there.
    pub(crate) fn memory_free_mb(&self) -> u64 {
        self.unpromised_mb().min(meminfo_mb("MemAvailable:").saturating_sub(HOST_RESERVE_MB / 2))
    }

    /// Memory that sandboxes asleep in memory would free for a new machine.
    pub(crate) fn memory_held_asleep_mb(&self) -> u64 {
        let asleep = self.light_sleepers();
        let held: u64 =
            asleep.iter().filter_map(SandboxHandle::awake_shape).map(|shape| self.promised_mb(shape)).sum();
        // Memory promised beyond the host's total is recovered first.
        held.saturating_sub(self.awake_mb().saturating_sub(self.memory_total_mb()))
    }

    fn memory_requests(&self) -> MutexGuard<'_, HashSet<SandboxId>> {
        self.memory_requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory not promised to anyone; zygotes may have it for the time being.
    fn unpromised_mb(&self) -> u64 {
        self.memory_total_mb().saturating_sub(self.awake_mb())
    }

    /// Memory promised to awake machines. It can exceed the host's memory: the promised part of
    /// each machine grows when a second workspace appears.
    fn awake_mb(&self) -> u64 {
        let shapes: Vec<Shape> = self.sandboxes().values().filter_map(SandboxHandle::awake_shape).collect();
        shapes.into_iter().map(|shape| self.promised_mb(shape)).sum()
    }

    /// Memory reserved for a machine at once: pages are shared with its template until it writes
    /// them.
    fn promised_mb(&self, shape: Shape) -> u64 {
        u64::from(shape.memory_mib) * u64::from(self.memory_promised_percent()) / 100
    }

    /// Percent of a sandbox's memory that counts as soon as it is awake.
    pub(crate) fn memory_promised_percent(&self) -> u32 {
        let default = match self.shared.load(Ordering::Relaxed) {
            true => MEMORY_PROMISED_PERCENT_SHARED,
            false => MEMORY_PROMISED_PERCENT_ALONE,
        };
        self.config.memory_promised_percent.unwrap_or(default)
    }

    /// Takes note of whether the installation has several workspaces.
    pub(crate) fn note_shared(&self, shared: bool) {
        if self.shared.swap(shared, Ordering::Relaxed) != shared {
            let percent = self.memory_promised_percent();
            tracing::info!(shared, percent, "memory of sandboxes is reserved by this percentage");
        }
    }

    /// Removes a snapshot and its zygote.
    pub(crate) async fn remove_snapshot(&self, id: &SnapshotId) {
        self.remove_dir(self.layout.snapshot(id)).await;
        self.zygotes.remove_of_snapshot(id).await;
    }
}

/// Memory of the host.
pub(crate) fn memory_bytes() -> u64 {
    meminfo_mb("MemTotal:") * 1024 * 1024
}

/// Memory that could be used now without taking it from anyone.
pub(crate) fn memory_available_mb() -> u64 {
    meminfo_mb("MemAvailable:")
}

fn meminfo_mb(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
