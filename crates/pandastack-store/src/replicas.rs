//! Several control servers on one database: liveness, leadership, and changes by others.
//!
//! A replica has a [`Session`] for as long as it is connected to the database. Whether a replica is
//! alive and whether it leads are facts about that session, kept by the database itself: neither
//! clocks nor stale rows can be wrong about them. On SQLite there is one server, which always
//! leads.

use async_trait::async_trait;
use pandastack_types::api::Event;
use pandastack_types::{HostId, WorkspaceId};

use super::Result;

/// A control server among others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replica {
    /// Names the process.
    pub instance: String,
    /// Address at which the others reach it: `unix:/path` or `http://address:port`.
    pub address: String,
    /// Whether the replica is the leader.
    pub leads: bool,
}

/// A change made by a replica.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplicaChange {
    /// An event of a sandbox in a workspace.
    Event(WorkspaceId, Event),
    /// A host reported.
    Host(HostId),
    /// A host joined or was removed.
    HostIdentity(HostId),
    /// The policy for the shared secret changed.
    SharedSecret,
    /// App names may have new targets.
    Names,
}

/// Replicas on one database.
#[async_trait]
pub trait ReplicaStore: Send + Sync {
    /// Joins the replicas.
    async fn join(&self, instance: &str, address: &str) -> Result<Box<dyn Session>>;
    /// Replicas that are alive now.
    async fn replicas(&self) -> Result<Vec<Replica>>;
    /// Notifies every replica that app names may have new targets.
    async fn notify_names_changed(&self) -> Result<()>;
    /// Returns whether this replica receives its own commits as [`ReplicaChange`], in the order of
    /// commits among all replicas.
    fn publishes_changes(&self) -> bool;
}

/// A replica's membership, until the connection ends or it is dropped.
#[async_trait]
pub trait Session: Send {
    /// Sends a heartbeat, and makes this session the leader if no session leads. Returns whether it
    /// leads.
    async fn beat(&mut self) -> Result<bool>;
    /// Waits for changes. Cancel-safe. An error ends the session.
    async fn next_changes(&mut self) -> Result<Vec<ReplicaChange>>;
    /// Ends the session, so that another may lead at once.
    async fn leave(&mut self);
}
