//! The host's sockets for guests, in its own namespace.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use crate::config::Plan;
use crate::error::{NetError, Result};
use crate::listening_ports::ListeningPorts;

/// Longest time for a predecessor's sockets to close; nothing notifies of that.
const PREFERRED_PATIENCE: Duration = Duration::from_secs(1);
const PREFERRED_PAUSE: Duration = Duration::from_millis(10);

/// Listening sockets, bound in the host's namespace.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(super) udp: UdpSocket,
    pub(super) tcp: TcpListener,
    pub(super) databases: TcpListener,
}

impl Sockets {
    /// Binds in the calling thread's namespace, if possible to the ports of this agent's
    /// predecessor, because the kernel remembers a flow's destination for half a minute. The name
    /// claim is already held, so no predecessor runs.
    pub(crate) fn bind(plan: &Plan) -> Result<Self> {
        let deadline = Instant::now() + PREFERRED_PATIENCE;
        let bound = loop {
            match Self::bind_at(plan.resolver_port(), plan.database_port()) {
                Ok(bound) => break bound,
                #[expect(clippy::disallowed_methods, reason = "nothing tells when a port is free")]
                Err(_) if Instant::now() < deadline => std::thread::sleep(PREFERRED_PAUSE),
                Err(_) => break Self::bind_at(0, 0).map_err(fail("listening for guests"))?,
            }
        };
        let Sockets { udp, tcp, databases } = &bound;
        let set = udp.set_nonblocking(true).and(tcp.set_nonblocking(true));
        set.and(databases.set_nonblocking(true)).map_err(fail("listening for guests"))?;
        Ok(bound)
    }

    fn bind_at(resolver: u16, databases: u16) -> std::io::Result<Self> {
        let any = |port: u16| (Ipv4Addr::UNSPECIFIED, port);
        Ok(Sockets {
            udp: UdpSocket::bind(any(resolver))?,
            tcp: TcpListener::bind(any(resolver))?,
            databases: TcpListener::bind(any(databases))?,
        })
    }

    pub(crate) fn ports(&self) -> Result<ListeningPorts> {
        let fail = || fail("looking at a listening socket");
        let udp = self.udp.local_addr().map_err(fail())?.port();
        let tcp = self.tcp.local_addr().map_err(fail())?.port();
        Ok(ListeningPorts { udp, tcp, databases: self.databases.local_addr().map_err(fail())?.port() })
    }
}

pub(super) fn fail(doing: &'static str) -> impl FnOnce(std::io::Error) -> NetError {
    NetError::io(doing, "0.0.0.0:0")
}
