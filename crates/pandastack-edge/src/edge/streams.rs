//! Raw streams to ports of sandboxes, for protocols other than HTTP.

use std::time::Duration;

use pandastack_agent_client::CallOptions;
use pandastack_types::SandboxId;
use pandastack_types::agent_api::endpoints::ListPorts;

use super::Edge;
use crate::connector::DialError;
use crate::destination::Target;
use crate::error::EdgeError;
use crate::grant::Permit;
use crate::guest_stream::GuestStream;
use crate::route::Location;
use crate::site::Site;
use crate::tunnel::GuestTunnel;

/// Time for the agent to list a sandbox's open ports; without an answer the error page omits them.
const PORTS_WAIT: Duration = Duration::from_secs(2);

impl Edge {
    /// Opens a stream to a port of a sandbox, waking it if it sleeps.
    pub async fn tunnel(
        &self,
        sandbox: &SandboxId,
        port: u16,
    ) -> Result<GuestTunnel<GuestStream>, EdgeError> {
        let (stream, permit) = self.connect(sandbox, port).await?;
        Ok(GuestTunnel::new(stream, permit))
    }

    /// The same for protocols that report work in progress: see [`Permit::set_busy`].
    pub async fn connect(&self, sandbox: &SandboxId, port: u16) -> Result<(GuestStream, Permit), EdgeError> {
        let (site, route) = self.sites.find(sandbox, self.source.as_ref()).await?;
        let permit = site.enter(&route, &self.tasks, &self.stop).await?;
        self.dial(&site, permit, port).await
    }

    /// A connection to a port of a sandbox that is awake; `None` if it sleeps, or is about to.
    pub async fn connect_awake(
        &self,
        sandbox: &SandboxId,
        port: u16,
    ) -> Result<Option<(GuestStream, Permit)>, EdgeError> {
        let (site, route) = self.sites.find(sandbox, self.source.as_ref()).await?;
        match site.enter_awake(&route, &self.tasks, &self.stop).await? {
            Some(permit) => self.dial(&site, permit, port).await.map(Some),
            None => Ok(None),
        }
    }

    async fn dial(&self, site: &Site, permit: Permit, port: u16) -> Result<(GuestStream, Permit), EdgeError> {
        match permit.grant().connector.dial(port).await {
            Ok(stream) => Ok((stream, permit)),
            Err(error) => {
                let sandbox = SandboxId::clone(&site.id);
                let target = Target { sandbox, port, by_header: false, own_domain: false };
                Err(self.explain(error, Some(site), &target).await)
            }
        }
    }

    /// Adds the address that the sandbox listens on instead, if that explains the failure.
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
