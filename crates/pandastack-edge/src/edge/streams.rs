//! Streams to ports of sandboxes: for protocols other than HTTP, which know themselves what to say.

use std::time::Duration;

use pandastack_agent_client::CallOptions;
use pandastack_types::SandboxId;
use pandastack_types::agent_api::endpoints::ListPorts;

use super::Edge;
use crate::connector::DialError;
use crate::destination::Target;
use crate::door::Ticket;
use crate::error::EdgeError;
use crate::guest_stream::GuestStream;
use crate::route::Location;
use crate::site::Site;
use crate::tunnel::Stirring;

/// How long the question what a sandbox listens on may take; without an answer the page says less.
const PORTS_WAIT: Duration = Duration::from_secs(2);

impl Edge {
    /// Opens a stream to a port of a sandbox, waking it if it sleeps.
    pub async fn tunnel(&self, sandbox: &SandboxId, port: u16) -> Result<Stirring<GuestStream>, EdgeError> {
        let (stream, ticket) = self.connect(sandbox, port).await?;
        Ok(Stirring::new(stream, ticket))
    }

    /// The same for protocols that know when work is under way: see [`Ticket::set_busy`].
    pub async fn connect(&self, sandbox: &SandboxId, port: u16) -> Result<(GuestStream, Ticket), EdgeError> {
        let (site, route) = self.sites.find(sandbox, self.source.as_ref()).await?;
        let ticket = site.enter(&route, &self.tasks, &self.stop).await?;
        self.dial(&site, ticket, port).await
    }

    /// A connection to a port of a sandbox that is awake; `None` if it sleeps, or is about to.
    pub async fn connect_awake(
        &self,
        sandbox: &SandboxId,
        port: u16,
    ) -> Result<Option<(GuestStream, Ticket)>, EdgeError> {
        let (site, route) = self.sites.find(sandbox, self.source.as_ref()).await?;
        match site.enter_awake(&route, &self.tasks, &self.stop).await? {
            Some(ticket) => self.dial(&site, ticket, port).await.map(Some),
            None => Ok(None),
        }
    }

    async fn dial(&self, site: &Site, ticket: Ticket, port: u16) -> Result<(GuestStream, Ticket), EdgeError> {
        match ticket.door().connector.dial(port).await {
            Ok(stream) => Ok((stream, ticket)),
            Err(error) => {
                let sandbox = SandboxId::clone(&site.id);
                let target = Target { sandbox, port, by_header: false, own_domain: false };
                Err(self.explain(error, Some(site), &target).await)
            }
        }
    }

    /// Says what a sandbox listens on instead, if that explains it.
    pub(super) async fn explain(&self, error: DialError, site: Option<&Site>, target: &Target) -> EdgeError {
        match error {
            DialError::Late => return EdgeError::Silent,
            DialError::Failed(why) => return EdgeError::Unavailable(why),
            DialError::Closed => {}
        }
        let Some(route) = site.map(Site::route) else { return EdgeError::PortClosed };
        let Location::Sandbox { agent, incarnation } = &route.to else { return EdgeError::PortClosed };
        let options = CallOptions::on_sandbox(*incarnation, PORTS_WAIT);
        let listening = match agent.call(ListPorts::new(target.sandbox.clone()), options, ()).await {
            Ok(list) => list.ports.into_iter().find(|port| port.port == target.port),
            Err(_) => None,
        };
        listening.map_or(EdgeError::PortClosed, |port| EdgeError::InsideOnly(port.address))
    }
}
