//! Builders for the HTTP clients of the platform's own programs.
//!
//! Invariants:
//! - TLS comes from `ring`, as everywhere else in the platform, and trusts the system's certificates. They are read once per
//!   process, because reading them takes longer than creating a sandbox.
//! - A host without certificates can still call servers that need none.
//! - Clients speak HTTP/1, even where another dependency turns on HTTP/2: our tunnels are upgrades, which HTTP/2 does not have.

#![forbid(unsafe_code)]

use std::sync::{Arc, LazyLock};

use reqwest::{Client, ClientBuilder};
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, RootCertStore};

/// The system's certificates.
static SYSTEM_ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| {
    let found = rustls_native_certs::load_native_certs();
    for error in found.errors {
        tracing::debug!(%error, "cannot read a system certificate");
    }
    let mut roots = RootCertStore::empty();
    let (_, unusable) = roots.add_parsable_certificates(found.certs);
    if unusable > 0 {
        tracing::debug!(unusable, "system certificates are not usable");
    }
    Arc::new(roots)
});

/// Builder of a client that can call any server.
pub fn builder() -> ClientBuilder {
    with_roots(Arc::clone(&SYSTEM_ROOTS))
}

/// Builder of a client for the server at `address`. Unless that starts with `https:` no certificates are
/// read.
pub fn builder_for(address: &str) -> ClientBuilder {
    if is_https(address) { builder() } else { with_roots(Arc::new(RootCertStore::empty())) }
}

/// Starts to build a client that also trusts these certificate authorities.
pub fn builder_trusting(authorities: &[CertificateDer<'static>]) -> ClientBuilder {
    let mut roots = RootCertStore::clone(&SYSTEM_ROOTS);
    roots.add_parsable_certificates(authorities.iter().cloned());
    with_roots(Arc::new(roots))
}

/// Reason why a text is not a bundle of certificates.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The text contains no certificate.
    #[error("it contains no certificate")]
    Empty,
    /// The text is not PEM.
    #[error("it is not valid PEM")]
    Pem(#[from] pem::Error),
    /// A certificate is damaged.
    #[error("certificate {number} is not valid")]
    Certificate {
        /// Position in the file, from 1.
        number: usize,
        /// The parse error.
        #[source]
        error: rustls::Error,
    },
}

/// Certificates of a PEM text, each usable as an authority.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, BundleError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>()?;
    let mut roots = RootCertStore::empty();
    for (at, certificate) in found.iter().enumerate() {
        let added = roots.add(certificate.clone());
        added.map_err(|error| BundleError::Certificate { number: at + 1, error })?;
    }
    if found.is_empty() { Err(BundleError::Empty) } else { Ok(found) }
}

/// Makes `ring` the process's default TLS provider, for libraries that use it. An existing default
/// is kept.
pub fn install_tls_provider() {
    let _ = ring::default_provider().install_default();
}

fn with_roots(roots: Arc<RootCertStore>) -> ClientBuilder {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = Client::builder().http1_only();
    match config.with_safe_default_protocol_versions() {
        Ok(config) => {
            builder.tls_backend_preconfigured(config.with_root_certificates(roots).with_no_client_auth())
        }
        // Only a provider without cipher suites supports no protocol version. Passing the error as
        // the TLS backend makes the client's build fail.
        Err(error) => builder.tls_backend_preconfigured(error),
    }
}

fn is_https(address: &str) -> bool {
    address.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn an_http_client_is_built_for_any_address() {
        for address in
            ["http://127.0.0.1:8080", "unix:/run/x", "https://example.com", "HTTPS://example.com", "é"]
        {
            assert!(builder_for(address).build().is_ok(), "{address}");
        }
        assert!(is_https("HTTPS://a") && !is_https("http://a") && !is_https("unix:/https:"));
    }

    #[tokio::test]
    async fn a_client_speaks_http_1() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 1024];
            let count = stream.read(&mut head).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            String::from_utf8_lossy(&head[..count]).into_owned()
        };
        let client = builder_for(&url).build().unwrap();
        let (answer, head) = tokio::join!(client.get(&url).send(), server);
        assert_eq!(answer.unwrap().text().await.unwrap(), "ok");
        assert!(head.starts_with("GET / HTTP/1.1\r\n"), "{head}");
    }
}
