//! Connections from the edge to the ports of one guest.

use std::net::IpAddr;

use pandastack_agent_client::{AgentClient, AgentError, CallOptions};
use pandastack_types::agent_api::TunnelQuery;
use pandastack_types::agent_api::endpoints::OpenTunnel;
use pandastack_types::{ErrorCode, SandboxId};
use tokio::net::TcpStream;

use crate::guest_stream::GuestStream;
use crate::limits::DIAL_WAIT;
use crate::stall::Epoch;

/// Reason why a port was not reached.
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
    /// The guest's address is reachable from here, and its own within the epoch; for ever without one.
    Direct(IpAddr, Option<Epoch>),
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
    /// Whether the address may belong to another guest by now.
    pub(crate) fn has_expired(&self) -> bool {
        matches!(self, Connector::Direct(_, Some(epoch)) if epoch.has_ended())
    }

    /// Connects to a port of the guest.
    pub(crate) async fn dial(&self, port: u16) -> Result<GuestStream, DialError> {
        match self {
            Connector::Direct(address, _) => {
                let dialed = tokio::time::timeout(DIAL_WAIT, TcpStream::connect((*address, port))).await;
                let stream = dialed.map_err(|_| DialError::Late)?.map_err(|error| match error.kind() {
                    std::io::ErrorKind::ConnectionRefused => DialError::Closed,
                    _ => DialError::Failed(error.to_string()),
                })?;
                // After the connection: whose the address was before, it may not have been then.
                if self.has_expired() {
                    return Err(DialError::Failed("this edge stood still; try again".to_owned()));
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_granted_before_a_stall_are_not_dialed() {
        let guest = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = guest.local_addr().unwrap();
        let (epoch, stall) = crate::stall::ending_epoch();
        let connector = Connector::Direct(address.ip(), Some(epoch));
        assert!(connector.dial(address.port()).await.is_ok());
        stall();
        let refused = connector.dial(address.port()).await;
        assert!(matches!(refused, Err(DialError::Failed(why)) if why.contains("stood still")));
        let fixed = Connector::Direct(address.ip(), None);
        assert!(fixed.dial(address.port()).await.is_ok(), "a server that never moves");
    }
}
