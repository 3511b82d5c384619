//! The hosts of this installation: the authority that signs their certificates, who is a member, and who sent
//! a request to the private API.
//!
//! ```text
//!   operator --POST /v1/hosts/tokens--> token --join--> certificate of a member --renew--> the next one
//!   operator --DELETE /v1/hosts/{id}--> no member: connections cut, certificate refused
//! ```
//!
//! Must hold:
//! - every control server has the same authority; its key is in the database, sealed;
//! - a member acts for itself only, in its role ([`caller`]);
//! - a removed host is refused from then on by this server, and by the others as soon as the database tells
//!   them.

pub(crate) mod audit;
pub(crate) mod caller;
pub(crate) mod join;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use pandastack_agent_client::{AgentLink, CallOptions};
use pandastack_fleet::{Authority, Dialer, FleetError, HostTls, LinkPolicy, Memberships, SigningRequest};
use pandastack_sandboxes::hosts::Hosts;
use pandastack_store::clock::now;
use pandastack_store::host_identities::{
    AuthorityRecord, HostIdentityRecord, HostIdentityStore, SharedSecret,
};
use pandastack_store::{HostStore, Store, StoreError};
use pandastack_types::agent_api::endpoints::SetEdges;
use pandastack_types::agent_api::{IssuedCertificate, MigrationOffer};
use pandastack_types::host_identity::{HostIdentity, HostRole};
use pandastack_types::link::LinkKey;
use pandastack_types::{Error, HostId, Result, chain};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Life of a host's certificate. The host renews it after two thirds of it.
pub(crate) const CERTIFICATE_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Longest time for an agent to learn which edges are members.
const ANNOUNCE_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed attempt to renew this server's own certificate.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Reason why the authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A certificate cannot be made or read.
    #[error(transparent)]
    Certificate(#[from] FleetError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The hosts that have a certificate.
pub(crate) struct Fleet {
    authority: Authority,
    /// This server's own certificate.
    pub(crate) tls: HostTls,
    acceptor: TlsAcceptor,
    pub(crate) memberships: Arc<Memberships>,
    life: Duration,
    /// Every host that ever joined, also those that were removed.
    joined: RwLock<HashSet<HostId>>,
    shared_secret: RwLock<SharedSecret>,
    /// Whether hosts of other machines can reach this server.
    pub(crate) listens: bool,
}

impl LinkPolicy for Fleet {
    fn tls(&self) -> Option<TlsAcceptor> {
        Some(self.acceptor.clone())
    }

    fn allows_plain(&self) -> bool {
        self.shared_secret() != SharedSecret::Refused
    }

    fn memberships(&self) -> &Arc<Memberships> {
        &self.memberships
    }
}

impl Fleet {
    /// Opens the authority, and makes it the first time. `me` names this server.
    pub(crate) async fn open(
        store: &(impl HostIdentityStore + HostStore),
        me: HostId,
        life: Duration,
        listens: bool,
    ) -> std::result::Result<Self, OpenError> {
        let (key, certificate) = Authority::generate()?;
        let kept = store.host_authority(&AuthorityRecord { key: Some(key), certificate }).await?;
        let authority = Authority::open(kept.key.as_deref().unwrap_or_default(), &kept.certificate)?;
        let identity = HostIdentity { role: HostRole::Control, host: me, membership: 0 };
        let tls = HostTls::new(authority.credentials(&identity, life)?)?;
        let (memberships, known) = (Arc::new(Memberships::default()), store.host_identities().await?);
        let joined = RwLock::new(known.iter().map(|record| record.identity.host.clone()).collect());
        memberships.replace(members(known));
        // An installation with hosts from before certificates keeps working until it is migrated.
        let had_hosts = !HostStore::hosts(store).await?.is_empty();
        let initial = if had_hosts { SharedSecret::Accepted } else { SharedSecret::Refused };
        let shared_secret = RwLock::new(store.shared_secret(initial).await?);
        let acceptor = tls.acceptor()?;
        Ok(Self { authority, tls, acceptor, memberships, life, joined, shared_secret, listens })
    }

    /// How this server calls agents.
    pub(crate) fn agent_link(&self, secret: LinkKey) -> AgentLink {
        AgentLink::new(Some(secret), Some(Dialer::new(self.tls.clone(), Arc::clone(&self.memberships))))
    }

    /// The authority's fingerprint, for join tokens.
    pub(crate) fn fingerprint(&self) -> pandastack_fleet::Fingerprint {
        self.authority.fingerprint()
    }

    /// Whether the host ever joined. The join secret is not accepted for it any more.
    pub(crate) fn has_joined(&self, host: &HostId) -> bool {
        self.joined.read().unwrap_or_else(PoisonError::into_inner).contains(host)
    }

    /// Whether hosts may use the shared secret over TCP.
    pub(crate) fn shared_secret(&self) -> SharedSecret {
        *self.shared_secret.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What hosts without a certificate are offered.
    pub(crate) fn offer(&self, secret: &LinkKey) -> Option<MigrationOffer> {
        let is_offered = self.shared_secret() == SharedSecret::Migrating;
        is_offered.then(|| MigrationOffer::new(secret, self.fingerprint().to_string()))
    }

    /// Changes whether hosts may use the shared secret over TCP.
    pub(crate) async fn set_shared_secret(&self, store: &dyn Store, policy: SharedSecret) -> Result<()> {
        store.set_shared_secret(policy).await?;
        self.use_shared_secret(policy);
        Ok(())
    }

    fn use_shared_secret(&self, policy: SharedSecret) {
        *self.shared_secret.write().unwrap_or_else(PoisonError::into_inner) = policy;
    }

    /// End of a certificate that is signed now.
    fn certificate_end(&self) -> Timestamp {
        now().saturating_add(self.life).unwrap_or(Timestamp::MAX)
    }

    fn issue(&self, request: &SigningRequest, member: &HostIdentity) -> Result<IssuedCertificate> {
        let certificate = self.authority.issue(request, member, self.life).map_err(Error::internal)?;
        Ok(IssuedCertificate { certificate, authority: self.authority.certificate_pem() })
    }

    /// Applies the stored state of a host: cuts the connections of one that was removed.
    pub(crate) fn apply(&self, record: HostIdentityRecord) {
        let host = record.identity.host.clone();
        self.joined.write().unwrap_or_else(PoisonError::into_inner).insert(host.clone());
        match record.member() {
            Some(member) => self.memberships.set(&member),
            None => self.memberships.remove(&host),
        }
    }

    /// Edges that are members, with their memberships.
    pub(crate) fn edges(&self) -> BTreeMap<HostId, u32> {
        self.memberships.members(HostRole::Edge).into_iter().collect()
    }

    /// Tells agents which edges may forward traffic. An agent that is not reached learns it from the answer
    /// to its next report.
    pub(crate) async fn announce_edges(&self, hosts: &Hosts) {
        let (edges, options) = (self.edges(), CallOptions::on_host(ANNOUNCE_MAX));
        let calls = hosts.clients().into_iter().map(|(_, client)| {
            let edges = &edges;
            async move { client.call(SetEdges::new(), options, edges).await }
        });
        for told in futures::future::join_all(calls).await {
            if let Err(error) = told {
                tracing::debug!(error = %chain(&error), "cannot tell a host about edges");
            }
        }
    }

    /// Reads a host, or all hosts, again.
    pub(crate) async fn reload(&self, store: &dyn Store, host: Option<&HostId>) {
        let read = match host {
            Some(host) => store.host_identity(host).await.map(|found| {
                found.into_iter().for_each(|record| self.apply(record));
            }),
            None => store.host_identities().await.map(|all| {
                let ids = all.iter().map(|record| record.identity.host.clone()).collect();
                *self.joined.write().unwrap_or_else(PoisonError::into_inner) = ids;
                self.memberships.replace(members(all));
            }),
        };
        let policy = store.shared_secret(self.shared_secret()).await;
        if let Err(error) = read.and(policy.map(|policy| self.use_shared_secret(policy))) {
            tracing::error!(error = %chain(&error), "cannot read the hosts; a removed one may stay");
        }
    }

    /// Renews this server's own certificate before it ends.
    pub(crate) async fn keep_own_certificate(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let wait = self.tls.credentials().renew_in(Timestamp::now());
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            if let Err(error) = self.renew_own() {
                tracing::error!(error = %chain(&error), "cannot renew the certificate; trying again");
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    fn renew_own(&self) -> std::result::Result<(), FleetError> {
        let before = self.tls.credentials();
        self.tls.replace(self.authority.credentials(before.identity(), self.life)?);
        Ok(())
    }
}

fn members(records: Vec<HostIdentityRecord>) -> impl Iterator<Item = HostIdentity> {
    records.into_iter().filter_map(HostIdentityRecord::member)
}
