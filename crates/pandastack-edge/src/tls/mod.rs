//! TLS: chooses the certificate of a connection, and detects TLS or plain HTTP on one address.
//!
//! Certificates come from an implementation of [`Certificates`]: two files that may be replaced at
//! any time ([`FileCertificates`]), or an authority of this installation that creates one for each
//! requested name ([`LocalAuthority`]). A client of a public authority fits the same trait.

mod authority;
mod files;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use authority::LocalAuthority;
pub use files::FileCertificates;

/// Longest time for a client's side of the handshake.
pub const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// First byte of a TLS connection: a handshake record. No HTTP method starts with it.
const HANDSHAKE_RECORD: u8 = 0x16;

/// Reason why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("TLS: `{}` cannot be used", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        reason: io::Error,
    },
    /// A file holds something else.
    #[error("TLS: `{path}` contains no PEM {what}: {reason}")]
    Content {
        /// The file.
        path: PathBuf,
        /// Kind of PEM content that was expected.
        what: &'static str,
        /// Reason.
        reason: String,
    },
    /// The key does not belong to the certificate, or is of an unsupported kind.
    #[error("TLS: the key does not match the certificate: {0}")]
    Mismatch(String),
    /// A certificate could not be made.
    #[error("TLS: cannot create a certificate for `{name}`: {reason}")]
    Making {
        /// For which name.
        name: String,
        /// Reason.
        reason: String,
    },
}

/// A source of certificates for all requested names.
pub trait Certificates: std::fmt::Debug + Send + Sync {
    /// The certificate for a name; without one, for clients that name none. `None` refuses the connection. Called during a
    /// handshake: must not block for long.
    fn certificate(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>>;
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<CertifiedKey>, TlsError> {
    let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
    certified.map(Arc::new).map_err(|error| TlsError::Mismatch(error.to_string()))
}

/// The server's side of TLS.
#[derive(Clone)]
pub struct Tls(TlsAcceptor);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// HTTP/2 where the client speaks it, else HTTP/1.1.
    pub fn new(certificates: Arc<dyn Certificates>) -> Result<Self, TlsError> {
        Self::with_protocols(certificates, &[b"h2", b"http/1.1"])
    }

    /// Other protocols, best first. A client that offers some, but none of these, is refused.
    pub fn with_protocols(
        certificates: Arc<dyn Certificates>,
        protocols: &[&[u8]],
    ) -> Result<Self, TlsError> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Mismatch(error.to_string()))?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(ByName(certificates)));
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Tls(TlsAcceptor::from(Arc::new(config))))
    }

    /// Shakes hands.
    pub async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        tokio::time::timeout(HANDSHAKE_WAIT, self.0.accept(stream)).await?
    }
}

#[derive(Debug)]
struct ByName(Arc<dyn Certificates>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        self.0.certificate(name.as_deref())
    }
}

/// Returns whether the client begins a TLS handshake. Waits for its first byte without consuming
/// it.
pub async fn is_tls(stream: &TcpStream, patience: Duration) -> io::Result<bool> {
    let mut first = [0];
    let read = tokio::time::timeout(patience, stream.peek(&mut first)).await??;
    Ok(read == 1 && first[0] == HANDSHAKE_RECORD)
}
