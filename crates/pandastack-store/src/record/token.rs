//! A key.

use jiff::Timestamp;
use pandastack_types::WorkspaceId;
use pandastack_types::api::Role;

/// A key, hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRecord {
    /// Public part.
    pub prefix: String,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// SHA-256 of the whole key.
    pub hash: Vec<u8>,
    /// Human-readable name.
    pub label: String,
    /// What it may do in its workspace.
    pub role: Role,
    /// Whether it may also manage the installation. Such keys are of workspace `default`.
    pub operator: bool,
    /// Networks that it may be used from; everywhere when empty.
    pub allow_from: Vec<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stops working.
    pub expires_at: Option<Timestamp>,
    /// When it was last used, to the minute.
    pub last_used_at: Option<Timestamp>,
}
