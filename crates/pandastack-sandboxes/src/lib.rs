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
//! and is gone after it; what some replica works on ([`InFlight`]) is left alone by everybody else.
//! Changes of state go through [`Sandboxes::transition`], which commits, then publishes the event
//! to followers and wakes the reaper if a lifetime may have changed. Work that must finish though
//! its client goes away runs in [`Sandboxes::owned`].
//!
//! Left to others: HTTP, keys, and every service. A service makes its machines for an
//! [`Owner`](pandastack_types::Owner).

#![forbid(unsafe_code)]

pub mod agent_events;
pub mod checkpoint;
pub mod hosts;
pub mod in_flight;
pub mod keyed_mutex;
pub mod location;
pub mod machine;
pub mod machines;
pub mod ops;
pub mod output;
pub mod placement;
pub mod reaper;
pub mod report;
pub mod suspended;
pub mod tenancy;
mod usage_clock;
pub mod validate;
pub mod view;
pub mod volumes;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use pandastack_agent_client::request_id;
use pandastack_edge::Edge;
use pandastack_store::clock::now;
use pandastack_store::{self as store, Amendment, Change, SandboxRecord, Store, StoreError};
use pandastack_types::api::{Event, WorkspaceState};
use pandastack_types::link::LinkKey;
use pandastack_types::{Error, Result, SandboxId, Transition, WorkspaceId};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use self::checkpoint::CheckpointClock;
use self::hosts::Hosts;
use self::in_flight::{InFlight, Marks};
use self::keyed_mutex::KeyedMutex;
use self::location::LocationCache;
use self::tenancy::Tenancy;
use self::usage_clock::UsageClock;

/// Events that a slow follower may be behind before it has to read them from the store.
const EVENTS_BUFFERED_MAX: usize = 1024;

/// Changes of names that a slow edge may be behind before it forgets all of them.
const NAMES_BUFFERED_MAX: usize = 1024;

/// The other servers on the same database.
#[async_trait]
pub trait Peers: Send + Sync {
    /// What they are working on. Fails when one does not respond: then nothing may be taken for a leftover.
    async fn marks(&self) -> Result<Marks>;
}

/// The sandbox core.
pub struct Sandboxes {
    /// The record of truth.
    pub store: Arc<dyn Store>,
    /// The hosts and their agents.
    pub hosts: Arc<Hosts>,
    /// Forwards requests to servers inside sandboxes.
    pub edge: Arc<Edge>,
    /// Signs what this server and its agents send each other.
    pub link: LinkKey,
    /// Every event, as it is committed.
    pub events: broadcast::Sender<EventNotice>,
    /// Told when a name of an app may lead to other machines, or to other databases.
    pub names: broadcast::Sender<()>,
    /// Notified when a lifetime may have changed.
    pub expiry_changed: Notify,
    /// Operations in progress in this process.
    pub in_flight: Arc<InFlight>,
    /// Cache of sandbox locations.
    pub locations: LocationCache,
    /// Held while the network policy of a sandbox changes.
    pub network_locks: KeyedMutex<SandboxId>,
    usage_clock: UsageClock,
    checkpoints: CheckpointClock,
    /// Connections and names that network policies refused.
    pub egress_denied: AtomicU64,
    /// How many tenants share the installation, and what that forbids.
    pub tenancy: Tenancy,
    /// Background work that shutdown waits for.
    pub tasks: TaskTracker,
    /// Cancelled when the server stops.
    pub shutdown: CancellationToken,
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

/// Waits until a machine was lost.
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

/// Why nobody may use a workspace, if so. One that is being deleted is used by its deletion.
pub async fn why_closed(store: &dyn Store, workspace: &WorkspaceId) -> store::Result<Option<StoreError>> {
    let record = store.workspace(workspace).await?;
    let closed = record.state == WorkspaceState::Suspended;
    Ok(closed.then(|| StoreError::Closed { workspace: record.id, reason: record.suspend_reason }))
}

impl Sandboxes {
    /// The core of a server with these parts, ended by `shutdown`.
    pub fn new(
        store: Arc<dyn Store>,
        hosts: Arc<Hosts>,
        edge: Arc<Edge>,
        link: LinkKey,
        tenancy: Tenancy,
        peers: Box<dyn Peers>,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            store,
            hosts,
            edge,
            link,
            events: broadcast::Sender::new(EVENTS_BUFFERED_MAX),
            names: broadcast::Sender::new(NAMES_BUFFERED_MAX),
            expiry_changed: Notify::new(),
            in_flight: Arc::default(),
            locations: LocationCache::default(),
            network_locks: KeyedMutex::default(),
            usage_clock: UsageClock::default(),
            checkpoints: CheckpointClock::default(),
            egress_denied: AtomicU64::new(0),
            tenancy,
            tasks: TaskTracker::new(),
            shutdown,
            peers,
        }
    }

    /// Commits a change of state and tells followers.
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

    /// Commits a change that is not one of state, and tells followers.
    pub async fn amend(&self, id: &SandboxId, amendment: &Amendment) -> store::Result<SandboxRecord> {
        let moved = self.store.amend(id, amendment, now()).await?;
        self.publish(&moved.record.workspace, moved.event);
        self.expiry_changed.notify_one();
        Ok(moved.record)
    }

    /// Publishes what was committed here. Where the store tells all replicas, followers hear it
    /// from there, among the events of the others and in the order of commits.
    pub fn publish(&self, workspace: &WorkspaceId, events: impl IntoIterator<Item = Event>) {
        for event in events {
            match self.store.tells_news() {
                true => self.forget(&event.sandbox_id),
                false => self.send_event(workspace.clone(), event),
            }
        }
    }

    /// Sends an event to its followers, and forgets what was cached of the sandbox.
    pub fn send_event(&self, workspace: WorkspaceId, event: Event) {
        self.forget(&event.sandbox_id);
        self.expiry_changed.notify_one();
        let _ = self.events.send(EventNotice::Event { workspace, event });
    }

    /// Forgets everything that was cached of sandboxes, and tells followers that they missed events.
    pub fn forget_all(&self) {
        self.locations.forget_all();
        self.edge.forget_route(None);
        self.expiry_changed.notify_one();
        let _ = self.events.send(EventNotice::Missed);
    }

    /// Makes every edge look up names of apps again, also those of other replicas.
    pub fn names_changed(&self) {
        self.forget_names();
        let store = Arc::clone(&self.store);
        self.tasks.spawn(async move {
            if let Err(error) = store.tell_names_changed().await {
                tracing::warn!(%error, "cannot notify other replicas; they may use outdated app names for a while");
            }
        });
    }

    /// Forgets what was cached of names of apps.
    pub fn forget_names(&self) {
        self.edge.forget_names();
        let _ = self.names.send(());
    }

    fn forget(&self, sandbox: &SandboxId) {
        self.locations.forget(sandbox);
        self.edge.forget_route(Some(sandbox));
    }

    /// Why nobody may use a workspace, if so.
    pub async fn why_closed(&self, workspace: &WorkspaceId) -> store::Result<Option<StoreError>> {
        why_closed(self.store.as_ref(), workspace).await
    }

    /// Whether new machines must not be on the emulated hosts that there are.
    pub async fn avoids_emulation(&self) -> Result<bool> {
        if self.tenancy.allow_emulated || !self.hosts.any_emulated() {
            return Ok(false);
        }
        let workspaces = self.store.workspaces().await?.len();
        Ok(self.tenancy.needs_hardware(u64::try_from(workspaces).unwrap_or(u64::MAX)))
    }

    /// What any replica is working on. Fails when one does not respond.
    pub async fn marks_of_all(&self) -> Result<Marks> {
        let mut marks = self.in_flight.marks();
        marks.extend(self.peers.marks().await?);
        Ok(marks)
    }

    /// Runs work that finishes even if the caller is dropped, and that shutdown waits for.
    pub async fn owned<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let work = request_id::carry(work);
        let task = self.tasks.spawn(work.instrument(tracing::Span::current()));
        task.await.unwrap_or_else(|failed| Err(Error::internal(failed)))
    }
}
