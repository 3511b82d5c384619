//! Routes for an edge that is a process of its own: asked from control, told by it when they change.
//!
//! ```text
//!   GET /internal/v1/routes/{sandbox}   an EdgeRoute, 404 when there is none
//!   GET /internal/v1/names/{name}       an EdgeName, 404 when it is nobody's
//!   GET /internal/v1/routes             a line per change: the sandbox's id, or NAMES_CHANGED; an empty line now and then
//! ```
//!
//! Both are signed like an agent's reports. While control does not answer, what was known before is used; when it
//! answers again everything is read anew, since changes may have been missed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use pandastack_agent_client::AgentClient;
use pandastack_types::agent_api::{EdgeName, EdgeRoute, NAMES_CHANGED};
use pandastack_types::link::{Direction, LINK_HEADER, LinkKey};
use pandastack_types::preview::PreviewKey;
use pandastack_types::{HostId, SandboxId};
use tokio_util::sync::CancellationToken;

use crate::edge::Edge;
use crate::names::Named;
use crate::route::{Place, Route, RouteSource, RouteUnavailable};

/// How long control may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Between two tries to follow changes.
const RETRY_WAIT: Duration = Duration::from_secs(1);
/// A stream of changes that is silent for this long is dead.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Longest line of that stream.
const LINE_BYTES_MAX: usize = 256;

/// Routes from a control server.
pub struct ControlRoutes {
    http: reqwest::Client,
    base: String,
    name: HostId,
    link: LinkKey,
    agents: Mutex<HashMap<String, AgentClient>>,
}

impl ControlRoutes {
    /// Routes from the control server at `unix:/path` or `http://address:port`, asked for in the name of this edge.
    pub fn new(control: &str, name: HostId, link: LinkKey) -> reqwest::Result<Arc<Self>> {
        let builder = reqwest::Client::builder().connect_timeout(ANSWER_WAIT).no_proxy();
        let (builder, base) = match control.strip_prefix("unix:") {
            Some(path) => (builder.unix_socket(path), "http://control".to_owned()),
            None => (builder, control.trim_end_matches('/').to_owned()),
        };
        let agents = Mutex::new(HashMap::new());
        Ok(Arc::new(Self { http: builder.build()?, base, name, link, agents }))
    }

    fn get(&self, path: &str) -> reqwest::RequestBuilder {
        let now = jiff::Timestamp::now().as_second();
        let signature = self.link.sign(Direction::AgentToControl, &self.name, "GET", path, now);
        self.http.get(format!("{}{path}", self.base)).header(LINK_HEADER, signature)
    }

    fn agent(&self, route: &EdgeRoute) -> Result<AgentClient, RouteUnavailable> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = agents.get(&route.agent_address) {
            return Ok(agent.clone());
        }
        let agent = AgentClient::new(route.host.clone(), &route.agent_address, self.link.clone());
        let agent = agent.map_err(|error| RouteUnavailable(error.to_string()))?;
        agents.insert(route.agent_address.clone(), agent.clone());
        Ok(agent)
    }

    /// Tells the edge which routes changed, until told to stop.
    pub async fn follow(&self, edge: &Edge, stop: CancellationToken) {
        while !stop.is_cancelled() {
            tokio::select! {
                ended = self.follow_once(edge) => {
                    if let Err(error) = ended {
                        tracing::warn!(%error, "control does not answer; routes are used as last known");
                    }
                }
                () = stop.cancelled() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY_WAIT) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn follow_once(&self, edge: &Edge) -> Result<(), RouteUnavailable> {
        let failed = |error: reqwest::Error| RouteUnavailable(error.to_string());
        let answer = self.get("/internal/v1/routes").send().await.map_err(failed)?;
        let mut chunks = answer.error_for_status().map_err(failed)?.bytes_stream();
        edge.forget_route(None);
        edge.forget_names();
        let mut line = Vec::new();
        while let Ok(Some(chunk)) = tokio::time::timeout(SILENCE_MAX, chunks.next()).await {
            for byte in chunk.map_err(failed)? {
                if byte != b'\n' {
                    line.push(byte);
                    if line.len() > LINE_BYTES_MAX {
                        return Err(RouteUnavailable("control sent nonsense".to_owned()));
                    }
                    continue;
                }
                if line == NAMES_CHANGED.as_bytes() {
                    edge.forget_names();
                    line.clear();
                    continue;
                }
                match std::str::from_utf8(&line).ok().and_then(|id| id.parse().ok()) {
                    Some(id) => edge.forget_route(Some(&id)),
                    // An empty line is a sign of life; anything else may mean anything.
                    None if line.is_empty() => {}
                    None => edge.forget_route(None),
                }
                line.clear();
            }
        }
        Err(RouteUnavailable("control closed the stream of changes".to_owned()))
    }
}

#[async_trait]
impl RouteSource for ControlRoutes {
    async fn find(&self, sandbox: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
        let unavailable = |error: reqwest::Error| RouteUnavailable(error.to_string());
        let request = self.get(&format!("/internal/v1/routes/{sandbox}")).timeout(ANSWER_WAIT);
        let answer = request.send().await.map_err(unavailable)?;
        if answer.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let route: EdgeRoute =
            answer.error_for_status().map_err(unavailable)?.json().await.map_err(unavailable)?;
        let key = PreviewKey::new(&self.link, sandbox, route.preview_revision);
        let to = Place::Sandbox { agent: self.agent(&route)?, incarnation: route.incarnation };
        Ok(Some(Route { to, visibility: route.visibility, key: Some(key) }))
    }

    async fn find_name(&self, name: &str) -> Result<Option<Named>, RouteUnavailable> {
        let unavailable = |error: reqwest::Error| RouteUnavailable(error.to_string());
        // Only what can be in a host name: anything else is nobody's, and must not become another path.
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) {
            return Ok(None);
        }
        let request = self.get(&format!("/internal/v1/names/{name}")).timeout(ANSWER_WAIT);
        let answer = request.send().await.map_err(unavailable)?;
        if answer.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let name: EdgeName =
            answer.error_for_status().map_err(unavailable)?.json().await.map_err(unavailable)?;
        Ok(Some(match name {
            EdgeName::Serving { sandbox, port } => Named::Serving { sandbox, port },
            EdgeName::NotServing { why } => Named::NotServing(why),
        }))
    }
}
