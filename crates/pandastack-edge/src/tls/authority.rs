//! A local certificate authority, for machines without a public name.
//!
//! The authority lives in two files and signs a certificate for each name on first use; one for
//! `*.` of a name's domain covers every preview of it. A client that installs `ca.pem` trusts every
//! certificate made here, so the authority's key stays with root.
//!
//! Certificates are kept in a plain map, not in a cache such as `moka`. An entry lives for weeks. The lock is
//! held while a certificate is created, so that it is created once. Losing all of them only means creating
//! them again.

use std::collections::HashMap;
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{Certificates, TlsError, certified};

/// Name of the authority, as browsers show it.
const AUTHORITY_NAME: &str = "PandaStack local authority";
/// Name of a connection that names none.
const NAME_DEFAULT: &str = "localhost";
/// Addresses of this host, for which the default name is valid, too.
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];
/// Validity of the authority and its certificates.
const AUTHORITY_YEARS: i32 = 10;
const LEAF_DAYS: i32 = 90;
/// A certificate is created again after so long.
const LEAF_KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Certificates kept. When full, all are dropped, and created again on request.
const LEAVES_MAX: usize = 1024;
/// Longest name a certificate is made for.
const NAME_BYTES_MAX: usize = 253;

/// Issues certificates for any requested name.
#[derive(Debug)]
pub struct LocalAuthority {
    issuer: Issuer<'static, KeyPair>,
    own: CertificateDer<'static>,
    leaves: Mutex<HashMap<String, (Instant, Arc<CertifiedKey>)>>,
}

impl LocalAuthority {
    /// The authority's own certificate in an installation's data directory.
    pub fn certificate_path(data_dir: &Path) -> PathBuf {
        data_dir.join("tls").join("ca.pem")
    }

    /// Opens the authority of a data directory, and makes it the first time.
    pub fn open(data_dir: &Path) -> Result<Self, TlsError> {
        let path = Self::certificate_path(data_dir);
        let key_path = path.with_file_name("ca-key.pem");
        let key = match std::fs::read_to_string(&key_path) {
            Ok(pem) => KeyPair::from_pem(&pem).map_err(|error| TlsError::Content {
                path: key_path,
                what: "private key",
                reason: error.to_string(),
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(&path, &key_path)?,
            Err(reason) => return Err(TlsError::File { path: key_path, reason }),
        };
        let own = CertificateDer::from_pem_file(&path).map_err(|error| TlsError::Content {
            path,
            what: "certificate",
            reason: error.to_string(),
        })?;
        let issuer = Issuer::new(authority_params()?, key);
        Ok(LocalAuthority { issuer, own, leaves: Mutex::default() })
    }

    fn leaf(&self, name: &str) -> Result<Arc<CertifiedKey>, TlsError> {
        let fail =
            |reason: rcgen::Error| TlsError::Making { name: name.to_owned(), reason: reason.to_string() };
        let mut names = vec![name.to_owned()];
        if name == NAME_DEFAULT {
            // A client that connects by address sends no host name.
            names.extend(LOOPBACK.map(str::to_owned));
        }
        let mut params = CertificateParams::new(names).map_err(fail)?;
        let shown = if name.len() <= 64 { name } else { NAME_DEFAULT };
        params.distinguished_name.push(DnType::CommonName, shown);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = validity(|today| today.saturating_add(LEAF_DAYS.days()));
        let key = KeyPair::generate().map_err(fail)?;
        let leaf = params.signed_by(&key, &self.issuer).map_err(fail)?;
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        certified(vec![leaf.der().clone(), self.own.clone()], key)
    }
}

impl Certificates for LocalAuthority {
    fn certificate(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let name = covering(name.unwrap_or(NAME_DEFAULT));
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((made, leaf)) = leaves.get(&name)
            && made.elapsed() < LEAF_KEPT
        {
            return Some(Arc::clone(leaf));
        }
        let leaf =
            self.leaf(&name).inspect_err(|error| tracing::warn!(%error, "refused a TLS connection")).ok()?;
        if leaves.len() >= LEAVES_MAX {
            leaves.clear();
        }
        leaves.insert(name, (Instant::now(), Arc::clone(&leaf)));
        Some(leaf)
    }
}

/// The name whose certificate covers this one: previews of a domain share a wildcard certificate.
/// Clients do not accept the wildcard `*.localhost`, so names below `localhost` have separate
/// certificates.
fn covering(name: &str) -> String {
    match name.split_once('.') {
        Some((_, domain)) if domain.contains('.') => format!("*.{domain}"),
        _ => name.to_owned(),
    }
}

fn make(path: &Path, key_path: &Path) -> Result<KeyPair, TlsError> {
    let fail = |reason: rcgen::Error| TlsError::Making {
        name: AUTHORITY_NAME.to_owned(),
        reason: reason.to_string(),
    };
    let key = KeyPair::generate().map_err(fail)?;
    let certificate = authority_params()?.self_signed(&key).map_err(fail)?;
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(|reason| TlsError::File { path: dir.to_owned(), reason })?;
    }
    // Write the key last: without it, the next start creates both again.
    write(path, 0o644, &certificate.pem())?;
    write(key_path, 0o600, &key.serialize_pem())?;
    Ok(key)
}

fn write(path: &Path, mode: u32, text: &str) -> Result<(), TlsError> {
    let temporary = path.with_extension("new");
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|reason| TlsError::File { path: path.to_owned(), reason })
}

/// Always the same, so that the authority can be restored from its key alone.
fn authority_params() -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = validity(|today| today.saturating_add(AUTHORITY_YEARS.years()));
    Ok(params)
}

/// Valid from yesterday, for clients whose clock is behind.
fn validity(until: impl FnOnce(Date) -> Date) -> (time::OffsetDateTime, time::OffsetDateTime) {
    let today = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let day = |date: Date| rcgen::date_time_ymd(date.year().into(), date.month() as u8, date.day() as u8);
    (day(today.saturating_sub(1.days())), day(until(today)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previews_of_a_domain_share_a_certificate() {
        for (name, expect) in [
            ("80-a.example.com", "*.example.com"),
            ("api.example.com", "*.example.com"),
            ("example.com", "example.com"),
            ("80-a.localhost", "80-a.localhost"),
            ("localhost", "localhost"),
        ] {
            assert_eq!(covering(name), expect);
        }
    }

    #[test]
    fn a_certificate_without_a_name_is_valid_for_the_loopback_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let authority = LocalAuthority::open(dir.path()).unwrap();
        // Subject alternative names of the type `iPAddress`.
        let addresses: [&[u8]; 2] =
            [&[0x87, 4, 127, 0, 0, 1], &[0x87, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]];
        let valid = |name: Option<&str>| {
            let leaf = authority.certificate(name).unwrap().cert[0].clone();
            addresses.map(|address| leaf.windows(address.len()).any(|part| part == address))
        };
        assert_eq!(valid(None), [true, true]);
        assert_eq!(valid(Some("db.example.com")), [false, false]);
    }

    #[test]
    fn the_local_authority_is_created_once_and_reused() {
        let dir = tempfile::tempdir().unwrap();
        let first = LocalAuthority::open(dir.path()).unwrap();
        let pem = std::fs::read_to_string(LocalAuthority::certificate_path(dir.path())).unwrap();
        let again = LocalAuthority::open(dir.path()).unwrap();
        assert_eq!(first.own, again.own);
        assert_eq!(pem, std::fs::read_to_string(LocalAuthority::certificate_path(dir.path())).unwrap());
        use std::os::unix::fs::PermissionsExt;
        let key = std::fs::metadata(dir.path().join("tls/ca-key.pem")).unwrap();
        assert_eq!(key.permissions().mode() & 0o777, 0o600);
        let one = again.certificate(Some("80-a.example.com")).unwrap();
        let other = again.certificate(Some("81-b.example.com")).unwrap();
        assert!(Arc::ptr_eq(&one, &other));
        assert!(again.certificate(Some(&"a".repeat(300))).is_none());
        for at in 0..=LEAVES_MAX {
            assert!(again.certificate(Some(&format!("n{at}"))).is_some());
        }
        assert!(again.leaves.lock().unwrap().len() <= LEAVES_MAX, "certificates pile up");
    }
}
