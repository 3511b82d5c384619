//! TLS options of servers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use pandastack_edge::tls::{Certificates, FileCertificates, LocalAuthority, Tls};

/// TLS options. Plain HTTP is served on the same address.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TlsArgs {
    /// Also serve TLS, with certificates from the local certificate authority; see `pandastack ca`
    #[arg(long, env = "PANDASTACK_TLS", conflicts_with = "tls_cert")]
    pub tls: bool,
    /// Also serve TLS, with this certificate chain (PEM)
    #[arg(long, env = "PANDASTACK_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Private key for --tls-cert (PEM)
    #[arg(long, env = "PANDASTACK_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

impl TlsArgs {
    /// Loads the certificates; `None` without TLS.
    pub fn open(&self, data_dir: &Path) -> Result<Option<Tls>> {
        let enabled = self.tls || self.tls_cert.is_some();
        enabled.then(|| Ok(Tls::new(self.certificates(data_dir)?)?)).transpose()
    }

    /// For servers that always use TLS: the given certificate, or one from the local authority.
    pub fn certificates(&self, data_dir: &Path) -> Result<Arc<dyn Certificates>> {
        Ok(match (&self.tls_cert, &self.tls_key) {
            (Some(chain), Some(key)) => Arc::new(FileCertificates::read(chain, key)?),
            _ => Arc::new(LocalAuthority::open(data_dir)?),
        })
    }

    /// Files that are read again when they change.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.tls_cert.iter().chain(&self.tls_key).cloned().collect::<Vec<_>>().into_iter()
    }

    /// The same options as arguments for another role.
    pub fn arguments(&self) -> Vec<std::ffi::OsString> {
        let mut arguments = Vec::new();
        arguments.extend(self.tls.then(|| "--tls".into()));
        for (flag, file) in [("--tls-cert", &self.tls_cert), ("--tls-key", &self.tls_key)] {
            arguments.extend(file.iter().flat_map(|file| [flag.into(), file.into()]));
        }
        arguments
    }
}
