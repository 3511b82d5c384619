//! A traffic grant: permission from an agent to send requests to one running sandbox.
//!
//! Must hold: a [`Permit`] exists only while the guest runs, because the agent stops a guest only
//! after the edge reported that no permit is left ([`pandastack_types::grant`]). Taking a permit
//! costs two atomic additions, so a request to a sandbox that is awake needs no call to the agent.
//! Before a stop, requests and responses in flight have the drain's time to end. Idle streams are
//! not waited for.

mod follow;
mod permit;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use pandastack_agent_client::{AgentClient, AgentError, CallOptions};
use pandastack_types::agent_api::GrantQuery;
use pandastack_types::agent_api::endpoints::OpenGrant;
use pandastack_types::{SandboxId, grant};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connector::Connector;
use crate::gate::Openable;
use crate::limits::{HELD_WAIT, PARTING_WAIT, REQUESTS_PER_SANDBOX_MAX, STILL_AFTER};
use crate::pool::Pools;
use crate::stall::Epoch;
use follow::follow;
pub use permit::Permit;
pub(crate) use permit::PermitError;

/// Permission to send requests to a sandbox while its guest runs.
pub struct TrafficGrant {
    pub(crate) connector: Connector,
    pub(crate) pools: Pools,
    /// Permits out.
    in_flight: AtomicUsize,
    /// Permits whose response has not started.
    unanswered: AtomicUsize,
    /// Permits of streams that wait for their guest, which may never send more.
    resting: AtomicUsize,
    born: Instant,
    /// Time at which bytes last moved on a resting stream, in milliseconds since `born`.
    moved_ms: AtomicU64,
    /// Whether there was activity since the last report to the agent.
    moved: AtomicBool,
    /// Whether the last report to the agent marked the grant idle.
    idle: AtomicBool,
    activity: Notify,
    held: AtomicBool,
    /// A permit ended or began to rest, while the grant is held.
    drained: Notify,
    /// Ends streams that have nothing in progress.
    closing: CancellationToken,
    /// Ends everything still in progress.
    pub(crate) cut: CancellationToken,
}

impl Openable for TrafficGrant {
    fn is_open(&self) -> bool {
        !self.held.load(Ordering::SeqCst) && !self.connector.has_expired()
    }
}

impl TrafficGrant {
    /// A grant that no agent watches over, for upstreams that never sleep.
    pub fn fixed(address: IpAddr) -> Arc<Self> {
        Arc::new(Self::new(Connector::Direct(address, None)))
    }

    fn new(connector: Connector) -> Self {
        Self {
            connector,
            pools: Pools::default(),
            in_flight: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
            resting: AtomicUsize::new(0),
            born: Instant::now(),
            moved_ms: AtomicU64::new(0),
            moved: AtomicBool::new(true),
            idle: AtomicBool::new(false),
            activity: Notify::new(),
            held: AtomicBool::new(false),
            drained: Notify::new(),
            closing: CancellationToken::new(),
            cut: CancellationToken::new(),
        }
    }

    /// Requests a grant from the agent, which wakes a sleeping sandbox. Follows the agent's
    /// messages until either side closes.
    pub async fn open(
        client: AgentClient,
        sandbox: SandboxId,
        incarnation: u64,
        wake: bool,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Result<Arc<Self>, AgentError> {
        // Taken before the request: the agent may withdraw the grant while this process is stalled.
        let epoch = Epoch::now();
        let call = OpenGrant::new(sandbox.clone(), GrantQuery { wake: Some(wake) });
        let options = CallOptions::on_sandbox(incarnation, HELD_WAIT);
        let (headers, stream) = client.upgrade(call, options).await?;
        let address = headers.get(grant::ADDRESS_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        let connector = match address {
            Some(address) if client.is_local() => Connector::Direct(address, Some(epoch)),
            _ => Connector::Agent { client, sandbox, incarnation },
        };
        let opened = Arc::new(Self::new(connector));
        tasks.spawn(follow(Arc::clone(&opened), stream, shutdown.clone()));
        Ok(opened)
    }

    /// A permit for one request, stream or tunnel.
    pub fn enter(self: &Arc<Self>) -> Result<Permit, PermitError> {
        // Counted before the check, so that a drain that starts in between waits for this permit.
        let before = self.in_flight.fetch_add(1, Ordering::SeqCst);
        self.unanswered.fetch_add(1, Ordering::SeqCst);
        let permit = Permit::new(Arc::clone(self), true);
        if !self.is_open() {
            return Err(PermitError::Closed);
        }
        if before >= REQUESTS_PER_SANDBOX_MAX {
            return Err(PermitError::Full);
        }
        self.note_activity();
        Ok(permit)
    }

    /// Permits out.
    pub(crate) fn count_in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Records activity.
    fn note_activity(&self) {
        if !self.moved.load(Ordering::Relaxed) {
            self.moved.store(true, Ordering::Relaxed);
        }
        if self.idle.load(Ordering::SeqCst) && self.idle.swap(false, Ordering::SeqCst) {
            self.activity.notify_one();
        }
    }

    /// Starts nothing more.
    pub fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
        self.closing.cancel();
        if self.in_flight.load(Ordering::SeqCst) == 0 {
            self.drained.notify_one();
        }
    }

    /// Waits until no stream is in progress, for at most `wait`; then cuts the rest, and lets them close in
    /// an orderly way.
    pub async fn drain(&self, wait: Duration) {
        if tokio::time::timeout(wait, self.wait_idle()).await.is_err() {
            tracing::info!("requests did not finish before their sandbox stopped; closing them");
        }
        self.cut.cancel();
        // Long enough for a last message to the guest. A permit held for longer waits for its
        // client, or streams without a pause.
        let _ = tokio::time::timeout(PARTING_WAIT, self.emptied()).await;
        self.pools.clear();
    }

    async fn emptied(&self) {
        while self.in_flight.load(Ordering::SeqCst) > 0 {
            self.drained.notified().await;
        }
    }

    /// Waits until no permit is left, or only those of streams on which nothing happens.
    async fn wait_idle(&self) {
        while !self.has_settled() {
            tokio::select! {
                () = self.drained.notified() => {}
                () = tokio::time::sleep_until(self.still_at()), if self.are_all_resting() => {}
            }
        }
    }

    fn has_settled(&self) -> bool {
        self.in_flight.load(Ordering::SeqCst) == 0
            || (self.are_all_resting() && self.still_at() <= Instant::now())
    }

    /// Returns whether every permit belongs to a stream that waits for its guest. All permits are
    /// counted before the resting ones, so that a stream that resumes in between is noticed.
    pub(crate) fn are_all_resting(&self) -> bool {
        let in_flight = self.in_flight.load(Ordering::SeqCst);
        in_flight <= self.resting.load(Ordering::SeqCst)
    }

    /// Time at which resting streams count as still, unless bytes move before.
    fn still_at(&self) -> Instant {
        self.born + Duration::from_millis(self.moved_ms.load(Ordering::SeqCst)) + STILL_AFTER
    }

    fn note_moved(&self) {
        let ms = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(ms, Ordering::SeqCst);
    }

    fn notify_drained(&self) {
        if self.held.load(Ordering::SeqCst) {
            self.drained.notify_one();
        }
    }

    /// Returns whether there was no activity since the last call.
    fn is_quiet(&self) -> bool {
        !self.moved.swap(false, Ordering::SeqCst) && self.unanswered.load(Ordering::SeqCst) == 0
    }
}

#[cfg(test)]
mod tests;
