//! The address of the server for databases.
//!
//! Without one given it is port 5432 of this machine, or the next free one; which it was is remembered, because connection
//! strings name it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use pandastack_edge::tls::Tls;
use pandastack_postgres::{Databases, Server};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::PostgresConfig;
use crate::databases::PublicAddress;
use crate::serve::{ServeError, listen};

/// PostgreSQL's own port, and how many after it are tried.
const PORT_FIRST: u16 = 5432;
const PORTS_TRIED: u16 = 100;
/// Holds the port that was taken.
const REMEMBERED: &str = "postgres-port";

/// A bound address.
pub(crate) struct PostgresListener {
    listener: TcpListener,
    tls: Tls,
    /// What clients are told.
    pub(crate) address: PublicAddress,
}

impl PostgresListener {
    /// Binds; `dir` is where the port is remembered.
    pub(crate) async fn bind(config: &PostgresConfig, dir: &Path) -> Result<Self, ServeError> {
        let listener = match config.listen {
            Some(address) => listen(address).await?,
            None => bind_free(&dir.join(REMEMBERED)).await?,
        };
        let bound = listener.local_addr().unwrap_or_else(|_| local(PORT_FIRST));
        let host = if bound.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { bound.ip() };
        let address =
            PublicAddress { domain: config.domain.clone(), host: host.to_string(), port: bound.port() };
        tracing::info!(address = %bound, "databases are served");
        Ok(Self { listener, tls: config.tls.clone(), address })
    }

    /// Serves until `stop`.
    pub(crate) async fn serve(self, databases: Arc<dyn Databases>, stop: CancellationToken) {
        Server::new(databases, self.tls).serve(self.listener, stop).await;
    }
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

async fn bind_free(remembered: &Path) -> Result<TcpListener, ServeError> {
    let before = std::fs::read_to_string(remembered).ok().and_then(|text| text.trim().parse().ok());
    for port in before.into_iter().chain(PORT_FIRST..PORT_FIRST + PORTS_TRIED) {
        let Ok(listener) = TcpListener::bind(local(port)).await else { continue };
        if before != Some(port) {
            let kept = std::fs::write(remembered, port.to_string());
            kept.map_err(|source| ServeError::DataDir { path: remembered.to_owned(), source })?;
        }
        return Ok(listener);
    }
    // None is free: the error of the first says why.
    listen(local(PORT_FIRST)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_is_kept_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(REMEMBERED);
        let first = bind_free(&path).await.unwrap().local_addr().unwrap();
        let again = bind_free(&path).await.unwrap();
        assert_eq!(again.local_addr().unwrap(), first);
        let other = bind_free(&path).await.unwrap().local_addr().unwrap();
        assert_ne!(other, first, "taken ports are passed over");
    }
}
