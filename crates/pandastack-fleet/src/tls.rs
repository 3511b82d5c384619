//! TLS of a host that has a certificate: 1.3 only, both sides with a certificate, no sessions that are
//! resumed.

use std::sync::{Arc, PoisonError, RwLock};

use pandastack_types::host_identity::{HostIdentity, HostRole};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::credentials::{Credentials, identity_of};
use crate::error::FleetError;
use crate::token::Fingerprint;
use crate::verify::{IdentityCheck, Known, ServerVerifier};

/// The credentials of this host, which may be replaced at any time: new connections use the new ones.
#[derive(Clone)]
pub struct HostTls {
    current: Arc<Current>,
    roots: Arc<RootCertStore>,
    replaced: watch::Sender<()>,
}

struct Current(RwLock<Credentials>);

impl std::fmt::Debug for Current {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Current")
    }
}

impl std::fmt::Debug for HostTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostTls({:?})", self.credentials())
    }
}

impl Current {
    fn get(&self) -> Credentials {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner).certified)
    }
}

impl ResolvesClientCert for Current {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn failed(reason: impl std::fmt::Display) -> FleetError {
    FleetError::certificate("this host", reason)
}

impl HostTls {
    /// TLS with these credentials.
    pub fn new(credentials: Credentials) -> Result<Self, FleetError> {
        let mut roots = RootCertStore::empty();
        roots.add(credentials.authority.clone()).map_err(failed)?;
        let current = Arc::new(Current(RwLock::new(credentials)));
        Ok(Self { current, roots: Arc::new(roots), replaced: watch::Sender::new(()) })
    }

    /// The credentials of new connections.
    pub fn credentials(&self) -> Credentials {
        self.current.get()
    }

    /// Uses other credentials of the same authority for new connections.
    pub fn replace(&self, credentials: Credentials) {
        *self.current.0.write().unwrap_or_else(PoisonError::into_inner) = credentials;
        self.replaced.send_replace(());
    }

    /// Notified when the credentials are replaced.
    pub fn replaced(&self) -> watch::Receiver<()> {
        self.replaced.subscribe()
    }

    /// Connects to control servers, and to nothing else.
    pub fn to_control(&self) -> Result<ClientConfig, FleetError> {
        self.client(Arc::new(|identity: &HostIdentity| identity.role == HostRole::Control))
    }

    pub(crate) fn client(&self, check: IdentityCheck) -> Result<ClientConfig, FleetError> {
        let known = Known::Authority(Arc::clone(&self.roots), check);
        let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let mut config = builder
            .map_err(failed)?
            .dangerous()
            .with_custom_certificate_verifier(ServerVerifier::new(known))
            .with_client_cert_resolver(Arc::clone(&self.current) as _);
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok(config)
    }

    /// The server's side. Clients without a certificate are let in: they may only join.
    pub fn acceptor(&self) -> Result<TlsAcceptor, FleetError> {
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&self.roots), provider())
            .allow_unauthenticated()
            .build()
            .map_err(failed)?;
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let mut config = builder
            .map_err(failed)?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::clone(&self.current) as _);
        // A resumed session would not be checked again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Connects to control without a certificate, to join: control is known by its authority's fingerprint.
pub(crate) fn to_unjoined_control(authority: Fingerprint) -> Result<ClientConfig, FleetError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let mut config = builder
        .map_err(failed)?
        .dangerous()
        .with_custom_certificate_verifier(ServerVerifier::new(Known::Fingerprint(authority)))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// The identity of the other side of a connection; `None` if it showed no certificate.
pub(crate) fn peer_of(session: &rustls::CommonState) -> Option<HostIdentity> {
    session.peer_certificates()?.first().and_then(|certificate| identity_of(certificate))
}
