//! Which TLS a server was asked to serve.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use pandastack_edge::tls::{Certificates, FileCertificates, LocalAuthority, Tls};

/// TLS on the command line. Plain HTTP is served on the same address.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct TlsArgs {
    /// Serve TLS too, with certificates of an authority of this installation: `pandastack ca`
    #[arg(long, env = "PANDASTACK_TLS", conflicts_with = "tls_cert")]
    pub tls: bool,
    /// Serve TLS too, with this certificate chain (PEM)
    #[arg(long, env = "PANDASTACK_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, env = "PANDASTACK_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

impl TlsArgs {
    /// Reads what was asked for.
    pub fn open(&self, data_dir: &Path) -> Result<Option<Tls>> {
        let wanted = self.tls || self.tls_cert.is_some();
        wanted.then(|| Ok(Tls::new(self.certificates(data_dir)?)?)).transpose()
    }

    /// For servers that have no form without TLS: the given certificate, or the authority's.
    pub fn certificates(&self, data_dir: &Path) -> Result<Arc<dyn Certificates>> {
        Ok(match (&self.tls_cert, &self.tls_key) {
            (Some(chain), Some(key)) => Arc::new(FileCertificates::read(chain, key)?),
            _ => Arc::new(LocalAuthority::open(data_dir)?),
        })
    }

    /// The same for another role's command line.
    pub fn arguments(&self) -> Vec<std::ffi::OsString> {
        let mut arguments = Vec::new();
        arguments.extend(self.tls.then(|| "--tls".into()));
        for (flag, file) in [("--tls-cert", &self.tls_cert), ("--tls-key", &self.tls_key)] {
            arguments.extend(file.iter().flat_map(|file| [flag.into(), file.into()]));
        }
        arguments
    }
}
