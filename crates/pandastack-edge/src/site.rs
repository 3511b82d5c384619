//! One sandbox as an edge remembers it: its route and its gate.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use pandastack_agent_client::AgentError;
use pandastack_types::{ErrorCode, SandboxId};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::door::{Door, NoTicket, Ticket};
use crate::error::EdgeError;
use crate::gate::{Gate, Refused};
use crate::limits::{AVOIDED_FOR, HELD_REQUESTS_MAX, HELD_WAIT, REQUESTS_PER_SANDBOX_MAX, SITES_MAX};
use crate::route::{Place, Route, RouteSource};
use crate::spread::Load;

/// Between two tries to reach an agent that is being restarted.
const AGENT_RETRY: std::time::Duration = std::time::Duration::from_millis(100);

/// A sandbox.
pub struct Site {
    /// Its id.
    pub id: SandboxId,
    known: Mutex<Known>,
    gate: Arc<Gate<Door, EdgeError>>,
    /// When a request last did not reach it.
    missed: Mutex<Option<Instant>>,
}

struct Known {
    route: Arc<Route>,
    /// How many changes were told when reading it began.
    read: u64,
    /// How many were told since, too: it is fresh while there is none more.
    change: u64,
}

impl Site {
    fn new(id: SandboxId, route: Route, is_fresh: bool) -> Self {
        Self {
            id,
            known: Mutex::new(Known { route: Arc::new(route), read: 0, change: u64::from(!is_fresh) }),
            gate: Arc::new(Gate::default()),
            missed: Mutex::new(None),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its route as last known.
    pub(crate) fn route(&self) -> Arc<Route> {
        Arc::clone(&self.known().route)
    }

    /// Its route if nothing changed since it was read, or else how many changes were told until now.
    fn fresh_route(&self) -> Result<Arc<Route>, u64> {
        let known = self.known();
        if known.read == known.change { Ok(Arc::clone(&known.route)) } else { Err(known.change) }
    }

    /// Takes a route of which reading began when so many changes had been told, unless a later one is known.
    fn renew(&self, route: Route, read: u64) -> Arc<Route> {
        let mut known = self.known();
        if read >= known.read {
            known.route = Arc::new(route);
            known.read = read;
        }
        Arc::clone(&known.route)
    }

    /// The route may have changed.
    fn doubt(&self) {
        self.known().change += 1;
    }

    /// Its door, if that is open.
    #[cfg(test)]
    pub(crate) fn door(&self) -> Option<Arc<Door>> {
        self.gate.opened()
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
    ) -> Result<Ticket, EdgeError> {
        if let Some(ticket) = self.gate.opened().and_then(|door| door.enter().ok()) {
            return Ok(ticket);
        }
        // Boxed: rare, and large beside what a request to an open door needs.
        Box::pin(self.wait_and_enter(route, tasks, stop)).await
    }

    /// Leave for something that nobody is woken for; `None` if the sandbox sleeps or is about to. Those who wait for it to wake are
    /// not in this one's way, nor it in theirs.
    pub(crate) async fn enter_awake(
        &self,
        route: &Route,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Option<Ticket>, EdgeError> {
        let door = match (self.gate.opened(), &route.to) {
            (Some(door), _) => door,
            (None, Place::Fixed(address)) => Door::fixed(*address),
            (None, Place::Sandbox { agent, incarnation }) => {
                let opened =
                    Door::open(agent.clone(), self.id.clone(), *incarnation, false, tasks, stop).await;
                match opened.inspect_err(|_| self.doubt()) {
                    Ok(door) => self.gate.offer(door),
                    Err(AgentError::Answered { body, .. }) if body.code == ErrorCode::Conflict => {
                        return Ok(None);
                    }
                    Err(error) => return Err(edge_error(error)),
                }
            }
        };
        match door.enter() {
            Ok(ticket) => Ok(Some(ticket)),
            Err(NoTicket::Closed) => Ok(None),
            Err(NoTicket::Full) => Err(busy()),
        }
    }

    async fn wait_and_enter(
        &self,
        route: &Route,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Ticket, EdgeError> {
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
                Err(NoTicket::Full) => return Err(busy()),
                // It closed in between: the next one is opened.
                Err(NoTicket::Closed) if tokio::time::Instant::now() < deadline => {}
                Err(NoTicket::Closed) => return Err(self.refusal(Refused::Late)),
            }
        }
    }

    fn refusal(&self, refused: Refused<EdgeError>) -> EdgeError {
        match refused {
            Refused::Full => EdgeError::Busy(format!(
                "{HELD_REQUESTS_MAX} requests are waiting for the sandbox to wake; try again shortly"
            )),
            Refused::Late => EdgeError::Busy(format!(
                "the sandbox did not wake within {} s; try again shortly",
                HELD_WAIT.as_secs()
            )),
            Refused::Failed(error) => {
                // Whatever is wrong, the next request looks at the record again.
                self.doubt();
                error
            }
        }
    }
}

fn busy() -> EdgeError {
    EdgeError::Busy(format!(
        "{REQUESTS_PER_SANDBOX_MAX} requests to this sandbox are in flight; try again shortly"
    ))
}

/// Opens the way to a sandbox. An agent that is just being restarted is waited for.
fn open(
    id: &SandboxId,
    route: &Route,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> impl Future<Output = Result<Arc<Door>, EdgeError>> + Send + 'static {
    let (id, to, tasks, stop) = (id.clone(), route.to.clone(), tasks.clone(), stop.clone());
    async move {
        let (agent, incarnation) = match to {
            Place::Fixed(address) => return Ok(Door::fixed(address)),
            Place::Sandbox { agent, incarnation } => (agent, incarnation),
        };
        let deadline = tokio::time::Instant::now() + HELD_WAIT;
        loop {
            match Door::open(agent.clone(), id.clone(), incarnation, true, &tasks, &stop).await {
                Ok(door) => return Ok(door),
                Err(error) if is_restart(&error) && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(AGENT_RETRY).await;
                }
                Err(error) => return Err(edge_error(error)),
            }
        }
    }
}

/// The agent is not there, or went away before it answered. Asking for a door twice does no harm.
fn is_restart(error: &AgentError) -> bool {
    match error {
        AgentError::Unreachable { .. } | AgentError::ConnectionLost { .. } => true,
        AgentError::Answered { body, .. } => body.code == ErrorCode::Unavailable,
        _ => false,
    }
}

fn edge_error(error: AgentError) -> EdgeError {
    let text = error.to_string();
    match error {
        AgentError::Answered { body, .. } => match body.code {
            ErrorCode::NotFound => EdgeError::Unknown,
            ErrorCode::Conflict => EdgeError::NotServing(text),
            ErrorCode::NoCapacity | ErrorCode::DiskFull => EdgeError::Busy(text),
            _ => EdgeError::Unavailable(text),
        },
        _ => EdgeError::Unavailable(text),
    }
}

/// Every sandbox that was asked for lately.
#[derive(Default)]
pub(crate) struct Sites {
    by_id: RwLock<HashMap<SandboxId, Arc<Site>>>,
    /// Counts changes of all, for those that are not known yet: what was read before one is not remembered as fresh after it.
    change: AtomicU64,
}

impl Sites {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<SandboxId, Arc<Site>>> {
        self.by_id.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<SandboxId, Arc<Site>>> {
        self.by_id.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &SandboxId) -> Option<Arc<Site>> {
        self.read().get(id).cloned()
    }

    /// The sandbox and its route, from memory if nothing changed.
    pub(crate) async fn find(
        &self,
        id: &SandboxId,
        source: &dyn RouteSource,
    ) -> Result<(Arc<Site>, Arc<Route>), EdgeError> {
        let Some(site) = self.get(id) else { return self.find_new(id, source).await };
        let change = match site.fresh_route() {
            Ok(route) => return Ok((site, route)),
            Err(change) => change,
        };
        match source.find(id).await {
            Ok(Some(route)) => {
                let route = site.renew(route, change);
                Ok((site, route))
            }
            Ok(None) => {
                self.write().remove(id);
                Err(EdgeError::Unknown)
            }
            Err(error) => {
                tracing::debug!(%error, "a route is used as last known");
                let route = site.route();
                Ok((site, route))
            }
        }
    }

    async fn find_new(
        &self,
        id: &SandboxId,
        source: &dyn RouteSource,
    ) -> Result<(Arc<Site>, Arc<Route>), EdgeError> {
        let change = self.change.load(Ordering::SeqCst);
        match source.find(id).await {
            Ok(Some(route)) => {
                let site = self.insert(id, route, change);
                let route = site.route();
                Ok((site, route))
            }
            Ok(None) => Err(EdgeError::Unknown),
            Err(error) => Err(EdgeError::Unavailable(error.to_string())),
        }
    }

    /// How much is under way to a sandbox from here.
    pub(crate) fn load(&self, id: &SandboxId) -> Load {
        self.get(id).map_or_else(Load::default, |site| site.load())
    }

    fn insert(&self, id: &SandboxId, route: Route, change: u64) -> Arc<Site> {
        let mut sites = self.write();
        if sites.len() >= SITES_MAX {
            sites.retain(|_, site| site.gate.is_in_use());
        }
        // Asked with the map locked: who tells of a change after this finds the sandbox in it.
        let is_fresh = self.change.load(Ordering::SeqCst) == change;
        let made = || Arc::new(Site::new(id.clone(), route, is_fresh));
        Arc::clone(sites.entry(id.clone()).or_insert_with(made))
    }

    /// The route of one sandbox, or of all, is read again before its next use.
    pub(crate) fn doubt(&self, id: Option<&SandboxId>) {
        self.change.fetch_add(1, Ordering::SeqCst);
        match id {
            Some(id) => self.get(id).iter().for_each(|site| site.doubt()),
            None => self.read().values().for_each(|site| site.doubt()),
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use pandastack_types::preview::Visibility;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::route::RouteUnavailable;

    /// Answers what held when it was asked, once it may.
    struct Source {
        holds: Mutex<Visibility>,
        asked: Semaphore,
        may_answer: Semaphore,
    }

    impl Source {
        fn new(holds: Visibility) -> Self {
            Self { holds: Mutex::new(holds), asked: Semaphore::new(0), may_answer: Semaphore::new(0) }
        }
    }

    #[async_trait]
    impl RouteSource for Source {
        async fn find(&self, _: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
            let visibility = *self.holds.lock().unwrap();
            self.asked.add_permits(1);
            self.may_answer.acquire().await.unwrap().forget();
            Ok(Some(Route { to: Place::Fixed([127, 0, 0, 1].into()), visibility, key: None }))
        }
    }

    /// Asks, and while the answer is under way everything changes.
    async fn find_during_change(sites: &Sites, source: &Source, id: &SandboxId) -> Visibility {
        let change = async {
            source.asked.acquire().await.unwrap().forget();
            *source.holds.lock().unwrap() = Visibility::Off;
            sites.doubt(Some(id));
            source.may_answer.add_permits(1);
        };
        let (found, ()) = tokio::join!(sites.find(id, source), change);
        found.unwrap_or_else(|_| panic!("not found")).1.visibility
    }

    async fn find(sites: &Sites, source: &Source, id: &SandboxId) -> Visibility {
        source.may_answer.add_permits(1);
        let found = sites.find(id, source).await.unwrap_or_else(|_| panic!("not found"));
        source.may_answer.forget_permits(1);
        found.1.visibility
    }

    #[tokio::test]
    async fn a_route_that_was_read_before_a_change_is_read_again() {
        let (sites, id) = (Sites::default(), SandboxId::random());
        for visibility in [Visibility::Unlisted, Visibility::Private] {
            // The first time it is not known yet, then it is known and doubted.
            let source = Source::new(visibility);
            sites.doubt(Some(&id));
            assert_eq!(find_during_change(&sites, &source, &id).await, visibility);
            assert_eq!(find(&sites, &source, &id).await, Visibility::Off);
            *source.holds.lock().unwrap() = Visibility::Unlisted;
            assert_eq!(find(&sites, &source, &id).await, Visibility::Off, "nothing changed: it is not read");
        }
    }

    #[test]
    fn a_late_answer_does_not_replace_a_later_one() {
        let route = |visibility| Route { to: Place::Fixed([127, 0, 0, 1].into()), visibility, key: None };
        let site = Site::new(SandboxId::random(), route(Visibility::Unlisted), true);
        site.doubt();
        site.doubt();
        assert_eq!(site.renew(route(Visibility::Off), 2).visibility, Visibility::Off);
        assert_eq!(site.renew(route(Visibility::Private), 1).visibility, Visibility::Off);
        assert!(site.fresh_route().is_ok());
    }
}
