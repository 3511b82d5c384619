//! The key and the certificate of a host, in memory and in its data directory.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pandastack_types::host_identity::HostIdentity;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::authority::BACKDATED;
use crate::error::FleetError;
use crate::token::Fingerprint;

/// Name of the file in a data directory.
const FILE: &str = "host-identity.json";

/// A key, its certificate, and the authority that signed it.
#[derive(Clone)]
pub struct Credentials {
    identity: HostIdentity,
    expires_at: Timestamp,
    renew_at: Timestamp,
    pub(crate) certified: Arc<CertifiedKey>,
    pub(crate) authority: CertificateDer<'static>,
    stored: Stored,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({}, until {})", self.identity, self.expires_at)
    }
}

/// Credentials as the file has them, in one piece, so that key and certificate always match.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    key: String,
    certificate: String,
    authority: String,
    /// Public part of the token that the host joined with.
    #[serde(default)]
    token: Option<String>,
}

impl Credentials {
    /// Credentials from PEM texts.
    pub fn new(key: &str, certificate: &str, authority: &str) -> Result<Self, FleetError> {
        let (key, certificate, authority) = (key.to_owned(), certificate.to_owned(), authority.to_owned());
        Self::from_stored(Stored { key, certificate, authority, token: None })
    }

    /// The same, joined with the token of that public part.
    pub fn joined_with(mut self, token: Option<&str>) -> Self {
        self.stored.token = token.map(str::to_owned);
        self
    }

    fn from_stored(stored: Stored) -> Result<Self, FleetError> {
        let wrong = |reason: &dyn std::fmt::Display| FleetError::certificate("this host", reason);
        let certificate = CertificateDer::from_pem_slice(stored.certificate.as_bytes());
        let certificate = certificate.map_err(|error| wrong(&error))?;
        let authority = CertificateDer::from_pem_slice(stored.authority.as_bytes());
        let authority = authority.map_err(|error| wrong(&error))?;
        let identity =
            identity_of(&certificate).ok_or_else(|| wrong(&"it names no host of this platform"))?;
        let (_, parsed) = X509Certificate::from_der(&certificate).map_err(|error| wrong(&error))?;
        let at = |second: i64| Timestamp::from_second(second).map_err(|error| wrong(&error));
        let from = at(parsed.validity().not_before.timestamp())?.saturating_add(BACKDATED);
        let from = from.map_err(|error| wrong(&error))?;
        let expires_at = at(parsed.validity().not_after.timestamp())?;
        // A third of its life is left for retries.
        let life = expires_at.duration_since(from).unsigned_abs();
        let renew_at = expires_at.saturating_sub(life / 3).map_err(|error| wrong(&error))?;
        let key = PrivateKeyDer::from_pem_slice(stored.key.as_bytes()).map_err(|error| wrong(&error))?;
        let chain = vec![certificate, authority.clone()];
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
        let certified = Arc::new(certified.map_err(|error| wrong(&error))?);
        Ok(Self { identity, expires_at, renew_at, certified, authority, stored })
    }

    /// The host that they are of.
    pub fn identity(&self) -> &HostIdentity {
        &self.identity
    }

    /// End of the certificate.
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// The authority that signed the certificate.
    pub fn authority(&self) -> Fingerprint {
        Fingerprint::of(&self.authority)
    }

    /// Public part of the token that the host joined with.
    pub fn token(&self) -> Option<&str> {
        self.stored.token.as_deref()
    }

    /// Whether the certificate has ended.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        now >= self.expires_at
    }

    /// Time until the certificate should be renewed.
    pub fn renew_in(&self, now: Timestamp) -> Duration {
        let left = self.renew_at.duration_since(now);
        if left.is_negative() { Duration::ZERO } else { left.unsigned_abs() }
    }
}

/// The identity in a certificate: its only name. The caller has checked who signed it.
pub(crate) fn identity_of(certificate: &[u8]) -> Option<HostIdentity> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    match names.value.general_names.as_slice() {
        [GeneralName::URI(name)] => name.parse().ok(),
        _ => None,
    }
}

/// A DER value as PEM.
pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let text = data_encoding::BASE64.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned() + "\n");
    format!("-----BEGIN {label}-----\n{}-----END {label}-----\n", lines.collect::<String>())
}

/// A fresh key of a host, and the request for its certificate.
pub struct KeyRequest {
    key: String,
    request: String,
}

impl std::fmt::Debug for KeyRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyRequest(secret)")
    }
}

impl KeyRequest {
    /// Makes a key.
    pub fn generate() -> Result<Self, FleetError> {
        let failed = |reason: rcgen::Error| FleetError::certificate("this host", reason);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
        let request = CertificateParams::default().serialize_request(&key).map_err(failed)?;
        Ok(Self { key: key.serialize_pem(), request: request.pem().map_err(failed)? })
    }

    /// The request, PEM.
    pub fn request(&self) -> &str {
        &self.request
    }

    /// The key with its certificate.
    pub fn with(self, certificate: &str, authority: &str) -> Result<Credentials, FleetError> {
        Credentials::new(&self.key, certificate, authority)
    }
}

/// The file with a host's credentials. Readable by its owner only.
#[derive(Debug, Clone)]
pub struct CredentialFile(PathBuf);

impl CredentialFile {
    /// The file of a data directory.
    pub fn of(data_dir: &Path) -> Self {
        Self(data_dir.join(FILE))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn failed(&self, source: impl Into<std::io::Error>) -> FleetError {
        FleetError::File { path: self.0.clone(), source: source.into() }
    }

    /// Reads the credentials; `None` if the host has not joined.
    pub fn read(&self) -> Result<Option<Credentials>, FleetError> {
        let text = match std::fs::read(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        };
        let stored = serde_json::from_slice(&text).map_err(|error| self.failed(error))?;
        Credentials::from_stored(stored).map(Some)
    }

    /// Replaces the credentials.
    pub fn write(&self, credentials: &Credentials) -> Result<(), FleetError> {
        let text = serde_json::to_vec_pretty(&credentials.stored).map_err(|error| self.failed(error))?;
        let fresh = self.0.with_extension("new");
        let write = || {
            let _ = std::fs::remove_file(&fresh);
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&fresh, &self.0)?;
            std::fs::File::open(self.0.parent().unwrap_or_else(|| Path::new(".")))?.sync_all()
        };
        write().map_err(|error| self.failed(error))
    }
}
