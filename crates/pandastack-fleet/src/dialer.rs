//! Connections to agents.

use std::io;
use std::sync::Arc;

use pandastack_types::HostId;
use pandastack_types::host_identity::{HostIdentity, HostRole};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::cut::LinkStream;
use crate::error::FleetError;
use crate::membership::Memberships;
use crate::tls::{HostTls, peer_of};

/// Connects to the agents that are members.
#[derive(Clone, Debug)]
pub struct Dialer {
    tls: HostTls,
    memberships: Arc<Memberships>,
}

impl Dialer {
    /// Connects as this host to members.
    pub fn new(tls: HostTls, memberships: Arc<Memberships>) -> Self {
        Self { tls, memberships }
    }

    /// Connects to the agent of one host.
    pub fn to(&self, host: &HostId) -> Result<HostDialer, FleetError> {
        let (meant, memberships) = (host.clone(), Arc::clone(&self.memberships));
        let check = move |identity: &HostIdentity| {
            identity.role == HostRole::Agent && identity.host == meant && memberships.is_member(identity)
        };
        let connector = TlsConnector::from(Arc::new(self.tls.client(Arc::new(check))?));
        Ok(HostDialer { connector, memberships: Arc::clone(&self.memberships) })
    }
}

/// Connects to the agent of one host.
#[derive(Clone)]
pub struct HostDialer {
    connector: TlsConnector,
    memberships: Arc<Memberships>,
}

impl std::fmt::Debug for HostDialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostDialer")
    }
}

impl HostDialer {
    /// Shakes hands on a connection. It is cut when the host is removed.
    pub async fn shake_hands(&self, stream: TcpStream) -> io::Result<LinkStream> {
        // The verifier knows the host by its identity; the address only fills the field.
        let name = ServerName::IpAddress(stream.peer_addr()?.ip().into());
        let stream = self.connector.connect(name, stream).await?;
        let removed = || io::Error::new(io::ErrorKind::ConnectionRefused, "the host is not a member");
        let identity = peer_of(stream.get_ref().1).ok_or_else(removed)?;
        let admitted = self.memberships.admit(&identity).ok_or_else(removed)?;
        Ok(LinkStream::tls(stream, Some(admitted)))
    }
}
