//! One sandbox as an edge remembers it: its route and its gate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use pandastack_agent_client::AgentError;
use pandastack_types::{ErrorCode, SandboxId};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::door::{Door, NoTicket, Ticket};
use crate::gate::{Gate, Refused};
use crate::limits::{AVOIDED_FOR, HELD_REQUESTS_MAX, HELD_WAIT, REQUESTS_PER_SANDBOX_MAX, SITES_MAX};
use crate::route::{Place, Route, RouteSource};
use crate::spread::Load;
use crate::trouble::Trouble;

/// Between two tries to reach an agent that is being restarted.
const AGENT_RETRY: std::time::Duration = std::time::Duration::from_millis(100);

/// A sandbox.
pub struct Site {
    /// Its id.
    pub id: SandboxId,
    known: Mutex<Known>,
    gate: Arc<Gate<Door, Trouble>>,
    /// When a request last did not reach it.
    missed: Mutex<Option<Instant>>,
}

struct Known {
    route: Arc<Route>,
    /// Nothing changed since it was read.
    fresh: bool,
}

impl Site {
    fn new(id: SandboxId, route: Route) -> Self {
        Self {
            id,
            known: Mutex::new(Known { route: Arc::new(route), fresh: true }),
            gate: Arc::new(Gate::default()),
            missed: Mutex::new(None),
        }
    }

    /// Its route as last known, and whether nothing changed since.
    pub(crate) fn route(&self) -> (Arc<Route>, bool) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        (Arc::clone(&known.route), known.fresh)
    }

    fn renew(&self, route: Route) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Known { route: Arc::new(route), fresh: true };
    }

    /// The route may have changed.
    fn doubt(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).fresh = false;
    }

    /// A request did not reach it.
    pub(crate) fn note_missed(&self) {
        *self.missed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn load(&self) -> Load {
        let missed = *self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        let under_way = self.gate.opened().map_or(0, |door| door.count_under_way());
        Load {
            under_way: under_way + self.gate.count_waiting(),
            is_avoided: missed.is_some_and(|missed| missed.elapsed() < AVOIDED_FOR),
        }
    }

    /// Leave for one request. Waits while the sandbox wakes, sleeps or moves.
    pub async fn enter(
        &self,
        route: &Route,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Ticket, Trouble> {
        if let Some(ticket) = self.gate.opened().and_then(|door| door.enter().ok()) {
            return Ok(ticket);
        }
        // Boxed: rare, and large beside what a request to an open door needs.
        Box::pin(self.wait_and_enter(route, tasks, stop)).await
    }

    async fn wait_and_enter(
        &self,
        route: &Route,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Ticket, Trouble> {
        let deadline = tokio::time::Instant::now() + HELD_WAIT;
        loop {
            let door = match self.gate.opened() {
                Some(door) => door,
                None => {
                    let passed = self.gate.pass(tasks, || open(&self.id, route, tasks, stop)).await;
                    passed.map_err(|refused| self.refusal(refused))?
                }
            };
            match door.enter() {
                Ok(ticket) => return Ok(ticket),
                Err(NoTicket::Full) => {
                    return Err(Trouble::Busy(format!(
                        "{REQUESTS_PER_SANDBOX_MAX} requests are under way to this sandbox; try again shortly"
                    )));
                }
                // It closed in between: the next one is opened.
                Err(NoTicket::Closed) if tokio::time::Instant::now() < deadline => {}
                Err(NoTicket::Closed) => return Err(self.refusal(Refused::Late)),
            }
        }
    }

    fn refusal(&self, refused: Refused<Trouble>) -> Trouble {
        match refused {
            Refused::Full => Trouble::Busy(format!(
                "{HELD_REQUESTS_MAX} requests already wait for this sandbox to wake; try again shortly"
            )),
            Refused::Late => Trouble::Busy(format!(
                "the sandbox did not wake within {} s; try again shortly",
                HELD_WAIT.as_secs()
            )),
            Refused::Failed(trouble) => {
                // Whatever is wrong, the next request looks at the record again.
                self.doubt();
                trouble
            }
        }
    }
}

/// Opens the way to a sandbox. An agent that is just being restarted is waited for.
fn open(
    id: &SandboxId,
    route: &Route,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> impl Future<Output = Result<Arc<Door>, Trouble>> + Send + 'static {
    let (id, to, tasks, stop) = (id.clone(), route.to.clone(), tasks.clone(), stop.clone());
    async move {
        let (agent, incarnation) = match to {
            Place::Fixed(address) => return Ok(Door::fixed(address)),
            Place::Sandbox { agent, incarnation } => (agent, incarnation),
        };
        let deadline = tokio::time::Instant::now() + HELD_WAIT;
        loop {
            match Door::open(agent.clone(), id.clone(), incarnation, &tasks, &stop).await {
                Ok(door) => return Ok(door),
                Err(error) if is_restart(&error) && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(AGENT_RETRY).await;
                }
                Err(error) => return Err(trouble_of(error)),
            }
        }
    }
}

/// The agent is not there, or went away before it answered. Asking for a door twice does no harm.
fn is_restart(error: &AgentError) -> bool {
    match error {
        AgentError::Unreachable { .. } | AgentError::Broken { .. } => true,
        AgentError::Answered { body, .. } => body.code == ErrorCode::Unavailable,
        _ => false,
    }
}

fn trouble_of(error: AgentError) -> Trouble {
    let text = error.to_string();
    match error {
        AgentError::Answered { body, .. } => match body.code {
            ErrorCode::NotFound => Trouble::Unknown,
            ErrorCode::Conflict => Trouble::NotServing(text),
            ErrorCode::NoCapacity | ErrorCode::DiskFull => Trouble::Busy(text),
            _ => Trouble::Unavailable(text),
        },
        _ => Trouble::Unavailable(text),
    }
}

/// Every sandbox that was asked for lately.
#[derive(Default)]
pub(crate) struct Sites(RwLock<HashMap<SandboxId, Arc<Site>>>);

impl Sites {
    fn get(&self, id: &SandboxId) -> Option<Arc<Site>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// The sandbox and its route, from memory if nothing changed.
    pub(crate) async fn find(
        &self,
        id: &SandboxId,
        source: &dyn RouteSource,
    ) -> Result<(Arc<Site>, Arc<Route>), Trouble> {
        let site = self.get(id);
        if let Some(site) = &site
            && let (route, true) = site.route()
        {
            return Ok((Arc::clone(site), route));
        }
        match (source.find(id).await, site) {
            (Ok(Some(route)), Some(site)) => {
                site.renew(route);
                let (route, _) = site.route();
                Ok((site, route))
            }
            (Ok(Some(route)), None) => {
                let site = self.insert(id, route);
                let (route, _) = site.route();
                Ok((site, route))
            }
            (Ok(None), _) => {
                self.remove(id);
                Err(Trouble::Unknown)
            }
            (Err(error), Some(site)) => {
                tracing::debug!(%error, "a route is used as last known");
                let (route, _) = site.route();
                Ok((site, route))
            }
            (Err(error), None) => Err(Trouble::Unavailable(error.to_string())),
        }
    }

    /// How much is under way to a sandbox from here.
    pub(crate) fn load(&self, id: &SandboxId) -> Load {
        self.get(id).map_or_else(Load::default, |site| site.load())
    }

    fn insert(&self, id: &SandboxId, route: Route) -> Arc<Site> {
        let mut sites = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if sites.len() >= SITES_MAX {
            sites.retain(|_, site| site.gate.is_in_use());
        }
        let fresh = || Arc::new(Site::new(id.clone(), route));
        Arc::clone(sites.entry(id.clone()).or_insert_with(fresh))
    }

    fn remove(&self, id: &SandboxId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// The route of one sandbox, or of all, is read again before its next use.
    pub(crate) fn doubt(&self, id: Option<&SandboxId>) {
        match id {
            Some(id) => self.get(id).iter().for_each(|site| site.doubt()),
            None => {
                let sites = self.0.read().unwrap_or_else(PoisonError::into_inner);
                sites.values().for_each(|site| site.doubt());
            }
        }
    }
}
