//! The authority of an installation, which signs the certificates of its hosts.
//!
//! Its key is made once and kept by control, sealed. Control servers that share a database share it.

use std::time::Duration;

use jiff::Timestamp;
use pandastack_types::host_identity::HostIdentity;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKey,
    PublicKeyData, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use time::OffsetDateTime;

use crate::credentials::{Credentials, pem};
use crate::error::FleetError;
use crate::token::Fingerprint;

const NAME: &str = "PandaStack hosts";
/// Validity of the authority: hosts know it by its fingerprint, so its end is no protection.
const AUTHORITY_LIFE: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
/// A certificate is valid from so long ago, for hosts whose clock is behind.
pub(crate) const BACKDATED: Duration = Duration::from_secs(5 * 60);
/// Largest request for a certificate.
const REQUEST_BYTES_MAX: usize = 4 * 1024;

/// The authority with its key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authority({})", self.fingerprint())
    }
}

fn failed(reason: impl std::fmt::Display) -> FleetError {
    FleetError::certificate("the authority", reason)
}

impl Authority {
    /// Makes a new authority. Returns its key and its certificate, PEM.
    pub fn generate() -> Result<(String, String), FleetError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = named(NAME);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        (params.not_before, params.not_after) = validity(AUTHORITY_LIFE)?;
        let certificate = params.self_signed(&key).map_err(failed)?;
        Ok((key.serialize_pem(), certificate.pem()))
    }

    /// An authority from its key and its certificate, PEM.
    pub fn open(key: &str, certificate: &str) -> Result<Self, FleetError> {
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(failed)?;
        let key = KeyPair::from_pem(key).map_err(failed)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(failed)?;
        Ok(Self { issuer, certificate })
    }

    /// Identifies the authority to hosts that join.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// Its certificate, PEM.
    pub fn certificate_pem(&self) -> String {
        pem("CERTIFICATE", &self.certificate)
    }

    /// A certificate for the key of a host, PEM.
    pub fn issue(
        &self,
        request: &SigningRequest,
        identity: &HostIdentity,
        life: Duration,
    ) -> Result<String, FleetError> {
        self.sign(&request.0, identity, life).map(|certificate| pem("CERTIFICATE", &certificate))
    }

    /// A key and its certificate for this very process.
    pub fn credentials(&self, identity: &HostIdentity, life: Duration) -> Result<Credentials, FleetError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let certificate = self.sign(&key, identity, life)?;
        Credentials::new(&key.serialize_pem(), &pem("CERTIFICATE", &certificate), &self.certificate_pem())
    }

    fn sign(
        &self,
        key: &impl PublicKeyData,
        identity: &HostIdentity,
        life: Duration,
    ) -> Result<CertificateDer<'static>, FleetError> {
        let subject = identity.to_string();
        let failed = |reason: rcgen::Error| FleetError::certificate(&subject, reason);
        let mut params = CertificateParams::default();
        params.distinguished_name = named(identity.host.as_str());
        params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(subject.as_str()).map_err(failed)?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = validity(life)?;
        Ok(params.signed_by(key, &self.issuer).map_err(failed)?.der().clone())
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

fn validity(life: Duration) -> Result<(OffsetDateTime, OffsetDateTime), FleetError> {
    let now = Timestamp::now().as_second();
    let at = |second: i64| OffsetDateTime::from_unix_timestamp(second).map_err(failed);
    let seconds = |span: Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
    Ok((at(now.saturating_sub(seconds(BACKDATED)))?, at(now.saturating_add(seconds(life)))?))
}

/// A checked request for a certificate. Only its key is used: control decides about everything else.
pub struct SigningRequest(PublicKey);

impl std::fmt::Debug for SigningRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningRequest")
    }
}

impl SigningRequest {
    /// Reads a request, PEM. Its signature proves that the sender has the key.
    pub fn parse(text: &str) -> Result<Self, FleetError> {
        if text.len() > REQUEST_BYTES_MAX {
            return Err(FleetError::Request(format!("it is larger than {REQUEST_BYTES_MAX} bytes")));
        }
        let der = CertificateSigningRequestDer::from_pem_slice(text.as_bytes());
        Self::from_der(&der.map_err(|error| FleetError::Request(error.to_string()))?)
    }

    /// The same, DER.
    pub fn from_der(der: &[u8]) -> Result<Self, FleetError> {
        let parsed = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(der));
        let parsed = parsed.map_err(|error| FleetError::Request(error.to_string()))?;
        if parsed.public_key.algorithm() != &PKCS_ECDSA_P256_SHA256 {
            return Err(FleetError::Request("its key is not an ECDSA key on P-256".to_owned()));
        }
        Ok(Self(parsed.public_key))
    }
}
