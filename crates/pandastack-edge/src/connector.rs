//! Connections from the edge to the ports of one guest.

use std::net::IpAddr;

use pandastack_agent_client::{AgentClient, AgentError, CallOptions};
use pandastack_types::agent_api::TunnelQuery;
use pandastack_types::agent_api::endpoints::OpenTunnel;
use pandastack_types::{ErrorCode, SandboxId};
use tokio::net::TcpStream;

use crate::guest_stream::GuestStream;
use crate::limits::DIAL_WAIT;

/// Why a port was not reached.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DialError {
    /// The port is closed.
    #[error("nothing listens on the port")]
    Closed,
    /// No answer.
    #[error("the guest did not accept a connection within {} s", DIAL_WAIT.as_secs())]
    Late,
    /// Anything else.
    #[error("the guest is unreachable: {0}")]
    Failed(String),
}

/// Connects to a guest.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "one per sandbox, never moved while a request is served")]
pub(crate) enum Connector {
    /// The guest's address is reachable from here.
    Direct(IpAddr),
    /// Through its agent, which is on another machine.
    Agent {
        /// The agent.
        client: AgentClient,
        /// The sandbox.
        sandbox: SandboxId,
        /// The incarnation of the sandbox that is meant.
        incarnation: u64,
    },
}

impl Connector {
    /// Connects to a port of the guest.
    pub(crate) async fn dial(&self, port: u16) -> Result<GuestStream, DialError> {
        match self {
            Connector::Direct(address) => {
                let dialed = tokio::time::timeout(DIAL_WAIT, TcpStream::connect((*address, port))).await;
                let stream = dialed.map_err(|_| DialError::Late)?.map_err(|error| match error.kind() {
                    std::io::ErrorKind::ConnectionRefused => DialError::Closed,
                    _ => DialError::Failed(error.to_string()),
                })?;
                stream.set_nodelay(true).map_err(|error| DialError::Failed(error.to_string()))?;
                Ok(GuestStream::Tcp(stream))
            }
            Connector::Agent { client, sandbox, incarnation } => {
                let tunnel = OpenTunnel::new(sandbox.clone(), TunnelQuery { port });
                let options = CallOptions::on_sandbox(*incarnation, DIAL_WAIT);
                // Boxed: large, and rare.
                match Box::pin(client.upgrade(tunnel, options)).await {
                    Ok((_, stream)) => Ok(GuestStream::Tunnel(Box::new(stream))),
                    Err(AgentError::Answered { body, .. }) if body.code == ErrorCode::PortClosed => {
                        Err(DialError::Closed)
                    }
                    Err(AgentError::Timeout { .. }) => Err(DialError::Late),
                    Err(error) => Err(DialError::Failed(error.to_string())),
                }
            }
        }
    }
}
