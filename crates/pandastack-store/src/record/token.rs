//! The record of an API key.

use jiff::Timestamp;
use pandastack_types::api::Role;
use pandastack_types::{MemberId, WorkspaceId};

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
    /// Role of the key in its workspace.
    pub role: Role,
    /// Whether the key may also manage the installation. Such keys are of workspace `default`.
    pub operator: bool,
    /// Networks that it may be used from; everywhere when empty.
    pub allow_from: Vec<String>,
    /// Creation time.
    pub created_at: Timestamp,
    /// Time at which it expires, if it does.
    pub expires_at: Option<Timestamp>,
    /// Time of its last use, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// Set if the row is a member's sign-in, not an API key.
    pub session: Option<SessionRecord>,
}

/// A sign-in of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRecord {
    /// The person who signed in.
    pub member: MemberId,
    /// Browser or device.
    pub client: String,
}
