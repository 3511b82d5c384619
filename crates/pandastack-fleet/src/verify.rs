//! Checks of the certificate of a server.
//!
//! Hosts are known by their identity, not by DNS names or addresses: an address may change, and a name says
//! nothing about a role.

use std::fmt;
use std::sync::Arc;

use pandastack_types::host_identity::{HostIdentity, HostRole};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::credentials::identity_of;
use crate::token::Fingerprint;

/// Decides about the identity of a server whose certificate is good.
pub(crate) type IdentityCheck = Arc<dyn Fn(&HostIdentity) -> bool + Send + Sync>;

/// What a client knows about the server before it connects.
pub(crate) enum Known {
    /// The authority, and which hosts are meant.
    Authority(Arc<RootCertStore>, IdentityCheck),
    /// The fingerprint of the authority; the server must be control.
    Fingerprint(Fingerprint),
}

/// Verifies servers.
pub(crate) struct ServerVerifier {
    known: Known,
    algorithms: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for ServerVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerVerifier")
    }
}

impl ServerVerifier {
    pub(crate) fn new(known: Known) -> Arc<Self> {
        Arc::new(Self { known, algorithms: ring::default_provider().signature_verification_algorithms })
    }

    fn check(
        &self,
        server: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        roots: &RootCertStore,
    ) -> Result<HostIdentity, Error> {
        let parsed = ParsedCertificate::try_from(server)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, chain, now, self.algorithms.all)?;
        identity_of(server).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        server: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_meant = match &self.known {
            Known::Authority(roots, check) => check(&self.check(server, chain, now, roots)?),
            Known::Fingerprint(fingerprint) => {
                let known = |certificate: &&CertificateDer<'_>| Fingerprint::of(certificate) == *fingerprint;
                let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
                let authority = chain.iter().find(known).ok_or(unknown)?;
                let mut roots = RootCertStore::empty();
                roots.add(authority.clone().into_owned())?;
                self.check(server, &[], now, &roots)?.role == HostRole::Control
            }
        };
        match is_meant {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("hosts speak TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
