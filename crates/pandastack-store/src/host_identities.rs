//! Hosts with a certificate, the tokens with which they join, and the key of the authority.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::HostId;
use pandastack_types::host_identity::{HostIdentity, HostRole};
use serde::{Deserialize, Serialize};

use crate::Result;

/// Open and used tokens that are kept. Beyond it: 429 `quota_exceeded`.
pub const HOST_TOKENS_MAX: u64 = 1_000;

/// The authority that signs certificates of hosts. The key is sealed in the database.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityRecord {
    /// Its key, PEM. None if it was lost with the join secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Its certificate, PEM.
    pub certificate: String,
}

impl std::fmt::Debug for AuthorityRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthorityRecord(secret)")
    }
}

/// A join token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTokenRecord {
    /// Its public part.
    pub id: String,
    /// SHA-256 of what the host presents.
    pub hash: Vec<u8>,
    /// Role of the host that joins with it.
    pub role: HostRole,
    /// The only host that may join with it; `None` for any host that is not known.
    pub host: Option<HostId>,
    /// Prefix of the API key that made it.
    pub created_by: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// Its end.
    pub expires_at: Timestamp,
    /// When it was used.
    pub used_at: Option<Timestamp>,
    /// The host that joined with it.
    pub used_by: Option<HostId>,
}

/// A host that has joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentityRecord {
    /// Its identity.
    pub identity: HostIdentity,
    /// When it joined.
    pub joined_at: Timestamp,
    /// End of its newest certificate.
    pub expires_at: Timestamp,
    /// When it was removed.
    pub removed_at: Option<Timestamp>,
}

impl HostIdentityRecord {
    /// The identity, unless the host was removed.
    pub fn member(self) -> Option<HostIdentity> {
        self.removed_at.is_none().then_some(self.identity)
    }
}

/// Whether hosts may use the shared join secret over TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedSecret {
    /// Hosts without a certificate may use it: an installation from before certificates.
    Accepted,
    /// Likewise; hosts that use it are asked to get a certificate.
    Migrating,
    /// No host may use it.
    Refused,
}

impl SharedSecret {
    /// The name in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            SharedSecret::Accepted => "accepted",
            SharedSecret::Migrating => "migrating",
            SharedSecret::Refused => "refused",
        }
    }

    /// The policy of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Accepted, Self::Migrating, Self::Refused].into_iter().find(|policy| policy.as_str() == name)
    }
}

/// Identities of hosts.
#[async_trait]
pub trait HostIdentityStore: Send + Sync {
    /// The authority. The first call stores `fresh`, as does one after the key was lost.
    async fn host_authority(&self, fresh: &AuthorityRecord) -> Result<AuthorityRecord>;
    /// Adds a token, and forgets those that have ended long ago. Quota: [`HOST_TOKENS_MAX`].
    async fn insert_host_token(&self, token: &HostTokenRecord) -> Result<()>;
    /// The token with that public part.
    async fn host_token(&self, id: &str) -> Result<Option<HostTokenRecord>>;
    /// A host joins with a token that was checked: marks the token as used, once, and gives the host its next
    /// membership. A host that is known needs a token made for it.
    async fn join_host(
        &self,
        token: &str,
        host: &HostId,
        at: Timestamp,
        expires_at: Timestamp,
    ) -> Result<HostIdentityRecord>;
    /// A host that used the shared secret becomes a member. Refused if it ever was one.
    async fn migrate_host(
        &self,
        role: HostRole,
        host: &HostId,
        at: Timestamp,
        expires_at: Timestamp,
    ) -> Result<HostIdentityRecord>;
    /// Records the end of a member's new certificate. Refused if it is not a member.
    async fn renew_host(&self, member: &HostIdentity, expires_at: Timestamp) -> Result<()>;
    /// Removes a member.
    async fn remove_host(&self, host: &HostId, at: Timestamp) -> Result<HostIdentityRecord>;
    /// Every host that ever joined.
    async fn host_identities(&self) -> Result<Vec<HostIdentityRecord>>;
    /// The host of that id, if it ever joined.
    async fn host_identity(&self, host: &HostId) -> Result<Option<HostIdentityRecord>>;
    /// Whether the shared secret is accepted. The first call stores `initial`.
    async fn shared_secret(&self, initial: SharedSecret) -> Result<SharedSecret>;
    /// Changes that.
    async fn set_shared_secret(&self, policy: SharedSecret) -> Result<()>;
}
