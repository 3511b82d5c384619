//! The edge's state of one sandbox: its route and its gate.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pandastack_agent_client::AgentError;
use pandastack_types::{ErrorCode, SandboxId};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::EdgeError;
use crate::gate::{Gate, GateError};
use crate::grant::{Permit, PermitError, TrafficGrant};
use crate::limits::{AVOIDED_FOR, HELD_REQUESTS_MAX, HELD_WAIT, REQUESTS_PER_SANDBOX_MAX};
use crate::route::{Location, Route};
use crate::spread::Load;

/// Between two tries to reach an agent that is being restarted.
const AGENT_RETRY: std::time::Duration = std::time::Duration::from_millis(100);

/// A sandbox.
pub struct Site {
    /// The sandbox's id.
    pub id: Arc<SandboxId>,
    route: Mutex<CachedRoute>,
    gate: Arc<Gate<TrafficGrant, EdgeError>>,
    /// Time at which a request last failed to reach the sandbox.
    missed: Mutex<Option<Instant>>,
}

/// A route and its age, counted in changes.
struct CachedRoute {
    route: Arc<Route>,
    /// The number of changes that were reported before the route was read.
    read: u64,
    /// The number of changes reported until now. The route is fresh while this equals `read`.
    change: u64,
}

impl Site {
    pub(crate) fn new(id: SandboxId, route: Route, is_fresh: bool) -> Self {
        Self {
            id: Arc::new(id),
            route: Mutex::new(CachedRoute { route: Arc::new(route), read: 0, change: u64::from(!is_fresh) }),
            gate: Arc::new(Gate::default()),
            missed: Mutex::new(None),
        }
    }

    fn cached(&self) -> MutexGuard<'_, CachedRoute> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached route.
    pub(crate) fn route(&self) -> Arc<Route> {
        Arc::clone(&self.cached().route)
    }

    /// The cached route if it is current, else the number of changes reported until now.
    pub(crate) fn fresh_route(&self) -> Result<Arc<Route>, u64> {
        let cached = self.cached();
        if cached.read == cached.change { Ok(Arc::clone(&cached.route)) } else { Err(cached.change) }
    }

    /// Caches a route whose read began at change count `read`, unless a later one is cached.
    pub(crate) fn renew(&self, route: Route, read: u64) -> Arc<Route> {
        let mut cached = self.cached();
        if read >= cached.read {
            cached.route = Arc::new(route);
            cached.read = read;
        }
        Arc::clone(&cached.route)
    }

    /// Records that the route may have changed: it is read again before its next use.
    pub(crate) fn invalidate(&self) {
        self.cached().change += 1;
    }

    /// The open grant, if there is one.
    #[cfg(test)]
    pub(crate) fn grant(&self) -> Option<Arc<TrafficGrant>> {
        self.gate.opened()
    }

    /// Returns whether the gate is open, or requests wait at it.
    pub(crate) fn is_in_use(&self) -> bool {
        self.gate.is_in_use()
    }

    /// A request did not reach it.
    pub(crate) fn note_missed(&self) {
        *self.missed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub(crate) fn load(&self) -> Load {
        let missed = *self.missed.lock().unwrap_or_else(PoisonError::into_inner);
        let in_flight = self.gate.opened().map_or(0, |grant| grant.count_in_flight());
        Load {
            in_flight: in_flight + self.gate.count_waiting(),
            is_avoided: missed.is_some_and(|missed| missed.elapsed() < AVOIDED_FOR),
        }
    }

    /// A permit for one request. Waits while the sandbox wakes, sleeps or moves.
    pub async fn enter(
        &self,
        route: &Route,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Permit, EdgeError> {
        if let Some(permit) = self.gate.opened().and_then(|grant| grant.enter().ok()) {
            return Ok(permit);
        }
        // Boxed: rare, and large compared with the future of a request with an open grant.
        Box::pin(self.wait_and_enter(route, tasks, stop)).await
    }

    /// A permit that does not wake the sandbox; `None` if the sandbox sleeps or is about to. It neither waits
    /// for nor delays requests that wait for the sandbox to wake.
    pub(crate) async fn enter_awake(
        &self,
        route: &Route,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Option<Permit>, EdgeError> {
        let grant = match (self.gate.opened(), &route.to) {
            (Some(grant), _) => grant,
            (None, Location::Fixed(address)) => TrafficGrant::fixed(*address),
            (None, Location::Closed(why)) => return Err(EdgeError::Suspended(why.clone())),
            (None, Location::Sandbox { agent, incarnation }) => {
                let opened = TrafficGrant::open(
                    agent.clone(),
                    SandboxId::clone(&self.id),
                    *incarnation,
                    false,
                    tasks,
                    stop,
                )
                .await;
                match opened.inspect_err(|_| self.invalidate()) {
                    Ok(grant) => self.gate.offer(grant),
                    Err(AgentError::Answered { body, .. }) if body.code == ErrorCode::Conflict => {
                        return Ok(None);
                    }
                    Err(error) => return Err(edge_error(error)),
                }
            }
        };
        match grant.enter() {
            Ok(permit) => Ok(Some(permit)),
            Err(PermitError::Closed) => Ok(None),
            Err(PermitError::Full) => Err(busy()),
        }
    }

    async fn wait_and_enter(
        &self,
        route: &Route,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Permit, EdgeError> {
        let deadline = tokio::time::Instant::now() + HELD_WAIT;
        loop {
            let grant = match self.gate.opened() {
                Some(grant) => grant,
                None => {
                    let passed = self.gate.pass(tasks, || open(&self.id, route, tasks, stop)).await;
                    passed.map_err(|refused| self.refusal(refused))?
                }
            };
            match grant.enter() {
                Ok(permit) => return Ok(permit),
                Err(PermitError::Full) => return Err(busy()),
                // The grant closed in between: open the next one.
                Err(PermitError::Closed) if tokio::time::Instant::now() < deadline => {}
                Err(PermitError::Closed) => return Err(self.refusal(GateError::Late)),
            }
        }
    }

    fn refusal(&self, refused: GateError<EdgeError>) -> EdgeError {
        match refused {
            GateError::Full => EdgeError::Busy(format!(
                "{HELD_REQUESTS_MAX} requests are waiting for the sandbox to wake; try again shortly"
            )),
            GateError::Late => EdgeError::Busy(format!(
                "the sandbox did not wake within {} s; try again shortly",
                HELD_WAIT.as_secs()
            )),
            GateError::Failed(error) => {
                // After any failure, the next request reads the record again.
                self.invalidate();
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

/// Opens the grant of a sandbox. Waits for an agent that is being restarted.
fn open(
    id: &SandboxId,
    route: &Route,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> impl Future<Output = Result<Arc<TrafficGrant>, EdgeError>> + Send + 'static {
    let (id, to, tasks, stop) = (id.clone(), route.to.clone(), tasks.clone(), stop.clone());
    async move {
        let (agent, incarnation) = match to {
            Location::Fixed(address) => return Ok(TrafficGrant::fixed(address)),
            Location::Closed(why) => return Err(EdgeError::Suspended(why)),
            Location::Sandbox { agent, incarnation } => (agent, incarnation),
        };
        let deadline = tokio::time::Instant::now() + HELD_WAIT;
        loop {
            match TrafficGrant::open(agent.clone(), id.clone(), incarnation, true, &tasks, &stop).await {
                Ok(grant) => return Ok(grant),
                Err(error) if is_restart(&error) && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(AGENT_RETRY).await;
                }
                Err(error) => return Err(edge_error(error)),
            }
        }
    }
}

/// Whether the agent is down, or went down before it answered. Requesting a grant twice is
/// harmless.
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
            // The text names files of the host.
            ErrorCode::Internal => {
                tracing::error!(error = text, "a host failed");
                EdgeError::Unavailable("the sandbox's host failed; search the log of its agent".to_owned())
            }
            _ => EdgeError::Unavailable(text),
        },
        _ => EdgeError::Unavailable(text),
    }
}

#[cfg(test)]
mod tests {
    use pandastack_types::preview::Visibility;

    use super::*;

    #[test]
    fn a_stale_route_does_not_replace_a_newer_one() {
        let route = |visibility| Route {
            to: Location::Fixed([127, 0, 0, 1].into()),
            visibility,
            host_header: None,
            key: None,
        };
        let site = Site::new(SandboxId::random(), route(Visibility::Unlisted), true);
        site.invalidate();
        site.invalidate();
        assert_eq!(site.renew(route(Visibility::Off), 2).visibility, Visibility::Off);
        assert_eq!(site.renew(route(Visibility::Private), 1).visibility, Visibility::Off);
        assert!(site.fresh_route().is_ok());
    }
}
