//! What every handler and background task shares.
//!
//! Changes of state go through [`App::transition`], which commits, then publishes the event to followers and wakes the
//! reaper if a lifetime may have changed. Work that must finish though its client goes away runs in [`App::owned`].

use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pandastack_edge::Edge;
use pandastack_types::api::Event;
use pandastack_types::link::LinkKey;
use pandastack_types::{Error, Result, SandboxId, Transition};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::apps::Apps;
use crate::audit::AuditLog;
use crate::auth::KeyCache;
use crate::checkpoint::CheckpointClock;
pub(crate) use crate::clock::now;
use crate::databases::PublicAddress;
use crate::databases::backups::Backups;
use crate::databases::ports::Ports;
use crate::databases::revive::Revivals;
use crate::databases::room::Rooms;
use crate::functions::Functions;
use crate::hosts::Hosts;
use crate::metrics::Metrics;
use crate::places::Places;
use crate::rate::{KeyFailures, Rates};
use crate::replicas::Replicas;
use crate::report::UsageClock;
use crate::schedules::Schedules;
use crate::store::{self, Amendment, Change, SandboxRecord, Store};
use crate::turns::Turns;
use pandastack_agent_client::request_id;

/// Events that a slow follower may be behind before it has to read them from the store.
pub(crate) const EVENTS_BUFFERED_MAX: usize = 1024;

/// Shared state of the control plane.
pub(crate) struct App {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) hosts: Arc<Hosts>,
    /// The way to servers inside sandboxes.
    pub(crate) edge: Arc<Edge>,
    /// Where clients of databases connect to.
    pub(crate) postgres: Option<PublicAddress>,
    pub(crate) database_ports: Option<Ports>,
    pub(crate) link: LinkKey,
    pub(crate) events: broadcast::Sender<Heard>,
    /// Told when names of apps may lead elsewhere.
    pub(crate) names: broadcast::Sender<()>,
    /// Told when a lifetime may have changed.
    pub(crate) expiry_changed: Notify,
    pub(crate) under_way: Arc<UnderWay>,
    pub(crate) keys: KeyCache,
    pub(crate) places: Places,
    /// Whose turn it is to change what a sandbox may reach.
    pub(crate) network_turns: Turns<SandboxId>,
    pub(crate) rates: Rates,
    pub(crate) key_failures: KeyFailures,
    pub(crate) usage_clock: UsageClock,
    pub(crate) checkpoints: CheckpointClock,
    pub(crate) metrics: Metrics,
    pub(crate) audit: AuditLog,
    pub(crate) functions: Functions,
    pub(crate) schedules: Arc<Schedules>,
    pub(crate) apps: Apps,
    pub(crate) revivals: Revivals,
    pub(crate) rooms: Rooms,
    pub(crate) backups: Backups,
    pub(crate) tasks: TaskTracker,
    pub(crate) shutdown: CancellationToken,
    /// This server among those that share the database.
    pub(crate) replicas: Replicas,
}

/// What followers of events hear.
#[derive(Debug, Clone)]
pub(crate) enum Heard {
    /// Something happened.
    Event(Event),
    /// Nobody knows what happened meanwhile; the store does.
    Missed,
}

/// Waits until a machine was lost.
pub(crate) async fn lost(events: &mut broadcast::Receiver<Heard>) {
    loop {
        match events.recv().await {
            Ok(Heard::Event(event)) if event.kind == Transition::Lost.as_str() => return,
            Ok(Heard::Event(_)) => {}
            Ok(Heard::Missed) | Err(RecvError::Lagged(_)) => return,
            // The server ends.
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl App {
    /// Commits a change of state and tells who follows.
    pub(crate) async fn transition(
        &self,
        id: &SandboxId,
        transition: Transition,
        change: &Change,
    ) -> store::Result<SandboxRecord> {
        let moved = self.store.transition(id, transition, change).await?;
        self.publish(moved.event);
        self.expiry_changed.notify_one();
        Ok(moved.record)
    }

    /// Commits a change that is not one of state, and tells who follows.
    pub(crate) async fn amend(&self, id: &SandboxId, amendment: &Amendment) -> store::Result<SandboxRecord> {
        let moved = self.store.amend(id, amendment, now()).await?;
        self.publish(moved.event);
        self.expiry_changed.notify_one();
        Ok(moved.record)
    }

    /// Says what was committed here. Where the store tells all replicas, followers hear it from there, among the events of
    /// the others and in the order of commits.
    pub(crate) fn publish(&self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            match self.store.tells_news() {
                true => self.forget(&event.sandbox_id),
                false => self.tell(event),
            }
        }
    }

    /// Tells whoever follows, if anybody does, and forgets what was known of the sandbox.
    pub(crate) fn tell(&self, event: Event) {
        self.forget(&event.sandbox_id);
        self.expiry_changed.notify_one();
        let _ = self.events.send(Heard::Event(event));
    }

    fn forget(&self, sandbox: &SandboxId) {
        self.places.forget(sandbox);
        self.edge.forget_route(Some(sandbox));
    }

    /// Names of apps may lead elsewhere: edges ask again, also those of other replicas.
    pub(crate) fn names_changed(&self) {
        self.forget_names();
        let store = Arc::clone(&self.store);
        self.tasks.spawn(async move {
            if let Err(error) = store.tell_names_changed().await {
                tracing::warn!(%error, "other servers may take a name for what it was, until their next look");
            }
        });
    }

    /// What is known of names is asked for again.
    pub(crate) fn forget_names(&self) {
        self.edge.forget_names();
        let _ = self.names.send(());
    }

    /// Runs work that finishes even if the caller is dropped, and that shutdown waits for.
    pub(crate) async fn owned<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let work = request_id::carry(work);
        let task = self.tasks.spawn(work.instrument(tracing::Span::current()));
        task.await.unwrap_or_else(|failed| Err(Error::internal(failed)))
    }
}

/// Ids of sandboxes and snapshots that this process is making or deleting; reconciling leaves them alone.
#[derive(Default)]
pub(crate) struct UnderWay {
    ids: Mutex<HashSet<String>>,
    /// Told when a mark is taken away.
    unmarked: Notify,
}

/// Marks an id until dropped.
pub(crate) struct Marked {
    set: Arc<UnderWay>,
    id: String,
}

impl UnderWay {
    /// Marks an id; `None` when it is marked already.
    pub(crate) fn mark(self: &Arc<Self>, id: &str) -> Option<Marked> {
        let fresh = self.lock().insert(id.to_owned());
        fresh.then(|| Marked { set: Arc::clone(self), id: id.to_owned() })
    }

    /// Marks an id that is marked already, if that ends within the time.
    pub(crate) async fn mark_within(self: &Arc<Self>, id: &str, wait: Duration) -> Option<Marked> {
        let marked = async {
            loop {
                let mut unmarked = pin!(self.unmarked.notified());
                unmarked.as_mut().enable();
                if let Some(marked) = self.mark(id) {
                    return marked;
                }
                unmarked.await;
            }
        };
        tokio::time::timeout(wait, marked).await.ok()
    }

    /// All that are marked.
    pub(crate) fn all(&self) -> HashSet<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        self.set.lock().remove(&self.id);
        self.set.unmarked.notify_waiters();
    }
}
