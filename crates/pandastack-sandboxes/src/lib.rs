//! The sandbox core: machines, snapshots and volumes, in the record and on their hosts.
//!
//! ```text
//!   create, fork, lifecycle, snapshot, delete (ops), volumes --> hosts --/agent/v1--> agents
//!         |                                                                             |
//!         +--> store (the record of truth) <-- report <------- what hosts have ---------+
//!         +--> events, expiry_changed      <-- reaper, checkpoint
//! ```
//!
//! Must hold: one transition is one transaction is one event; a row exists before its machine does
//! and is gone after it; a sandbox that some replica works on ([`in_flight`]) is left alone by all
//! others. Changes of state go through [`Sandboxes::transition`], which commits, then publishes the
//! event to followers and wakes the reaper if a lifetime may have changed. Work that must finish
//! though its client goes away runs in [`Background::owned`].
//!
//! Interface for services: [`machines`] and [`volumes::owned`], which answer a [`machine`] or a
//! [`user_sandbox`]; [`platform_templates`]; [`Background`]. A service makes its machines for an
//! [`Owner`](pandastack_types::Owner).
//!
//! Left to others: HTTP, keys, and every service.

#![forbid(unsafe_code)]

pub mod background;
pub mod checkpoint;
pub mod command;
pub mod hosts;
pub mod in_flight;
pub mod keyed_mutex;
pub mod location;
pub mod machine;
mod machine_files;
pub mod machines;
pub mod ops;
pub mod outdated;
pub mod output;
pub mod placement;
pub mod platform_templates;
pub mod reaper;
mod refused_connections;
pub mod report;
pub mod snapshot_owner;
pub mod suspended;
pub mod tenancy;
mod usage_clock;
pub mod user_sandbox;
pub mod validate;
pub mod view;
pub mod volumes;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use pandastack_edge::Edge;
use pandastack_store::clock::now;
use pandastack_store::workspaces::WorkspaceStore;
use pandastack_store::{self as store, Amendment, Change, SandboxRecord, Store, StoreError};
use pandastack_types::api::{Event, Sandbox, WorkspaceState};
use pandastack_types::{Result, SandboxId, Transition, WorkspaceId};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast};

pub use self::background::Background;
use self::checkpoint::CheckpointClock;
use self::hosts::Hosts;
use self::in_flight::Marks;
use self::keyed_mutex::KeyedMutex;
use self::location::LocationCache;
use self::tenancy::Tenancy;
use self::usage_clock::UsageClock;

/// Events that a slow follower may be behind before it has to read them from the store.
const EVENTS_BUFFERED_MAX: usize = 1024;

/// The other servers on the same database.
#[async_trait]
pub trait Peers: Send + Sync {
    /// Operations in progress on other replicas. Fails when one does not respond: then no record
    /// may be treated as a leftover.
    async fn marks(&self) -> Result<Marks>;
}

/// The sandbox core. Services see it through the traits in [`machines`] and [`volumes::owned`].
pub struct Sandboxes {
    /// The record of truth.
    store: Arc<dyn Store>,
    /// The hosts and their agents.
    hosts: Arc<Hosts>,
    /// Forwards requests to servers inside sandboxes.
    edge: Arc<Edge>,
    /// Committed events.
    events: broadcast::Sender<EventNotice>,
    /// Notified when a lifetime may have changed.
    expiry_changed: Notify,
    /// Cache of sandbox locations.
    locations: LocationCache,
    /// Held while the network policy of a sandbox changes.
    network_locks: KeyedMutex<SandboxId>,
    usage_clock: UsageClock,
    checkpoints: CheckpointClock,
    /// Connections and names that network policies refused.
    egress_denied: AtomicU64,
    /// Tenancy of the installation, with its restrictions.
    tenancy: Tenancy,
    /// More than one workspace was seen.
    shared: AtomicBool,
    background: Background,
    peers: Box<dyn Peers>,
}

/// A notice to followers of events.
#[derive(Debug, Clone)]
pub enum EventNotice {
    /// A committed event.
    Event {
        /// Workspace of the event; followers of others ignore it.
        workspace: WorkspaceId,
        /// The event.
        event: Event,
    },
    /// Events were missed; the store has them.
    Missed,
}

/// Waits until a machine is lost.
pub async fn lost(events: &mut broadcast::Receiver<EventNotice>) {
    loop {
        match events.recv().await {
            Ok(EventNotice::Event { event, .. }) if event.kind == Transition::Lost.as_str() => return,
            Ok(EventNotice::Event { .. }) => {}
            Ok(EventNotice::Missed) | Err(RecvError::Lagged(_)) => return,
            // The server ends.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Reason why a workspace may not be used, if so. A workspace that is being deleted may be used by
/// its deletion.
pub async fn why_closed(
    store: &dyn WorkspaceStore,
    workspace: &WorkspaceId,
) -> store::Result<Option<StoreError>> {
    let record = store.workspace(workspace).await?;
    let closed = record.state == WorkspaceState::Suspended;
    Ok(closed.then(|| StoreError::Closed { workspace: record.id, reason: record.suspend_reason }))
}

impl Sandboxes {
    /// The core of a server with these parts.
    pub fn new(
        store: Arc<dyn Store>,
        hosts: Arc<Hosts>,
        edge: Arc<Edge>,
        tenancy: Tenancy,
        peers: Box<dyn Peers>,
        background: Background,
    ) -> Self {
        Self {
            store,
            hosts,
            edge,
            events: broadcast::Sender::new(EVENTS_BUFFERED_MAX),
            expiry_changed: Notify::new(),
            locations: LocationCache::default(),
            network_locks: KeyedMutex::default(),
            usage_clock: UsageClock::default(),
            checkpoints: CheckpointClock::default(),
            egress_denied: AtomicU64::new(0),
            tenancy,
            shared: AtomicBool::new(false),
            background,
            peers,
        }
    }

    /// Commits a state transition and notifies followers.
    pub async fn transition(
        &self,
        id: &SandboxId,
        transition: Transition,
        change: &Change,
    ) -> store::Result<SandboxRecord> {
        let moved = self.store.transition(id, transition, change).await?;
        self.publish(&moved.record.workspace, moved.event);
        self.expiry_changed.notify_one();
        Ok(moved.record)
    }

    /// Commits a change other than a state transition, and notifies followers.
    pub async fn amend(&self, id: &SandboxId, amendment: &Amendment) -> store::Result<SandboxRecord> {
        let moved = self.store.amend(id, amendment, now()).await?;
        self.publish(&moved.record.workspace, moved.event);
        self.expiry_changed.notify_one();
        Ok(moved.record)
    }

    /// Publishes events committed here. If the store notifies all replicas, followers receive the
    /// events from there, in the order of commits among all replicas.
    pub fn publish(&self, workspace: &WorkspaceId, events: impl IntoIterator<Item = Event>) {
        for event in events {
            match self.store.publishes_changes() {
                true => self.forget(&event.sandbox_id),
                false => self.send_event(workspace.clone(), event),
            }
        }
    }

    /// Sends an event to its followers, and drops cached data of the sandbox.
    pub fn send_event(&self, workspace: WorkspaceId, event: Event) {
        self.forget(&event.sandbox_id);
        self.expiry_changed.notify_one();
        let _ = self.events.send(EventNotice::Event { workspace, event });
    }

    /// Drops all cached data of sandboxes, and notifies followers that they missed events.
    pub fn forget_all(&self) {
        self.locations.forget_all();
        self.edge.forget_route(None);
        self.expiry_changed.notify_one();
        let _ = self.events.send(EventNotice::Missed);
    }

    fn forget(&self, sandbox: &SandboxId) {
        self.locations.forget(sandbox);
        self.edge.forget_route(Some(sandbox));
    }

    /// Reason why a workspace may not be used, if so.
    pub async fn why_closed(&self, workspace: &WorkspaceId) -> store::Result<Option<StoreError>> {
        why_closed(self.store.as_ref(), workspace).await
    }

    /// Returns whether new machines must avoid the existing emulated hosts.
    pub async fn avoids_emulation(&self) -> Result<bool> {
        if self.tenancy.allow_emulated || !self.hosts.any_emulated() {
            return Ok(false);
        }
        let workspaces = self.store.workspaces().await?.len();
        Ok(self.tenancy.needs_hardware(u64::try_from(workspaces).unwrap_or(u64::MAX)))
    }

    /// Returns whether there is more than one workspace. Once true it stays so until a restart.
    pub(crate) async fn is_shared(&self) -> Result<bool> {
        if !self.shared.load(Ordering::Relaxed) {
            let workspaces = self.store.workspaces().await?.len();
            self.shared.store(self.tenancy.is_shared(workspaces), Ordering::Relaxed);
        }
        Ok(self.shared.load(Ordering::Relaxed))
    }

    /// Operations in progress on any replica. Fails when one does not respond.
    pub(crate) async fn marks_of_all(&self) -> Result<Marks> {
        let mut marks = self.marks();
        marks.extend(self.peers.marks().await?);
        Ok(marks)
    }

    /// Events from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<EventNotice> {
        self.events.subscribe()
    }

    /// Operations in progress in this process.
    pub fn marks(&self) -> Marks {
        self.background.in_flight.marks()
    }

    /// Checks lifetimes again.
    pub fn note_expiry_change(&self) {
        self.expiry_changed.notify_one();
    }

    /// Number of connections and lookups that network policies refused.
    pub fn egress_denied(&self) -> u64 {
        self.egress_denied.load(Ordering::Relaxed)
    }

    /// Refuses one more workspace where that needs isolation the hosts do not have.
    pub fn admit_workspace(&self) -> Result<()> {
        self.tenancy.admit_workspace(&self.hosts.list())
    }

    /// Returns whether a workspace's sandbox was used recently, so that its location is known.
    pub fn is_located(&self, workspace: &WorkspaceId, id: &SandboxId) -> bool {
        self.locations.find(workspace, id).is_ok()
    }

    /// A sandbox as users see it.
    pub fn view(&self, record: SandboxRecord) -> Sandbox {
        view::sandbox(&self.hosts, record)
    }

    /// Runs work that finishes even if the caller is dropped, and that shutdown waits for.
    pub async fn owned<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.background.owned(work).await
    }
}
