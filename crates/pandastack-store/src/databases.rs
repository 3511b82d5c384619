//! Records of managed databases. They contain no secrets: passwords are derived.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::DatabaseDrill;
use pandastack_types::{DatabaseId, SandboxId, WorkspaceId};
use serde::{Deserialize, Serialize};

use super::Result;

/// A database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseRecord {
    /// The database's id.
    pub id: DatabaseId,
    /// Workspace that owns it.
    pub workspace: WorkspaceId,
    /// Current state.
    pub state: DatabaseState,
    /// The database's machine, once it is ready.
    pub sandbox: Option<SandboxId>,
    /// Time of the request.
    pub created_at: Timestamp,
    /// Result of the last restore drill. Written by [`DatabaseStore::note_drill`] only.
    pub drill: Option<DatabaseDrill>,
    /// The other fields.
    pub spec: DatabaseSpecRecord,
}

/// Lifecycle state of a database.
///
/// ```text
///   creating --> ready --> deleting --> (no row)
///       |                     ^
///       +--> failed ----------+      failed: the server stopped while it was being made
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseState {
    /// The machine is being created.
    Creating,
    /// The database was reached once; from then on its machine's state counts.
    Ready,
    /// Creation failed.
    Failed,
    /// Being deleted.
    Deleting,
}

impl DatabaseState {
    const ALL: [Self; 4] = [Self::Creating, Self::Ready, Self::Failed, Self::Deleting];

    /// The name in the store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Deleting => "deleting",
        }
    }

    /// The state of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// Fields that no query selects on, stored as JSON. New fields need a default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatabaseSpecRecord {
    /// Name, unique in the workspace. Set when it is made.
    pub name: Option<String>,
    /// Human-readable label.
    pub label: Option<String>,
    /// Memory, as users write it.
    pub size: String,
    /// Number of vCPUs. Default: from the template.
    pub cpu: Option<u32>,
    /// Never sleeps.
    pub always_on: bool,
    /// Cannot be deleted.
    pub protected: bool,
    /// Database it is a copy of.
    pub cloned_from: Option<DatabaseId>,
    /// Number of times the password was reset.
    pub revision: u64,
    /// The server has not applied the last reset yet.
    pub reset_pending: bool,
    /// Generation of the join secret that the password comes from; 0 in records from before generations:
    /// the first.
    pub secret_generation: u8,
    /// Current step of the restore that makes it.
    pub step: Option<String>,
    /// Reason for the failure.
    pub failure: Option<String>,
}

/// Databases.
#[async_trait]
pub trait DatabaseStore: Send + Sync {
    /// Adds a database. Quota: `DATABASES_PER_WORKSPACE_MAX`.
    async fn insert_database(&self, database: &DatabaseRecord) -> Result<()>;
    /// Returns the database of a workspace, or of any.
    async fn database(&self, workspace: Option<&WorkspaceId>, id: &DatabaseId) -> Result<DatabaseRecord>;
    /// Databases of a workspace, oldest first.
    async fn databases(&self, workspace: &WorkspaceId) -> Result<Vec<DatabaseRecord>>;
    /// Databases in a state, oldest first.
    async fn databases_in(&self, state: DatabaseState) -> Result<Vec<DatabaseRecord>>;
    /// Writes the mutable fields, except the last drill. The caller holds the database's mark, so
    /// it is the only writer.
    async fn update_database(&self, database: &DatabaseRecord) -> Result<()>;
    /// Records the result of a restore test, even during other operations on the database.
    async fn note_drill(&self, id: &DatabaseId, drill: &DatabaseDrill) -> Result<()>;
    /// Removes a database. Succeeds if it does not exist.
    async fn delete_database(&self, id: &DatabaseId) -> Result<()>;
}
