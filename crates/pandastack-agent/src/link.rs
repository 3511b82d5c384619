//! The link to control and to edges: who this host is, and who may call it.
//!
//! | this host | it listens | its callers show |
//! |---|---|---|
//! | on control's machine | on a socket | a signature with the join secret |
//! | with a certificate | with TLS | the certificate of a control server, or of an edge that control named |
//! | with the join secret only | with plain HTTP, on a private network | a signature with the join secret |

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use axum::extract::{ConnectInfo, MatchedPath, Request};
use pandastack_fleet::{
    Control, CredentialFile, FleetError, HostTls, LinkPolicy, Memberships, Peer, join_with_secret,
    keep_current,
};
use pandastack_types::HostId;
use pandastack_types::agent_api::endpoints::{OpenGrant, OpenTunnel};
use pandastack_types::agent_api::{Endpoint, MigrationOffer, PREFIX};
use pandastack_types::host_identity::{HostIdentity, HostRole};
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey, LinkRefused};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::config::Listen;

/// What an agent proves its identity with.
#[derive(Debug, Clone)]
pub enum LinkCredentials {
    /// The join secret.
    Secret(LinkKey),
    /// A certificate, and the file in which its successors are kept.
    Certificate(HostTls, CredentialFile),
}

/// Reason why a request was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error(transparent)]
    Signature(#[from] LinkRefused),
    #[error("this host has a certificate; connect with TLS and the certificate of a control server")]
    NoCertificate,
    #[error("edge `{0}` may only forward traffic to sandboxes")]
    Edge(HostId),
    #[error("host `{0}` is no control server")]
    Role(HostId),
}

/// The link of one agent.
pub(crate) struct Link {
    host: HostId,
    state: RwLock<State>,
    /// Where credentials of a host that migrates are kept.
    file: CredentialFile,
    migrated: Notify,
    edges: Arc<Memberships>,
}

struct State {
    credentials: LinkCredentials,
    acceptor: Option<TlsAcceptor>,
}

impl State {
    fn new(credentials: LinkCredentials) -> Result<Self, FleetError> {
        let acceptor = match &credentials {
            LinkCredentials::Secret(_) => None,
            LinkCredentials::Certificate(tls, _) => Some(tls.acceptor()?),
        };
        Ok(Self { credentials, acceptor })
    }
}

impl LinkPolicy for Link {
    fn tls(&self) -> Option<TlsAcceptor> {
        self.state().acceptor.clone()
    }

    fn allows_plain(&self) -> bool {
        self.state().acceptor.is_none()
    }

    fn memberships(&self) -> &Arc<Memberships> {
        &self.edges
    }
}

impl Link {
    pub(crate) fn new(
        host: HostId,
        credentials: LinkCredentials,
        data_dir: &Path,
    ) -> Result<Self, FleetError> {
        let (state, file) = (RwLock::new(State::new(credentials)?), CredentialFile::of(data_dir));
        Ok(Self { host, state, file, migrated: Notify::new(), edges: Arc::default() })
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current proof of this host's identity.
    pub(crate) fn credentials(&self) -> LinkCredentials {
        self.state().credentials.clone()
    }

    /// Gets a certificate with the join secret, as control offers, and uses it from then on. Machines, and
    /// calls that are in progress, notice nothing.
    pub(crate) async fn migrate(&self, control: &str, offer: &MigrationOffer) -> anyhow::Result<()> {
        let LinkCredentials::Secret(secret) = self.credentials() else { return Ok(()) };
        anyhow::ensure!(offer.is_proven(&secret), "the offer of a certificate was not made by control");
        let control = Control::parse(control);
        let joined = join_with_secret(&control, offer.authority.parse()?, &secret, &self.host).await?;
        self.file.write(&joined)?;
        let until = joined.expires_at();
        let state = State::new(LinkCredentials::Certificate(HostTls::new(joined)?, self.file.clone()))?;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        self.migrated.notify_one();
        tracing::info!(%until, "this host has a certificate now; the join secret is not used any more");
        Ok(())
    }

    /// The address that this agent reports.
    pub(crate) fn address(&self, listen: &Listen, advertise: Option<&str>) -> String {
        let scheme = match self.state().credentials {
            LinkCredentials::Secret(_) => "http",
            LinkCredentials::Certificate(..) => "https",
        };
        match (listen, advertise) {
            (Listen::Unix(path), _) => format!("unix:{}", path.display()),
            (Listen::Tcp(_), Some(given)) => format!("{scheme}://{given}"),
            (Listen::Tcp(address), None) => format!("{scheme}://{address}"),
        }
    }

    /// Replaces the edges that may ask for traffic grants. Connections of others are cut.
    pub(crate) fn set_edges(&self, edges: impl IntoIterator<Item = (HostId, u32)>) {
        let edge = |(host, membership)| HostIdentity { role: HostRole::Edge, host, membership };
        self.edges.replace(edges.into_iter().map(edge));
    }

    /// Checks that control, or for some calls an edge, sent a request.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Refused> {
        let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| peer);
        match (peer, &self.credentials()) {
            (Some(Peer::Member(_, member)), _) => match member.role {
                HostRole::Control => Ok(()),
                HostRole::Edge if is_for_edges(request) => Ok(()),
                HostRole::Edge => Err(Refused::Edge(member.host.clone())),
                HostRole::Agent => Err(Refused::Role(member.host.clone())),
            },
            (Some(Peer::Local | Peer::Plain(_)), LinkCredentials::Secret(secret)) => {
                self.check_signature(secret, request)
            }
            _ => Err(Refused::NoCertificate),
        }
    }

    fn check_signature(&self, secret: &LinkKey, request: &Request) -> Result<(), Refused> {
        let header = request.headers().get(LINK_HEADER).and_then(|value| value.to_str().ok());
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let (method, now) = (request.method().as_str(), jiff::Timestamp::now().as_second());
        let meant = secret.verify(Direction::ControlToAgent, header, method, path, now)?;
        if meant == self.host { Ok(()) } else { Err(LinkRefused::Mismatch.into()) }
    }

    /// Keeps the certificate current, until `stop`.
    pub(crate) async fn keep_certificate(&self, control: &str, stop: &CancellationToken) {
        let control = Control::parse(control);
        while !stop.is_cancelled() {
            match self.credentials() {
                LinkCredentials::Certificate(tls, file) => keep_current(&tls, &control, &file, stop).await,
                LinkCredentials::Secret(_) => tokio::select! {
                    () = self.migrated.notified() => {}
                    () = stop.cancelled() => {}
                },
            }
        }
    }
}

fn is_for_edges(request: &Request) -> bool {
    let Some(route) = request.extensions().get::<MatchedPath>() else { return false };
    let below = route.as_str().strip_prefix(PREFIX);
    below.is_some_and(|path| path == OpenGrant::PATH || path == OpenTunnel::PATH)
}

/// Checks the address at which control is told to call this agent.
pub fn is_advertisable(address: &str) -> bool {
    let port = address.rsplit_once(':').map(|(name, port)| (name, port.parse::<u16>()));
    match (address.parse::<SocketAddr>(), port) {
        (Ok(address), _) => !address.ip().is_unspecified() && address.port() != 0,
        (Err(_), Some((name, Ok(port)))) => {
            let is_name = |c: u8| c.is_ascii_alphanumeric() || b"-.".contains(&c);
            port != 0 && !name.is_empty() && name.bytes().all(is_name)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertised_address_can_be_called() {
        for good in ["10.0.0.2:7071", "[fd00::2]:7071", "host-a.internal:7071"] {
            assert!(is_advertisable(good), "{good}");
        }
        for bad in ["", "10.0.0.2", "0.0.0.0:7071", "[::]:7071", "10.0.0.2:0", "a b:1", "http://a:1", ":7071"]
        {
            assert!(!is_advertisable(bad), "{bad}");
        }
    }
}
