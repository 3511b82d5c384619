//! The record of truth, with one trait per noun, so that SQLite and PostgreSQL differ in SQL and in
//! nothing else.
//!
//! Must hold, for every backend:
//! - a transition and its event row are one transaction, and only [`SandboxStore::transition`]
//!   changes a state, apart from [`SandboxStore::promote`], which decides about a whole tree at
//!   once;
//! - the rules (which transition is allowed, what it changes) are pure functions in [`record`],
//!   shared by backends;
//! - what was acknowledged to a client survives `kill -9` and power loss ([`durability_of`],
//!   [`Store::sync`]);
//! - every row of a tenant names its workspace, and lookups on behalf of a caller are by workspace.
//!
//! Left to others: talking to agents, publishing events, deciding when something is due.

#![forbid(unsafe_code)]

pub mod apps;
pub mod clock;
pub mod console;
pub mod databases;
mod error;
mod failure;
pub mod functions;
pub mod host_identities;
pub mod installation;
pub mod ledger;
pub mod members;
pub mod names;
pub mod quotas;
pub mod record;
pub mod replicas;
pub mod schedules;
pub mod sql;
pub mod template_readers;
pub mod template_ref;
pub mod templates;
pub mod volumes;
pub mod webhooks;
pub mod workspaces;
pub mod write_behind;

use async_trait::async_trait;
pub use error::{Result, StoreError};
use jiff::Timestamp;
use pandastack_types::agent_api::Usage;
use pandastack_types::api::Event;
use pandastack_types::{HostId, Owner, SandboxId, SandboxState, SnapshotId, Transition, TreeId, WorkspaceId};
pub use record::{
    Amendment, Change, HostRecord, SandboxRecord, SandboxSpecRecord, SessionRecord, SnapshotRecord,
    SnapshotSpecRecord, TokenRecord,
};

/// The durability of a commit before its caller continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// `kill -9`. After power loss the row may be missing, and reconciling with the hosts makes that good.
    Process,
    /// Power loss: synced to disk, together with everything committed before it.
    Power,
}

/// The durability that a transition needs by itself. `created` and `deleting` need none: their
/// caller waits for [`Store::sync`] while the host works, before it answers the client. Once the
/// row in `creating` is on disk, reconciling with the host finds the rest. `lost` and `deleted` are
/// found again the same way.
pub fn durability_of(transition: Transition) -> Durability {
    match transition {
        Transition::Paused | Transition::Resumed | Transition::Hibernated | Transition::Woken => {
            Durability::Power
        }
        Transition::Created | Transition::Lost | Transition::Deleting | Transition::Deleted => {
            Durability::Process
        }
    }
}

/// Names one request of one workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// The client's idempotency key.
    pub key: String,
}

/// Claim of a request that must be executed only once.
#[derive(Debug, Clone)]
pub struct IdempotencyClaim {
    /// The request's key.
    pub key: IdempotencyKey,
    /// SHA-256 of method, path and body.
    pub fingerprint: Vec<u8>,
    /// The requesting process.
    pub instance: String,
    /// When.
    pub at: Timestamp,
    /// Records older than this are forgotten.
    pub not_before: Timestamp,
}

/// The outcome of claiming an idempotent request.
#[derive(Debug, Clone)]
pub enum IdempotencyOutcome {
    /// No record: the caller executes the request now.
    Fresh,
    /// The request was completed: repeat this response.
    Replay {
        /// HTTP status.
        status: u16,
        /// Body.
        body: Vec<u8>,
    },
    /// The request is in progress.
    Running,
    /// The key belongs to another request.
    Mismatch,
    /// The process that did it died, after the sandbox had its row.
    Orphan(Box<SandboxRecord>),
}

/// A change of state that was committed.
#[derive(Debug, Clone)]
pub struct SandboxUpdate {
    /// The current row; for `deleted`, the last one.
    pub record: SandboxRecord,
    /// The event, unless the transition repeated the one before and nothing changed.
    pub event: Option<Event>,
}

/// The result of the children of a fork when one of them was promoted.
#[derive(Debug, Clone)]
pub struct Promotion {
    /// Events of the promoted child and of the deleted siblings.
    pub events: Vec<Event>,
    /// Siblings whose deletion is recorded, oldest first; their machines still exist.
    pub leaving: Vec<SandboxRecord>,
    /// Siblings that would go if they had not been promoted before, oldest first.
    pub staying: Vec<SandboxId>,
}

/// Filter of sandboxes.
#[derive(Debug, Clone)]
pub enum Select {
    /// Sandboxes of a workspace, oldest first, without those of services.
    Workspace(WorkspaceId),
    /// Of a workspace, oldest first, with those of services.
    WholeWorkspace(WorkspaceId),
    /// Owned by one service, oldest first.
    Owner(Owner),
    /// On a host.
    Host(HostId),
    /// Children of one fork, oldest first.
    Tree(WorkspaceId, TreeId),
    /// Forked from one sandbox, oldest first.
    Children(WorkspaceId, SandboxId),
    /// With a lifetime that ended by then, and not being deleted.
    Due(Timestamp),
}

/// Workspaces and keys.
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// Creates a workspace unless it exists.
    async fn ensure_workspace(&self, id: &WorkspaceId, at: Timestamp) -> Result<()>;
    /// Adds a key. Quota: `TOKENS_PER_WORKSPACE_MAX`. `by` is the prefix of the key that makes it, which must
    /// still be good; `None` for the first key of an installation.
    async fn insert_token(&self, token: &TokenRecord, by: Option<&str>) -> Result<()>;
    /// The key with that public part.
    async fn token(&self, prefix: &str) -> Result<Option<TokenRecord>>;
    /// The keys and sessions of a workspace, oldest first.
    async fn tokens(&self, workspace: &WorkspaceId) -> Result<Vec<TokenRecord>>;
    /// Replaces a key by a new one of the same workspace: the old one works until then at the longest.
    /// Returns the old one. `by` as for [`TokenStore::insert_token`].
    async fn rotate_token(
        &self,
        prefix: &str,
        until: Timestamp,
        new: &TokenRecord,
        by: Option<&str>,
    ) -> Result<TokenRecord>;
    /// Removes a key, but never the last one of an owner or an operator. Sessions do not count.
    async fn delete_token(&self, workspace: &WorkspaceId, prefix: &str) -> Result<()>;
    /// Records when keys were last used.
    async fn touch_tokens(&self, used: &[(String, Timestamp)]) -> Result<()>;
    /// Keys of all workspaces.
    async fn count_tokens(&self) -> Result<u64>;
}

/// Hosts and their reports.
#[async_trait]
pub trait HostStore: Send + Sync {
    /// Adds or replaces a host.
    async fn put_host(&self, host: &HostRecord) -> Result<()>;
    /// All hosts.
    async fn hosts(&self) -> Result<Vec<HostRecord>>;
    /// Returns the host, if it ever reported.
    async fn host(&self, id: &HostId) -> Result<Option<HostRecord>>;
    /// Appends the sandboxes' usage since the totals recorded last. Totals that went back count as
    /// a restart from zero.
    async fn record_usage(&self, totals: &[(SandboxId, Usage)], at: Timestamp) -> Result<()>;
}

/// Sandboxes.
#[async_trait]
pub trait SandboxStore: Send + Sync {
    /// Adds rows in `creating`, with an event each, in one transaction; names the first in the
    /// idempotency record. Quota: `SANDBOXES_PER_WORKSPACE_MAX`.
    async fn insert_sandboxes(
        &self,
        records: &[SandboxRecord],
        key: Option<&IdempotencyKey>,
    ) -> Result<Vec<Event>>;
    /// Returns the sandbox of a workspace, or of any.
    async fn sandbox(&self, workspace: Option<&WorkspaceId>, id: &SandboxId) -> Result<SandboxRecord>;
    /// Some sandboxes.
    async fn sandboxes(&self, select: &Select) -> Result<Vec<SandboxRecord>>;
    /// The way to change a state. `deleted` removes the row; its events stay.
    async fn transition(
        &self,
        id: &SandboxId,
        transition: Transition,
        change: &Change,
    ) -> Result<SandboxUpdate>;
    /// Changes a field other than the state, with an event.
    async fn amend(&self, id: &SandboxId, amendment: &Amendment, at: Timestamp) -> Result<SandboxUpdate>;
    /// Promotes a child of a fork. With `alone` its siblings go to `stopping` in the same
    /// transaction, except siblings that were promoted before: if two children are promoted at the
    /// same time, one succeeds and the other is refused.
    async fn promote(
        &self,
        workspace: &WorkspaceId,
        tree: &TreeId,
        winner: &SandboxId,
        alone: bool,
        at: Timestamp,
    ) -> Result<Promotion>;
    /// Time at which the next lifetime ends, of sandboxes that are not being deleted.
    async fn next_expiry(&self) -> Result<Option<Timestamp>>;
    /// Number of sandboxes by state.
    async fn count_states(&self) -> Result<Vec<(SandboxState, u64)>>;
}

/// Snapshots.
#[async_trait]
pub trait SnapshotStore: Send + Sync {
    /// Adds a snapshot that its host acknowledged, with an event on its sandbox. Quota:
    /// `SNAPSHOTS_PER_WORKSPACE_MAX`.
    /// With `replace_name`, the snapshot that has its name stays without one.
    async fn insert_snapshot(&self, snapshot: &SnapshotRecord, replace_name: bool) -> Result<Event>;
    /// Returns the snapshot of a workspace.
    async fn snapshot(&self, workspace: &WorkspaceId, id: &SnapshotId) -> Result<SnapshotRecord>;
    /// Snapshots of a workspace, newest first.
    async fn snapshots(
        &self,
        workspace: &WorkspaceId,
        sandbox: Option<&SandboxId>,
    ) -> Result<Vec<SnapshotRecord>>;
    /// Ids of the snapshots on a host.
    async fn snapshot_ids(&self, host: &HostId) -> Result<Vec<SnapshotId>>;
    /// Snapshots that have expired.
    async fn snapshots_due(&self, at: Timestamp) -> Result<Vec<SnapshotRecord>>;
    /// Time at which the next snapshot expires.
    async fn next_snapshot_expiry(&self) -> Result<Option<Timestamp>>;
    /// Removes a snapshot, with an event on its sandbox.
    async fn delete_snapshot(
        &self,
        workspace: &WorkspaceId,
        id: &SnapshotId,
        at: Timestamp,
    ) -> Result<(SnapshotRecord, Event)>;
}

/// Events and idempotency records.
#[async_trait]
pub trait HistoryStore: Send + Sync {
    /// Events of a sandbox after that id, oldest first, at most `limit`.
    async fn events_after(
        &self,
        workspace: &WorkspaceId,
        id: &SandboxId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Event>>;
    /// The last events of a sandbox, oldest first.
    async fn events_tail(&self, workspace: &WorkspaceId, id: &SandboxId, limit: u32) -> Result<Vec<Event>>;
    /// Claims a request, or returns its earlier result.
    async fn idempotency_begin(&self, claim: &IdempotencyClaim) -> Result<IdempotencyOutcome>;
    /// Keeps the answer, or with `None` forgets the request so that it may be tried again.
    async fn idempotency_finish(&self, key: &IdempotencyKey, answer: Option<(u16, &[u8])>) -> Result<()>;
    /// Removes events and idempotency records older than given, and per sandbox all but the last
    /// `per_sandbox` events.
    async fn prune(
        &self,
        events_before: Timestamp,
        idempotency_before: Timestamp,
        per_sandbox: u32,
    ) -> Result<u64>;
}

/// The whole store.
#[async_trait]
pub trait Store:
    TokenStore
    + HostStore
    + host_identities::HostIdentityStore
    + SandboxStore
    + SnapshotStore
    + HistoryStore
    + names::NameStore
    + installation::InstallationStore
    + installation::SecretStore
    + ledger::LedgerStore
    + functions::FunctionStore
    + functions::FunctionRunStore
    + schedules::ScheduleStore
    + schedules::RunStore
    + apps::AppStore
    + apps::PreviewRepoStore
    + volumes::VolumeStore
    + databases::DatabaseStore
    + replicas::ReplicaStore
    + quotas::QuotaStore
    + workspaces::WorkspaceStore
    + console::ConsoleStore
    + members::MemberStore
    + templates::TemplateStore
    + template_readers::TemplateReaderStore
    + webhooks::WebhookStore
{
    /// Waits until everything committed so far survives power loss.
    async fn sync(&self) -> Result<()>;
    /// Checks that the database responds.
    async fn ping(&self) -> Result<()>;
    /// Flushes and closes.
    async fn close(&self);
}
