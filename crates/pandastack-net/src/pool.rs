//! The pool: slots made ahead of need, leased in microseconds, destroyed behind the scenes.
//!
//! ```text
//!            make                take                release            destroy
//!   free ------------> ready ------------> in use ------------> doomed ----------> free
//!     ^                                      ^                     ^
//!     |          (agent restart)             | adopt, named        | adopt, not named
//!     +------------------------------------ found -----------------+
//! ```
//!
//! One OS thread, the maker, does everything slow. A slot is in exactly one of the states above; every index that is
//! not free is in `occupied`, so an index cannot be made twice. Ready slots are counted by a semaphore, which serves
//! waiting takers in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use tokio::sync::Semaphore;

use crate::config::{NetConfig, Plan, SlotIndex};
use crate::error::{NetError, Result};
use crate::namespace::{self, NetNs};
use crate::netlink::{Netlink, Subsystem};
use crate::policy::EgressPolicy;
use crate::slot::{self, ReadySlot};
use crate::{resolver, ruleset};

/// Released slots that may wait for destruction while there are ready ones to make. Past it, destroying goes first.
const DOOMED_BACKLOG_MAX: usize = 64;

/// Pause after a failed make or destroy, doubled each time up to the maximum.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// A leased slot. Give it back with [`SlotPool::release`] once the machine's process is gone.
#[derive(Debug)]
pub struct Slot {
    /// Which one; store it to release or adopt.
    pub index: SlotIndex,
    /// The guest's network card: one queue, with virtio headers. See [`SlotPool::open_tap`] for another one later.
    pub tap: OwnedFd,
    /// Where processes of this host reach the guest, on every port.
    pub address: Ipv4Addr,
}

/// What [`SlotPool::adopt`] found of the slots that it was told are in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adopted {
    /// Leased again, traffic never stopped.
    pub kept: Vec<SlotIndex>,
    /// Not there, or only in part: the machines behind these have no network.
    pub missing: Vec<SlotIndex>,
}

/// Sizes for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStats {
    /// Slots of the subnet.
    pub capacity: usize,
    /// Made and waiting.
    pub ready: usize,
    /// Leased.
    pub in_use: usize,
    /// Found at start and not yet adopted.
    pub found: usize,
    /// Released, not yet destroyed.
    pub doomed: usize,
}

/// All slots of one agent.
#[derive(Debug)]
pub struct SlotPool {
    shared: Arc<Shared>,
    maker: Mutex<Option<JoinHandle<()>>>,
    take_deadline: Duration,
    /// Held as long as the pool lives: a second pool with the same names cannot bind it.
    _claim: UnixDatagram,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    host: NetNs,
    resolver: Option<Ipv4Addr>,
    ready_target: usize,
    state: Mutex<State>,
    work: Condvar,
    ready: Semaphore,
}

/// A slot's netlink socket, kept with the lease only to be closed by the maker: after rules were changed, closing it
/// waits for the kernel to let go of the old ones, some 10 ms that have no place in a take.
#[derive(Debug)]
struct RulesSocket(#[expect(dead_code, reason = "held for its drop")] Arc<Netlink>);

#[derive(Debug, Default)]
struct State {
    /// Every index that is not free, whatever its state.
    occupied: BTreeSet<SlotIndex>,
    ready: VecDeque<ReadySlot>,
    in_use: BTreeMap<SlotIndex, Option<RulesSocket>>,
    found: BTreeSet<SlotIndex>,
    doomed: VecDeque<(SlotIndex, Option<RulesSocket>)>,
    /// Where the search for a free index goes on: all others come first before one is used again.
    cursor: usize,
    failure: Option<String>,
    closing: bool,
}

impl SlotPool {
    /// Prepares the host (forwarding, our table, the namespace directory) and starts filling the pool. Slots of an
    /// earlier agent are left alone until [`SlotPool::adopt`].
    ///
    /// Blocks for a few milliseconds. The calling thread's network namespace is taken for the host's.
    pub fn open(config: NetConfig) -> Result<Arc<Self>> {
        let plan = config.plan()?;
        let claim = claim_prefix(&plan)?;
        check_subnet(&plan)?;
        let resolver = config.resolver.or_else(resolver::host_resolver);
        namespace::prepare_directory(&plan.netns_dir)?;
        slot::set_sysctl("/proc/sys/net/ipv4/ip_forward", "1")?;
        ruleset::host(&plan, resolver).commit(&Netlink::open(Subsystem::Netfilter)?)?;

        let found = slot::find_all(&plan)?;
        let state = State { occupied: found.clone(), found, ..State::default() };
        let shared = Arc::new(Shared {
            host: NetNs::current()?,
            resolver,
            ready_target: config.ready_target.min(plan.capacity()),
            plan,
            state: Mutex::new(state),
            work: Condvar::new(),
            ready: Semaphore::new(0),
        });
        let maker = thread::Builder::new()
            .name("slot-maker".to_owned())
            // A thread starts in the namespace of the one that spawns it: the host's.
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.make_and_destroy()
            })
            .map_err(NetError::io("starting the slot maker thread", "slot-maker"))?;
        let maker = Mutex::new(Some(maker));
        Ok(Arc::new(SlotPool { shared, maker, take_deadline: config.take_deadline, _claim: claim }))
    }

    /// Leases a slot. Microseconds while the pool is filled; otherwise waits for the maker, up to the deadline.
    pub async fn take(&self, policy: &EgressPolicy) -> Result<Slot> {
        let shared = &self.shared;
        let rules = match policy.is_default() {
            true => None,
            false => Some(ruleset::slot_policy(policy, &shared.plan, shared.resolver)?),
        };
        shared.check_not_exhausted()?;
        let started = Instant::now();
        match tokio::time::timeout(self.take_deadline, shared.ready.acquire()).await {
            Ok(Ok(permit)) => permit.forget(),
            Ok(Err(_closed)) => return Err(NetError::Closed),
            Err(_elapsed) => return Err(shared.not_ready(started.elapsed())),
        }
        let (index, tap, socket) = shared.lease_ready().ok_or(NetError::Closed)?;
        // Nobody else touches the rules of a fresh namespace: the kernel answers at once.
        if let Some(rules) = rules
            && let Err(error) = rules.commit(&socket)
        {
            self.release(index);
            return Err(error);
        }
        Ok(Slot { index, tap, address: shared.plan.slot_side(index) })
    }

    /// Gives a slot back; it is destroyed in the background. `false` when it was not in use, which is harmless.
    pub fn release(&self, index: SlotIndex) -> bool {
        let mut state = self.shared.lock();
        let Some(socket) = state.in_use.remove(&index) else { return false };
        state.doomed.push_back((index, socket));
        self.shared.work.notify_one();
        true
    }

    /// After an agent restart: leases what running machines still use, dooms everything else that was found. Call it
    /// once with every index in use, also when there is none.
    pub async fn adopt(&self, in_use: &[SlotIndex]) -> Result<Adopted> {
        let claimed: BTreeSet<SlotIndex> = in_use.iter().copied().collect();
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            let found = std::mem::take(&mut shared.lock().found);
            let is_kept = |index: &SlotIndex| found.contains(index) && slot::is_whole(&shared.plan, *index);
            let (kept, missing): (Vec<_>, Vec<_>) =
                shared.host.run(|| Ok(claimed.into_iter().partition(is_kept)))?;
            let mut state = shared.lock();
            state.in_use.extend(kept.iter().map(|index| (*index, None)));
            let unused = found.into_iter().filter(|index| !kept.contains(index));
            state.doomed.extend(unused.map(|index| (index, None)));
            shared.work.notify_one();
            Ok(Adopted { kept, missing })
        })
        .await
    }

    /// Opens the tap of a leased slot again, for a machine that wakes. Fails while another process has it open.
    pub async fn open_tap(&self, index: SlotIndex) -> Result<OwnedFd> {
        self.check_leased(index)?;
        let shared = Arc::clone(&self.shared);
        blocking(move || slot::open_tap(&shared.plan, index)).await
    }

    /// Replaces the policy of a leased slot, also while its machine runs. Atomic, and binding for connections that
    /// are already open.
    pub async fn set_policy(&self, index: SlotIndex, policy: &EgressPolicy) -> Result<()> {
        self.check_leased(index)?;
        let (shared, policy) = (Arc::clone(&self.shared), policy.clone());
        blocking(move || slot::set_policy(&shared.plan, index, &policy, shared.resolver)).await
    }

    /// Where processes of this host reach the guest of a slot.
    pub fn address(&self, index: SlotIndex) -> Ipv4Addr {
        self.shared.plan.slot_side(index)
    }

    /// Sizes for metrics.
    pub fn stats(&self) -> PoolStats {
        let state = self.shared.lock();
        PoolStats {
            capacity: self.shared.plan.capacity(),
            ready: state.ready.len(),
            in_use: state.in_use.len(),
            found: state.found.len(),
            doomed: state.doomed.len(),
        }
    }

    /// Removes every slot, leased ones too, and our table. For the end of a host's service; an agent that only
    /// restarts drops the pool instead and leaves everything in place.
    ///
    /// IP forwarding stays on: by now something else on the host may need it.
    pub async fn shutdown(&self) -> Result<()> {
        self.shared.close();
        let maker = self.take_maker();
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            join(maker);
            shared.remove_everything()
        })
        .await
    }

    fn check_leased(&self, index: SlotIndex) -> Result<()> {
        if self.shared.lock().in_use.contains_key(&index) { Ok(()) } else { Err(NetError::NotInUse(index)) }
    }

    fn take_maker(&self) -> Option<JoinHandle<()>> {
        self.maker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for SlotPool {
    fn drop(&mut self) {
        self.shared.close();
        join(self.take_maker());
    }
}

impl Shared {
    /// A panic elsewhere cannot leave the state half-changed: every critical section is a few infallible moves.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        self.lock().closing = true;
        self.ready.close();
        self.work.notify_all();
    }

    fn check_not_exhausted(&self) -> Result<()> {
        let capacity = self.plan.capacity();
        let state = self.lock();
        if state.in_use.len() + state.found.len() < capacity {
            Ok(())
        } else {
            Err(NetError::Exhausted { capacity })
        }
    }

    fn not_ready(&self, waited: Duration) -> NetError {
        let cause = self.lock().failure.clone();
        NetError::NotReady {
            waited_ms: waited.as_millis() as u64,
            cause: cause.unwrap_or_else(|| "slots are taken faster than this host makes them".to_owned()),
        }
    }

    fn lease_ready(&self) -> Option<(SlotIndex, OwnedFd, Arc<Netlink>)> {
        let mut state = self.lock();
        let ReadySlot { index, tap, rules } = state.ready.pop_front()?;
        let socket = Arc::new(rules);
        state.in_use.insert(index, Some(RulesSocket(Arc::clone(&socket))));
        self.work.notify_one();
        Some((index, tap, socket))
    }

    /// The maker thread. Ends when the pool closes.
    fn make_and_destroy(&self) {
        let mut pause = RETRY_PAUSE_MIN;
        while let Some(job) = self.next_job() {
            let outcome = match job {
                Job::Make(index) => self.make(index),
                Job::Destroy(index) => self.destroy(index),
            };
            match outcome {
                Ok(()) => pause = RETRY_PAUSE_MIN,
                Err(error) => {
                    tracing::warn!(?job, %error, "network slot work failed; it will be tried again");
                    self.pause_after(error, pause);
                    pause = (pause * 2).min(RETRY_PAUSE_MAX);
                }
            }
        }
    }

    /// Waits for something to do; `None` when the pool closes.
    fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.closing {
                return None;
            }
            let wanted = state.ready.len() < self.ready_target;
            if wanted
                && state.doomed.len() <= DOOMED_BACKLOG_MAX
                && let Some(index) = state.claim_free(self.plan.capacity())
            {
                return Some(Job::Make(index));
            }
            if let Some((index, socket)) = state.doomed.pop_front() {
                drop(state);
                drop(socket);
                return Some(Job::Destroy(index));
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn make(&self, index: SlotIndex) -> Result<()> {
        let made = slot::make(&self.plan, &self.host, index, self.resolver);
        let mut state = self.lock();
        match made {
            Ok(ready) => {
                state.ready.push_back(ready);
                state.failure = None;
                self.ready.add_permits(1);
                Ok(())
            }
            Err(error) => {
                state.occupied.remove(&index);
                Err(error)
            }
        }
    }

    fn destroy(&self, index: SlotIndex) -> Result<()> {
        let destroyed = slot::destroy(&self.plan, index);
        let mut state = self.lock();
        match destroyed {
            Ok(()) => drop(state.occupied.remove(&index)),
            // Still occupied, so nobody can be given what is left of it.
            Err(_) => state.doomed.push_back((index, None)),
        }
        destroyed
    }

    fn pause_after(&self, error: NetError, pause: Duration) {
        let mut state = self.lock();
        state.failure = Some(error.to_string());
        let closing = |state: &mut State| !state.closing;
        drop(self.work.wait_timeout_while(state, pause, closing));
    }

    fn remove_everything(&self) -> Result<()> {
        let occupied =
            std::mem::replace(&mut *self.lock(), State { closing: true, ..State::default() }).occupied;
        self.host.run(|| {
            // Goes on after a failure, and reports the first one: as little as possible stays behind.
            let mut outcome = Ok(());
            for index in occupied {
                outcome = outcome.and(slot::destroy(&self.plan, index));
            }
            let socket = Netlink::open(Subsystem::Netfilter);
            outcome =
                outcome.and(socket.and_then(|socket| ruleset::host_removal(&self.plan).commit(&socket)));
            outcome.and(namespace::remove_directory(&self.plan.netns_dir))
        })
    }
}

impl State {
    fn claim_free(&mut self, capacity: usize) -> Option<SlotIndex> {
        let position = (0..capacity)
            .map(|step| (self.cursor + step) % capacity)
            .find(|position| !self.occupied.contains(&SlotIndex(*position as u16)))?;
        self.cursor = (position + 1) % capacity;
        let index = SlotIndex(position as u16);
        self.occupied.insert(index);
        Some(index)
    }
}

#[derive(Debug, Clone, Copy)]
enum Job {
    Make(SlotIndex),
    Destroy(SlotIndex),
}

/// Names are claimed by an abstract socket: scoped to the host's network namespace like the links themselves, and
/// freed by the kernel however the process ends.
fn claim_prefix(plan: &Plan) -> Result<UnixDatagram> {
    let name = format!("pandastack-net/{}", plan.prefix());
    let bound = SocketAddr::from_abstract_name(&name).and_then(|address| UnixDatagram::bind_addr(&address));
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => NetError::PrefixTaken { prefix: plan.prefix().to_owned() },
        _ => NetError::io("claiming the slot names", name)(error),
    })
}

/// Refuses a subnet in which the host, or another agent's slots, already have an address.
fn check_subnet(plan: &Plan) -> Result<()> {
    let interfaces = getifaddrs().map_err(NetError::io("listing addresses", "/proc/thread-self/net"))?;
    for interface in interfaces.filter(|interface| plan.parse_link_name(&interface.interface_name).is_none())
    {
        let address =
            interface.address.as_ref().and_then(|address| address.as_sockaddr_in()).map(|v4| v4.ip());
        if let Some(address) = address.filter(|address| plan.subnet.contains(*address)) {
            return Err(NetError::SubnetTaken {
                subnet: plan.subnet.to_string(),
                address: IpAddr::V4(address).to_string(),
                interface: interface.interface_name,
            });
        }
    }
    Ok(())
}

fn join(maker: Option<JoinHandle<()>>) {
    if let Some(maker) = maker
        && maker.join().is_err()
    {
        tracing::error!("the slot maker thread panicked");
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        // Only a runtime that shuts down cancels blocking work before it starts.
        Err(_) => Err(NetError::Closed),
    }
}
