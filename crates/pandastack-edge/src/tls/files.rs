//! A certificate and key in two files, reloaded when they change.
//!
//! Must hold: the certificate in use stays until both files are valid, even while they are being
//! replaced.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pandastack_types::chain;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{Certificates, TlsError, certified};

/// Shortest interval between checks of the files, which new connections trigger.
const CHECK_AFTER: Duration = Duration::from_secs(1);

/// One certificate from two files, served for every name.
#[derive(Debug)]
pub struct FileCertificates {
    chain: PathBuf,
    key: PathBuf,
    pair: Mutex<Pair>,
}

#[derive(Debug)]
struct Pair {
    certified: Arc<CertifiedKey>,
    /// Modification marks of the files that it was read from.
    marks: Marks,
    /// Marks of invalid files, so that they are logged once.
    refused: Option<Marks>,
    looked: Instant,
}

/// Identifies a version of a file; empty for a missing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    modified: (i64, i64),
    bytes: u64,
    inode: u64,
}

type Marks = [Option<Mark>; 2];

impl FileCertificates {
    /// Reads a chain (the server's own certificate first) and its key, both PEM.
    pub fn read(chain: &Path, key: &Path) -> Result<Self, TlsError> {
        // Taken before the files are read, so that a change during the read causes another read.
        let marks = marks(chain, key);
        let pair = Pair { certified: read_pair(chain, key)?, marks, refused: None, looked: Instant::now() };
        Ok(Self { chain: chain.to_owned(), key: key.to_owned(), pair: Mutex::new(pair) })
    }

    fn reload_if_changed(&self, pair: &mut Pair) {
        let marks = marks(&self.chain, &self.key);
        if marks == pair.marks {
            return;
        }
        match read_pair(&self.chain, &self.key) {
            Ok(certified) => {
                tracing::info!(chain = %self.chain.display(), "loaded a new certificate");
                *pair = Pair { certified, marks, refused: None, looked: pair.looked };
            }
            // One of the files may not be written yet: retry, and log it once.
            Err(error) => {
                if pair.refused.replace(marks) != Some(marks) {
                    tracing::warn!(
                        error = %chain(&error),
                        "cannot load a changed certificate; keeping the previous one"
                    );
                }
            }
        }
    }
}

impl Certificates for FileCertificates {
    fn certificate(&self, _: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let mut pair = self.pair.lock().unwrap_or_else(PoisonError::into_inner);
        if pair.looked.elapsed() >= CHECK_AFTER {
            pair.looked = Instant::now();
            self.reload_if_changed(&mut pair);
        }
        Some(Arc::clone(&pair.certified))
    }
}

fn marks(chain: &Path, key: &Path) -> Marks {
    [chain, key].map(|path| {
        let found = std::fs::metadata(path).ok()?;
        let modified = (found.mtime(), found.mtime_nsec());
        Some(Mark { modified, bytes: found.size(), inode: found.ino() })
    })
}

fn read_pair(chain: &Path, key: &Path) -> Result<Arc<CertifiedKey>, TlsError> {
    let wrong = |path: &Path, what| {
        let path = path.to_owned();
        move |reason: rustls::pki_types::pem::Error| match reason {
            rustls::pki_types::pem::Error::Io(reason) => TlsError::File { path, reason },
            other => TlsError::Content { path, what, reason: other.to_string() },
        }
    };
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(wrong(chain, "certificate"))?;
    if certificates.is_empty() {
        let reason = "the file is empty".to_owned();
        return Err(TlsError::Content { path: chain.to_owned(), what: "certificate", reason });
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(wrong(key, "private key"))?;
    certified(certificates, key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_chain_and_key(chain: &Path, key: &Path) -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["panda.test".to_owned()]).unwrap();
        let texts = (made.cert.pem(), made.signing_key.serialize_pem());
        std::fs::write(chain, &texts.0).unwrap();
        std::fs::write(key, &texts.1).unwrap();
        texts
    }

    #[test]
    fn the_old_certificate_is_served_until_both_new_files_match() {
        let directory = tempfile::tempdir().unwrap();
        let (chain, key) = (directory.path().join("chain.pem"), directory.path().join("key.pem"));
        write_chain_and_key(&chain, &key);
        let files = FileCertificates::read(&chain, &key).unwrap();
        let served = || {
            let mut pair = files.pair.lock().unwrap();
            files.reload_if_changed(&mut pair);
            Arc::clone(&pair.certified)
        };
        let first = served();
        assert!(Arc::ptr_eq(&first, &served()), "nothing changed");

        let next = directory.path().join("next");
        let (_, next_key) = write_chain_and_key(&chain, &next);
        assert!(Arc::ptr_eq(&first, &served()), "the key is still another's");
        std::fs::remove_file(&key).unwrap();
        assert!(Arc::ptr_eq(&first, &served()), "there is none");
        std::fs::write(&key, &next_key[..next_key.len() / 2]).unwrap();
        assert!(Arc::ptr_eq(&first, &served()), "it is half there");
        std::fs::write(&key, next_key).unwrap();
        let second = served();
        assert_ne!(first.cert, second.cert);
        assert!(Arc::ptr_eq(&second, &served()));
    }
}
