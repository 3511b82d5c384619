//! The machines of one version of a function, and the queue of calls that wait for one.
//!
//! ```text
//!   call --> a free slot?   yes --> leased --+--> answered --> free, or to the first in line
//!                           no  --> in line  +--> failed   --> the machine is deleted, another one begins if needed
//!   no call for `idle_seconds` --> the machine is deleted
//! ```
//!
//! Invariants: never more machines than `max_instances`; never more calls in line than `queue_max`;
//! first come, first served; a machine whose call timed out or crashed is never used again; an
//! unused machine is deleted, so that an idle function has no process. A slot is one of the
//! `concurrency` calls that a machine serves at once.
//!
//! All of this is memory: machines that a server left when it ended are deleted by the next one ([`crate::background`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pandastack_sandboxes::machines::{MachineSpec, WaitPolicy};
use pandastack_types::api::{CreateSandbox, Isolation};
use pandastack_types::preview::Visibility;
use pandastack_types::{
    Error, ErrorCode, FunctionId, Owner, Result, SandboxId, SnapshotId, WorkspaceId, chain,
};
use tokio::sync::{Notify, oneshot};

use crate::connection::Connection;
use crate::core::Core;
use crate::settings::Limits;

/// Longest age at which a machine is reused: a handler's leaks end with the machine.
const AGE_MAX: Duration = Duration::from_secs(6 * 3600);
/// TTL of a machine, in case its server never restarts.
const TTL_SECONDS: u64 = 24 * 3600;

/// The source of a version's machines.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) function: FunctionId,
    pub(crate) version: u32,
    pub(crate) workspace: WorkspaceId,
    pub(crate) snapshot: SnapshotId,
    /// Calls that a machine serves at once.
    pub(crate) concurrency: u32,
}

/// A machine.
pub(crate) struct Instance {
    pub(crate) sandbox: SandboxId,
    began: Instant,
    /// Must not be used again.
    ended: AtomicBool,
}

/// A slot for one concurrent call of a machine.
struct CallSlot {
    instance: Arc<Instance>,
    connection: Option<Connection>,
    /// Whether the slot was used before.
    used: bool,
    free_since: Instant,
}

#[derive(Default)]
struct State {
    free: Vec<CallSlot>,
    line: VecDeque<oneshot::Sender<Result<SlotLease>>>,
    /// Number of machines that run or are being created.
    instances: usize,
    beginning: usize,
    limits: Limits,
    closed: bool,
    reaping: bool,
}

/// The machines of one version.
pub(crate) struct Pool {
    source: Source,
    state: Mutex<State>,
    freed: Notify,
}

/// A slot for one call. Dropped without [`SlotLease::answered`], its machine is deleted; dropped before it
/// was claimed, as by a caller that disconnects while the slot is on its way, the slot is free again.
pub(crate) struct SlotLease {
    core: Core,
    pool: Arc<Pool>,
    slot: Option<CallSlot>,
    /// Whether this is the slot's first use.
    pub(crate) cold: bool,
    healthy: bool,
}

impl SlotLease {
    /// The lease as its caller gets it.
    fn claimed(mut self) -> Self {
        if let Some(slot) = &mut self.slot {
            self.cold = !std::mem::replace(&mut slot.used, true);
        }
        self.healthy = false;
        self
    }

    /// The machine.
    pub(crate) fn sandbox(&self) -> Option<&SandboxId> {
        self.slot.as_ref().map(|slot| &slot.instance.sandbox)
    }

    /// The way to its runtime.
    pub(crate) async fn connection(&mut self) -> Result<&mut Connection> {
        let slot = self.slot.as_mut().ok_or_else(|| Error::internal("a lease without a slot"))?;
        if slot.connection.is_none() {
            slot.connection = Some(Connection::open(&self.core.edge, &slot.instance.sandbox).await?);
        }
        slot.connection.as_mut().ok_or_else(|| Error::internal("a slot without a connection"))
    }

    /// Drops a connection that ended between calls, as after a restart of the agent.
    pub(crate) fn drop_dead_connection(&mut self) {
        if let Some(slot) = &mut self.slot {
            slot.connection.take_if(|connection| !connection.is_alive());
        }
    }

    /// The call ended well enough for the machine to serve another.
    pub(crate) fn answered(mut self) {
        self.healthy = true;
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.pool.give_back(&self.core, slot, self.healthy);
        }
    }
}

impl Pool {
    pub(crate) fn new(source: Source) -> Arc<Self> {
        Arc::new(Self { source, state: Mutex::new(State::default()), freed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Machines and waiting calls.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let state = self.lock();
        (state.instances, state.line.len())
    }

    /// A slot for a call, waited for in line.
    pub(crate) async fn lease(self: &Arc<Self>, core: &Core, limits: Limits) -> Result<SlotLease> {
        let waiting = {
            let mut state = self.lock();
            state.limits = limits;
            if state.closed {
                return Err(function_deleted(&self.source.function));
            }
            match state.free.pop() {
                Some(slot) => return Ok(self.lease_of(core, slot).claimed()),
                None if state.line.len() >= limits.queue_max => return Err(full(limits)),
                None => {}
            }
            let (sender, waiting) = oneshot::channel();
            state.line.push_back(sender);
            self.begin_missing(core, &mut state);
            waiting
        };
        let lease = waiting.await.map_err(|_| function_deleted(&self.source.function))??;
        Ok(lease.claimed())
    }

    /// An unclaimed lease.
    fn lease_of(self: &Arc<Self>, core: &Core, slot: CallSlot) -> SlotLease {
        SlotLease { core: core.clone(), pool: Arc::clone(self), slot: Some(slot), cold: false, healthy: true }
    }

    /// Starts machines for waiting calls, as far as allowed.
    fn begin_missing(self: &Arc<Self>, core: &Core, state: &mut State) {
        let slots = self.source.concurrency.max(1) as usize;
        while state.beginning * slots < state.line.len() && state.instances < state.limits.max_instances {
            state.instances += 1;
            state.beginning += 1;
            let (pool, owner) = (Arc::clone(self), core.clone());
            core.background.tasks.spawn(async move { pool.begin(&owner).await });
        }
    }

    async fn begin(self: &Arc<Self>, core: &Core) {
        let made = make(core, &self.source).await;
        let mut state = self.lock();
        state.beginning -= 1;
        match made {
            Ok(instance) if state.closed => {
                state.instances -= 1;
                drop(state);
                delete(core, instance.sandbox.clone());
            }
            Ok(instance) => {
                let instance = Arc::new(instance);
                for _ in 0..self.source.concurrency.max(1) {
                    let (instance, free_since) = (Arc::clone(&instance), Instant::now());
                    let slot = CallSlot { instance, connection: None, used: false, free_since };
                    self.hand_out(core, &mut state, slot);
                }
                self.watch_idle(core, &mut state);
            }
            Err(error) => {
                state.instances -= 1;
                tracing::warn!(
                    function = %self.source.function, error = %chain(&error),
                    "cannot create a machine of a function"
                );
                // Running machines serve the queue; if there are none, the first waiting call gets
                // the error.
                if state.instances == 0 {
                    let mut error = Some(error);
                    while let (Some(first), Some(why)) = (state.line.pop_front(), error.take()) {
                        if let Err(Err(unheard)) = first.send(Err(why)) {
                            error = Some(unheard);
                        }
                    }
                    self.begin_missing(core, &mut state);
                }
            }
        }
    }

    /// Passes a slot to the first waiting call, or frees it.
    fn hand_out(self: &Arc<Self>, core: &Core, state: &mut State, mut slot: CallSlot) {
        slot.free_since = Instant::now();
        while let Some(first) = state.line.pop_front() {
            let Err(refused) = first.send(Ok(self.lease_of(core, slot))) else { return };
            // The caller disconnected while it waited. A lease dropped here would wait for the lock held
            // here.
            let Some(unused) = refused.ok().and_then(|mut lease| lease.slot.take()) else { return };
            slot = unused;
        }
        state.free.push(slot);
        self.freed.notify_one();
    }

    fn give_back(self: &Arc<Self>, core: &Core, slot: CallSlot, healthy: bool) {
        let mut state = self.lock();
        let fresh_only = state.limits.isolation == Isolation::Fresh;
        let old = slot.instance.began.elapsed() > AGE_MAX;
        if healthy && !fresh_only && !old && !state.closed && !slot.instance.ended.load(Ordering::SeqCst) {
            self.hand_out(core, &mut state, slot);
            return;
        }
        self.end(core, &mut state, &slot.instance);
        self.begin_missing(core, &mut state);
    }

    /// Ends a machine, once.
    fn end(&self, core: &Core, state: &mut State, instance: &Arc<Instance>) {
        if instance.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        state.instances -= 1;
        // The machine's other slots are removed with it; connections close before the machine ends.
        state.free.retain(|slot| !Arc::ptr_eq(&slot.instance, instance));
        delete(core, instance.sandbox.clone());
    }

    /// Stops idle machines.
    fn watch_idle(self: &Arc<Self>, core: &Core, state: &mut State) {
        if std::mem::replace(&mut state.reaping, true) {
            return;
        }
        let (pool, owner) = (Arc::clone(self), core.clone());
        core.background.tasks.spawn(async move {
            while let Some(wait) = pool.end_idle(&owner) {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = pool.freed.notified() => {}
                    () = owner.background.shutdown.cancelled() => return,
                }
            }
        });
    }

    /// Ends idle machines; returns the time until the next may be idle, or `None` if no machine is
    /// left.
    fn end_idle(&self, core: &Core) -> Option<Duration> {
        let mut state = self.lock();
        let (slots, idle) = (self.source.concurrency.max(1) as usize, state.limits.idle);
        let mut next = idle;
        let mut over = Vec::new();
        for slot in &state.free {
            let same = || state.free.iter().filter(|other| Arc::ptr_eq(&other.instance, &slot.instance));
            if same().count() < slots {
                continue;
            }
            let since = same().map(|slot| slot.free_since.elapsed()).min().unwrap_or_default();
            match idle.checked_sub(since).filter(|left| !left.is_zero()) {
                Some(left) => next = next.min(left),
                None => over.push(Arc::clone(&slot.instance)),
            }
        }
        for instance in over {
            self.end(core, &mut state, &instance);
        }
        if state.instances == 0 {
            state.reaping = false;
            return None;
        }
        Some(next.max(Duration::from_millis(1)))
    }

    /// Closes the pool of a version that is no longer called: waiting calls fail, and all machines
    /// end once their calls did.
    pub(crate) fn close(&self, core: &Core) {
        let mut state = self.lock();
        state.closed = true;
        state.line.clear();
        let free: Vec<_> = state.free.iter().map(|slot| Arc::clone(&slot.instance)).collect();
        for instance in free {
            self.end(core, &mut state, &instance);
        }
        self.freed.notify_one();
    }
}

fn function_deleted(function: &FunctionId) -> Error {
    Error::not_found("function", function.as_str())
}

fn full(limits: Limits) -> Error {
    Error::new(
        ErrorCode::RateLimited,
        format!(
            "{} calls are waiting for this function's {} machines; try again shortly, or raise max_instances \
             or queue_max",
            limits.queue_max, limits.max_instances
        ),
    )
}

/// Owner of a function's machines.
pub(crate) fn owner(function: &FunctionId) -> Owner {
    Owner::Function(function.clone())
}

async fn make(core: &Core, source: &Source) -> Result<Instance> {
    let request = CreateSandbox {
        from_snapshot: Some(source.snapshot.clone()),
        ttl_seconds: Some(TTL_SECONDS),
        visibility: Some(Visibility::Private),
        metadata: Some([("function_version".to_owned(), source.version.to_string())].into()),
        ..CreateSandbox::default()
    };
    let spec = MachineSpec { workspace: source.workspace.clone(), request };
    let machine = core.machines.create(owner(&source.function), spec, WaitPolicy::None).await?;
    Ok(Instance { sandbox: machine.record.id, began: Instant::now(), ended: AtomicBool::new(false) })
}

/// Deletes a machine behind the caller.
pub(crate) fn delete(core: &Core, sandbox: SandboxId) {
    let owner = core.clone();
    core.background.tasks.spawn(async move {
        let deleted = match owner.machines.find(None, &sandbox).await {
            Ok(record) => owner.machines.delete(record, None).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = deleted {
            tracing::warn!(
                %sandbox, error = %chain(&error),
                "cannot delete a function's machine; the next start or its TTL does"
            );
        }
    });
}

#[cfg(test)]
mod tests;
