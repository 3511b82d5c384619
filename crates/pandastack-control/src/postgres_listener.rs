//! The listener for database connections.
//!
//! Without one given it is port 5432 of this machine, or the next free one; which it was is remembered, because connection
//! strings name it. Beside it every database has a port of its own, unless they have names or others than this machine can
//! reach it: a port says of itself that there is a database, where an id must be known.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use pandastack_databases::PublicAddress;
use pandastack_databases::ports::{self, BoundPort, Ports};
use pandastack_edge::tls::Tls;
use pandastack_postgres::{Databases, Server};
use pandastack_types::DatabaseId;
use tokio::net::TcpListener;
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::CancellationToken;

use crate::config::PostgresConfig;
use crate::serve::{ServeError, listen};

/// PostgreSQL's own port, and how many after it are tried.
const PORT_FIRST: u16 = 5432;
const PORTS_TRIED: u16 = 100;
/// Holds the port that was taken.
const REMEMBERED: &str = "postgres-port";
/// Holds the ports of databases.
const OWN_PORTS: &str = "database-ports.json";

/// A bound address.
pub(crate) struct PostgresListener {
    listener: TcpListener,
    tls: Tls,
    bound: Option<Receiver<BoundPort>>,
    /// Address for clients.
    pub(crate) address: PublicAddress,
    /// Ports of databases that have no names.
    pub(crate) ports: Option<Ports>,
}

impl PostgresListener {
    /// Binds the listeners; ports are remembered in `dir`, `databases` are the existing databases.
    pub(crate) async fn bind(
        config: &PostgresConfig,
        dir: &Path,
        databases: &[DatabaseId],
        shutdown: CancellationToken,
    ) -> Result<Self, ServeError> {
        let listener = match config.listen {
            Some(address) => listen(address).await?,
            None => bind_free(&dir.join(REMEMBERED)).await?,
        };
        let bound = listener.local_addr().unwrap_or_else(|_| local(PORT_FIRST));
        let host = if bound.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { bound.ip() };
        let address =
            PublicAddress { domain: config.domain.clone(), host: host.to_string(), port: bound.port() };
        let (ports, own) = match address.domain.is_none() && bound.ip().is_loopback() {
            false => (None, None),
            true => {
                let file = dir.join(OWN_PORTS);
                let opened = Ports::open(bound.ip(), file.clone(), databases, shutdown).await;
                let (ports, own) = opened.map_err(|source| ServeError::DataDir { path: file, source })?;
                (Some(ports), Some(own))
            }
        };
        tracing::info!(address = %bound, "accepting database connections");
        Ok(Self { listener, tls: config.tls.clone(), bound: own, address, ports })
    }

    /// Serves until `stop`.
    pub(crate) async fn serve(self, databases: Arc<dyn Databases>, stop: CancellationToken) {
        let server = Server::new(databases, self.tls);
        let all = Arc::clone(&server).serve(self.listener, stop.clone());
        match self.bound {
            Some(bound) => {
                tokio::join!(all, ports::serve(server, bound, stop));
            }
            None => all.await,
        }
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
    // No port is free; report the first port's error.
    listen(local(PORT_FIRST)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_rebinds_its_remembered_port() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(REMEMBERED);
        let first = bind_free(&path).await.unwrap().local_addr().unwrap();
        let again = bind_free(&path).await.unwrap();
        assert_eq!(again.local_addr().unwrap(), first);
        let other = bind_free(&path).await.unwrap().local_addr().unwrap();
        assert_ne!(other, first, "taken ports are passed over");
    }
}
