//! Replicas: several control servers on one database.
//!
//! ```text
//!   client --> any replica: sandboxes, files, exec, ports, databases' wire          from the store and the hosts
//!                 |  reports, apps, functions, schedules, databases' API
//!                 +--> the leader: reconciles, reaps, schedules, deploys, keeps pools of machines
//! ```
//!
//! Every replica serves the sandbox API and sandboxes' ports. Work that needs a single process (see
//! [`Work`]) runs on the leader, and requests about it are [forwarded](forward) to it, so that its
//! in-memory state is right.
//!
//! Must hold:
//! - at most one replica leads. The leader is the session that holds the database's lock. A leader
//!   that loses its session exits, because work that it has started in tasks and machines cannot be
//!   cancelled one by one. Its successor waits [`TAKEOVER_WAIT`], which is longer than a leader can
//!   be cut off without knowing it ([`BEAT_EVERY`] + [`BEAT_MAX`]);
//! - a replica's cached data of a sandbox is dropped when any replica changes it
//!   ([`ReplicaChange`]);
//! - the leader leaves resources alone that another replica is creating or deleting ([`peers`]).
//!
//! With SQLite a single server runs, which always leads.

mod forward;
mod peers;

pub(crate) use forward::{ForwardedFor, from_replica, passed_on_host, to_leader};
pub(crate) use peers::ReplicaPeers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use pandastack_apps::NameChanges;
use pandastack_fleet::HostTls;
use pandastack_sandboxes::hosts::Hosts;
use pandastack_sandboxes::{Background, Sandboxes};
use pandastack_store::replicas::{ReplicaChange, Session};
use pandastack_store::{Store, StoreError};
use pandastack_types::link::LinkKey;
use pandastack_types::{Result, chain};
use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::fleet::Fleet;

/// Interval of a session's heartbeats, and of checks for a vacant leadership.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// A session that takes longer to answer is lost.
const BEAT_MAX: Duration = Duration::from_secs(2);
/// Time that a leader's successor waits before it acts.
const TAKEOVER_WAIT: Duration = Duration::from_millis(3500);
/// Time that a follower waits before it joins again.
const REJOIN_AFTER: Duration = Duration::from_millis(500);

/// The state of this server among the replicas.
pub(crate) struct Replicas {
    /// Names this process.
    pub(crate) instance: String,
    /// Address at which the other replicas reach this one.
    pub(crate) address: String,
    /// This server's certificate.
    tls: HostTls,
    leads: AtomicBool,
    /// The leader, if it is another replica and was looked up recently.
    leader: Mutex<Option<forward::Leader>>,
}

impl Replicas {
    pub(crate) fn new(instance: String, address: String, tls: HostTls) -> Self {
        Self { instance, address, tls, leads: AtomicBool::new(false), leader: Mutex::new(None) }
    }

    /// Makes this replica the leader.
    pub(crate) fn lead(&self) {
        self.leads.store(true, Ordering::SeqCst);
    }

    /// Returns whether this replica leads.
    pub(crate) fn leads(&self) -> bool {
        self.leads.load(Ordering::SeqCst)
    }
}

/// This server as one of the replicas: its identity, and the changes of the others.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) hosts: Arc<Hosts>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) names: Arc<NameChanges>,
    pub(crate) background: Background,
    pub(crate) link: LinkKey,
}

/// A leader lost its session: another one may lead.
#[derive(Debug, thiserror::Error)]
#[error("the database session of the leader was lost")]
pub(crate) struct LeadershipLost(#[source] pub(crate) StoreError);

/// A background task of the leader. The server registers those of each service.
pub(crate) type LeaderTask = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The end of a session.
enum End {
    Left,
    Lost(StoreError),
}

/// Runs the replica until it leaves. `leads`: the session already leads, as the first leader.
pub(crate) async fn run(
    member: &Member,
    mut session: Box<dyn Session>,
    leads: bool,
    leave: &CancellationToken,
    tasks: &[LeaderTask],
) -> Result<(), LeadershipLost> {
    let mut work = Work { tasks, running: Vec::new() };
    if leads {
        work.begin(member);
    }
    loop {
        match take_part(member, session.as_mut(), &mut work, leave).await {
            End::Left => {
                session.leave().await;
                return Ok(());
            }
            End::Lost(error) if member.replicas.leads() => return Err(LeadershipLost(error)),
            End::Lost(error) => {
                tracing::warn!(error = %chain(&error), "lost the database session; rejoining")
            }
        }
        // Dropping the session releases its locks.
        drop(session);
        session = match join_again(member, leave).await {
            Some(joined) => joined,
            None => return Ok(()),
        };
        catch_up(member).await;
    }
}

async fn take_part(
    member: &Member,
    session: &mut dyn Session,
    work: &mut Work<'_>,
    leave: &CancellationToken,
) -> End {
    let mut beat = interval(BEAT_EVERY);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut act_from: Option<Instant> = None;
    loop {
        let waited = act_from.filter(|_| !member.replicas.leads());
        tokio::select! {
            () = leave.cancelled() => return End::Left,
            news = session.next_changes() => match news {
                Ok(news) => apply_changes(member, news).await,
                Err(error) => return End::Lost(error),
            },
            _ = beat.tick() => match timeout(BEAT_MAX, session.beat()).await {
                Ok(Ok(true)) if act_from.is_none() => act_from = Some(Instant::now() + TAKEOVER_WAIT),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return End::Lost(error),
                Err(_) => return End::Lost(StoreError::timed_out()),
            },
            () = tokio::time::sleep_until(waited.unwrap_or_else(Instant::now)), if waited.is_some() => work.begin(member),
        }
    }
}

async fn join_again(member: &Member, leave: &CancellationToken) -> Option<Box<dyn Session>> {
    loop {
        tokio::select! {
            () = leave.cancelled() => return None,
            () = tokio::time::sleep(REJOIN_AFTER) => {}
        }
        let joined = timeout(BEAT_MAX, join(member.store.as_ref(), &member.replicas)).await;
        match joined.unwrap_or(Err(StoreError::timed_out())) {
            Ok(session) => return Some(session),
            Err(error) => tracing::debug!(error = %chain(&error), "the database is not responding yet"),
        }
    }
}

/// Appears among the replicas.
pub(crate) async fn join(store: &dyn Store, me: &Replicas) -> pandastack_store::Result<Box<dyn Session>> {
    store.join(&me.instance, &me.address).await
}

/// Background tasks of the leader. They end at shutdown, or when this is dropped.
struct Work<'a> {
    tasks: &'a [LeaderTask],
    running: Vec<AbortHandle>,
}

impl Work<'_> {
    fn begin(&mut self, member: &Member) {
        tracing::info!(instance = member.replicas.instance, "this server is the leader");
        member.replicas.lead();
        self.running =
            self.tasks.iter().map(|task| member.background.tasks.spawn(task()).abort_handle()).collect();
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.running.iter().for_each(AbortHandle::abort);
    }
}

/// Applies the changes of all replicas.
async fn apply_changes(member: &Member, news: Vec<ReplicaChange>) {
    for one in news {
        match one {
            ReplicaChange::Event(workspace, event) => member.sandboxes.send_event(workspace, event),
            ReplicaChange::Host(host) if !member.replicas.leads() => match member.store.host(&host).await {
                Ok(Some(record)) => member.hosts.apply_record(record),
                Ok(None) => {}
                Err(error) => tracing::warn!(
                    %host, error = %chain(&error),
                    "cannot read the report of a host"
                ),
            },
            ReplicaChange::Host(_) => {}
            ReplicaChange::HostIdentity(host) => {
                member.fleet.reload(member.store.as_ref(), Some(&host)).await;
                if member.fleet.memberships.role(&host).is_none() {
                    member.hosts.forget_report(&host);
                }
            }
            ReplicaChange::SharedSecret => member.fleet.reload(member.store.as_ref(), None).await,
            ReplicaChange::Names => member.names.forget(),
        }
    }
}

/// Reloads everything that may have changed without a notification.
async fn catch_up(member: &Member) {
    member.names.forget();
    member.sandboxes.forget_all();
    member.fleet.reload(member.store.as_ref(), None).await;
    let hosts: Result<_> = member.store.hosts().await.map_err(Into::into);
    match hosts {
        Ok(hosts) => member.hosts.load(hosts, pandastack_store::clock::now()),
        Err(error) => tracing::warn!(
            error = %chain(&error),
            "cannot read hosts; they are listed again when they report"
        ),
    }
}
