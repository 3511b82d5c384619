//! Members of workspaces, and their sessions.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::Role;
use pandastack_types::{MemberId, WorkspaceId};

use super::{Result, TokenRecord};

/// A person with a role in a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRecord {
    /// Its name in the API.
    pub id: MemberId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Issuer and subject at the login provider. `None` for a person who was added by email and has
    /// not signed in.
    pub identity: Option<Identity>,
    /// Email address in lower case.
    pub email: Option<String>,
    /// Name to show.
    pub name: Option<String>,
    /// Role that an owner gave.
    pub role: Option<Role>,
    /// Role that the groups of the last sign-in gave.
    pub group_role: Option<Role>,
    /// Whether those groups also allow managing the installation. Such members are of workspace `default`.
    pub operator: bool,
    /// When it was added.
    pub created_at: Timestamp,
    /// When the person last signed in.
    pub last_sign_in_at: Option<Timestamp>,
}

/// Identity of a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The provider.
    pub issuer: String,
    /// The provider's name for the person.
    pub subject: String,
}

impl MemberRecord {
    /// The effective role: groups take precedence over a role set by an owner.
    pub fn effective_role(&self) -> Option<Role> {
        self.group_role.or(self.role)
    }
}

/// Members and their sessions. A session is a [`TokenRecord`] with `session` set.
#[async_trait]
pub trait MemberStore: Send + Sync {
    /// Adds a new member. Quota: `MEMBERS_PER_WORKSPACE_MAX`.
    async fn insert_member(&self, member: &MemberRecord) -> Result<()>;
    /// The members of a workspace, oldest first.
    async fn members(&self, workspace: &WorkspaceId) -> Result<Vec<MemberRecord>>;
    /// Returns the member of a workspace.
    async fn member(&self, workspace: &WorkspaceId, id: &MemberId) -> Result<MemberRecord>;
    /// In every workspace: the members bound to this identity, and the members added with this
    /// address that have not signed in.
    async fn members_of(&self, identity: &Identity, email: Option<&str>) -> Result<Vec<MemberRecord>>;
    /// Changes the role of a member, also in open sessions.
    async fn set_member_role(
        &self,
        workspace: &WorkspaceId,
        id: &MemberId,
        role: Role,
    ) -> Result<MemberRecord>;
    /// Writes a sign-in's data of a member, which applies to its sessions immediately. Refused if
    /// the member changed during the sign-in: removed, or added by another sign-in.
    async fn update_member(&self, member: &MemberRecord) -> Result<()>;
    /// Removes a member with its sessions.
    async fn delete_member(&self, workspace: &WorkspaceId, id: &MemberId) -> Result<()>;
    /// Adds a session with the role that its member has now, and removes the oldest ones beyond
    /// `SESSIONS_PER_MEMBER_MAX`. Returns the session.
    async fn insert_session(&self, session: &TokenRecord) -> Result<TokenRecord>;
    /// The sessions of a workspace, newest first.
    async fn sessions(&self, workspace: &WorkspaceId) -> Result<Vec<TokenRecord>>;
    /// Ends a session.
    async fn delete_session(&self, workspace: &WorkspaceId, prefix: &str) -> Result<()>;
    /// Removes sessions that expired by then.
    async fn prune_sessions(&self, at: Timestamp) -> Result<u64>;
}
