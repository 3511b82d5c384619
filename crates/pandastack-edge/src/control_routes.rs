//! Routes for a separate edge process: requested from control, which notifies it of changes.
//!
//! ```text
//!   GET /internal/v1/routes/{sandbox}   an EdgeRoute, 404 if the sandbox has no route
//!   GET /internal/v1/names/{name}       an EdgeName, 404 if no app has the name
//!   GET /internal/v1/routes             a line per change: the sandbox's id, or NAMES_CHANGED; an empty line now and then
//! ```
//!
//! While no control server responds, the last known routes are used. When one responds again, all are read
//! again, since changes may have been missed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use pandastack_agent_client::{AgentClient, AgentLink};
use pandastack_fleet::{Dialer, Memberships};
use pandastack_types::agent_api::{EdgeName, EdgeRoute, NAMES_CHANGED, internal};
use pandastack_types::host_identity::{HostIdentity, HostRole};
use pandastack_types::preview::PreviewKey;
use pandastack_types::{HostId, SandboxId};
use tokio_util::sync::CancellationToken;

use crate::app_route::{AppRoute, Instances};
use crate::control_servers::{ANSWER_WAIT, ControlServers, ControlStream, EdgeCredentials};
use crate::edge::Edge;
use crate::route::{Location, Route, RouteSource, RouteUnavailable};

/// Between two tries to follow changes, once every server was tried.
const RETRY_WAIT: Duration = Duration::from_secs(1);
/// A stream of changes that is silent for this long is dead.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Longest line of that stream.
const LINE_BYTES_MAX: usize = 256;
/// Routes from control servers.
pub struct ControlRoutes {
    control: ControlServers,
    link: AgentLink,
    /// Hosts of routes, as control named them.
    hosts: Arc<Memberships>,
    agents: Mutex<HashMap<String, AgentClient>>,
}

impl ControlRoutes {
    /// Routes from the control server at `unix:/path` or `https://address:port`, or from several
    /// separated by commas, requested in the name of this edge.
    pub fn new(control: &str, name: HostId, credentials: EdgeCredentials) -> reqwest::Result<Arc<Self>> {
        let hosts: Arc<Memberships> = Arc::default();
        let link = match &credentials {
            EdgeCredentials::Secret(secret) => AgentLink::from(secret.clone()),
            EdgeCredentials::Certificate(tls) => {
                AgentLink::new(None, Some(Dialer::new(tls.clone(), Arc::clone(&hosts))))
            }
        };
        let control = ControlServers::new(control, name, credentials)?;
        Ok(Arc::new(Self { control, link, hosts, agents: Mutex::new(HashMap::new()) }))
    }

    fn agent(&self, route: &EdgeRoute) -> Result<AgentClient, RouteUnavailable> {
        if route.membership > 0 {
            let (host, membership) = (route.host.clone(), route.membership);
            self.hosts.set(&HostIdentity { role: HostRole::Agent, host, membership });
        }
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = agents.get(&route.agent_address) {
            return Ok(agent.clone());
        }
        let agent = AgentClient::new(route.host.clone(), &route.agent_address, self.link.clone());
        let agent = agent.map_err(|error| RouteUnavailable(error.to_string()))?;
        agents.insert(route.agent_address.clone(), agent.clone());
        Ok(agent)
    }

    /// Notifies the edge of changed routes until `stop` is cancelled.
    pub async fn follow(&self, edge: &Edge, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let turn = self.control.current();
            tokio::select! {
                ended = self.follow_once(edge) => if let Err(error) = ended {
                    tracing::warn!(%error, "no control server is responding; using the last known routes");
                },
                () = stop.cancelled() => return,
            }
            if self.control.fail_over(turn) {
                tokio::select! {
                    () = tokio::time::sleep(RETRY_WAIT) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
    }

    async fn follow_once(&self, edge: &Edge) -> Result<(), RouteUnavailable> {
        let ControlStream { answer, mut moved } = self.control.open(internal::ROUTE_CHANGES).await?;
        let mut chunks = answer.bytes_stream();
        edge.forget_route(None);
        edge.forget_names();
        let mut line = Vec::new();
        loop {
            let chunk = tokio::select! {
                chunk = tokio::time::timeout(SILENCE_MAX, chunks.next()) => chunk,
                // The server does not respond to requests, so its change stream may be late, too.
                Ok(()) = moved.changed() => return Ok(()),
            };
            let Ok(Some(chunk)) = chunk else {
                return Err(RouteUnavailable(
                    "the control server closed the stream of route changes".to_owned(),
                ));
            };
            for byte in chunk.map_err(|error| RouteUnavailable(error.to_string()))? {
                if byte != b'\n' {
                    line.push(byte);
                    if line.len() > LINE_BYTES_MAX {
                        return Err(RouteUnavailable(
                            "the control server sent a malformed route change".to_owned(),
                        ));
                    }
                    continue;
                }
                take_line(edge, &line);
                line.clear();
            }
        }
    }
}

fn take_line(edge: &Edge, line: &[u8]) {
    if line == NAMES_CHANGED.as_bytes() {
        return edge.forget_names();
    }
    match std::str::from_utf8(line).ok().and_then(|id| id.parse().ok()) {
        Some(id) => edge.forget_route(Some(&id)),
        // An empty line is a sign of life; anything else may mean anything.
        None if line.is_empty() => {}
        None => edge.forget_route(None),
    }
}

#[async_trait]
impl RouteSource for ControlRoutes {
    async fn find(&self, sandbox: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
        let path = internal::edge_route(sandbox);
        let Some(route) = self.control.get::<EdgeRoute>(&path, ANSWER_WAIT).await? else { return Ok(None) };
        let derived = |secret| PreviewKey::new(secret, sandbox, route.preview_revision);
        let key = route.preview_key.clone().or_else(|| self.control.secret().map(derived));
        let to = match &route.closed {
            Some(why) => Location::Closed(why.clone()),
            None => Location::Sandbox { agent: self.agent(&route)?, incarnation: route.incarnation },
        };
        Ok(Some(Route { to, visibility: route.visibility, host_header: route.host_header, key }))
    }

    async fn find_name(&self, name: &str) -> Result<Option<AppRoute>, RouteUnavailable> {
        // Only characters of host names: any other name belongs to no app, and must not form
        // another path.
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) {
            return Ok(None);
        }
        let path = internal::edge_name(name);
        let found = self.control.get::<EdgeName>(&path, ANSWER_WAIT).await?;
        Ok(found.map(|name| match name {
            EdgeName::Serving { sandbox, port, more, always, own_domain } => {
                let sandboxes = std::iter::once(sandbox).chain(more).collect();
                AppRoute::Serving(Instances { sandboxes, always, port, own_domain })
            }
            EdgeName::NotServing { why, suspended: false } => AppRoute::NotServing(why),
            EdgeName::NotServing { why, suspended: true } => AppRoute::Suspended(why),
        }))
    }
}
