//! The handle of a sandbox's driver: its requests, and the state that can be read without it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pandastack_engine::Shape;
use pandastack_guest_proto::client::{ErrorKind, GuestClient};
use pandastack_types::agent_api::{
    AgentForked, AgentSandbox, AgentSnapshotDone, OutdatedVerdict, SandboxSpec,
};
use pandastack_types::api::Keep;
use pandastack_types::network::NetworkPolicy;
use pandastack_types::{Residency, SandboxId, SandboxState, SnapshotId, VolumeId};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};

use super::accept::Request;
use super::activity::{Activity, ActivityGuard};
use super::grants::EdgeGrant;
use crate::budget::OutputBudget;
use crate::error::{AgentError, Result};
use crate::observe::Observation;

/// Requests that may wait for one sandbox. A full queue answers 503.
pub(super) const QUEUE_MAX: usize = 256;
/// Longest delay between the end of a machine's connections and the notice of its own end.
const LOSS_SEEN_MAX: Duration = Duration::from_secs(2);

pub(super) type Reply<T> = oneshot::Sender<Result<T>>;

/// A request to a driver.
pub(crate) enum Command {
    Lease(Reply<GuestLease>),
    LeaseToStart(Reply<GuestLease>),
    /// A lease if the sandbox is awake; `None` while it sleeps or is paused.
    Join(Reply<Option<GuestLease>>),
    Grant {
        wake: bool,
        reply: Reply<EdgeGrant>,
    },
    Move(Request, Reply<AgentSandbox>),
    Hibernate(Keep, Reply<AgentSandbox>),
    /// Releases its memory if it sleeps in it.
    WriteOut(Reply<()>),
    /// Releases memory if the sandbox is asleep or idle; returns whether it did.
    Relieve(Reply<bool>),
    KeepAwake(Option<Timestamp>, Reply<AgentSandbox>),
    Rollback(SnapshotId, Reply<AgentSandbox>),
    Snapshot(SnapshotId, Reply<AgentSnapshotDone>),
    Fork(Vec<SandboxSpec>, Reply<AgentForked>),
    SetIdle(Option<u64>, Reply<AgentSandbox>),
    SetNetwork(Box<NetworkPolicy>, Reply<AgentSandbox>),
    /// Sets what happens when it wakes with an outdated state.
    SetVerdict(Option<Box<OutdatedVerdict>>, Reply<()>),
    GrowVolume(VolumeId, u64, Reply<()>),
    /// Copies the volume it has to a new one.
    CopyVolume(VolumeId, VolumeId, Reply<()>),
    Observe(Reply<Observation>),
    Delete(Reply<()>),
}

/// A way to the guest of an awake sandbox. While one exists the sandbox counts as in use.
pub(crate) struct GuestLease {
    pub guest: GuestClient,
    pub budget: OutputBudget,
    /// Number of rollbacks so far.
    pub rollbacks: u64,
    pub(super) starting: Option<OwnedSemaphorePermit>,
    /// Held, not read.
    pub _activity: ActivityGuard,
}

impl GuestLease {
    /// Releases the permit to start: the operation has started, or failed to.
    pub(crate) fn started(&mut self) {
        self.starting = None;
    }
}

/// The outside of a driver.
#[derive(Clone)]
pub(crate) struct SandboxHandle {
    pub(super) id: SandboxId,
    pub(super) incarnation: u64,
    pub(super) shape: Shape,
    pub(super) runtime_dir: Option<PathBuf>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) view: watch::Receiver<AgentSandbox>,
    pub(super) activity: Arc<Activity>,
    pub(super) output_budget: OutputBudget,
}

impl SandboxHandle {
    /// The budget for output held for callers of this sandbox.
    pub(crate) fn output_budget(&self) -> &OutputBudget {
        &self.output_budget
    }

    /// The sandbox as it stands.
    pub(crate) fn view(&self) -> AgentSandbox {
        let mut view = self.view.borrow().clone();
        view.idle_seconds = self.activity.idle().as_secs();
        view
    }

    /// Returns whether the sandbox runs at this address. A deleted sandbox has no driver left to
    /// update the view.
    pub(crate) fn runs_at(&self, address: Option<&str>) -> bool {
        let view = self.view.borrow();
        !self.commands.is_closed()
            && view.state == SandboxState::Running
            && view.guest_ip.as_deref() == address
    }

    /// Directory of the machine's sockets when its driver started.
    pub(crate) fn runtime_dir(&self) -> Option<PathBuf> {
        self.runtime_dir.clone()
    }

    /// The machine's shape, if it holds memory now.
    pub(crate) fn awake_shape(&self) -> Option<Shape> {
        let view = self.view.borrow();
        let awake =
            matches!(view.state, SandboxState::Creating | SandboxState::Running | SandboxState::Paused);
        (awake || view.residency == Some(Residency::Memory)).then_some(self.shape)
    }

    /// Returns whether the sandbox sleeps with its machine stopped in memory.
    pub(crate) fn sleeps_in_memory(&self) -> bool {
        self.view.borrow().residency == Some(Residency::Memory)
    }

    /// Refuses a caller that means another life of this sandbox.
    pub(crate) fn check_incarnation(&self, meant: u64) -> Result<()> {
        if meant == self.incarnation {
            return Ok(());
        }
        Err(AgentError::Conflict(format!(
            "the request is for incarnation {meant} of sandbox {}, but this host has {}",
            self.id, self.incarnation
        )))
    }

    pub(crate) async fn lease(&self) -> Result<GuestLease> {
        self.send(Command::Lease).await
    }

    /// A lease for a start; a sleep does not cut it off before [`GuestLease::started`].
    pub(crate) async fn lease_to_start(&self) -> Result<GuestLease> {
        self.send(Command::LeaseToStart).await
    }

    /// Waits until the sandbox is awake without waking it. For followers of a sandbox that fell
    /// asleep.
    pub(crate) async fn rejoin(&self) -> Result<GuestLease> {
        let mut view = self.view.clone();
        loop {
            match self.send(Command::Join).await {
                Ok(Some(lease)) => return Ok(lease),
                Ok(None) => {}
                Err(error) => return Err(self.explain(error).await),
            }
            let still = |view: &AgentSandbox| {
                matches!(view.state, SandboxState::Paused | SandboxState::Hibernated | SandboxState::Creating)
            };
            if view.wait_for(|view| !still(view)).await.is_err() {
                return Err(AgentError::NoSandbox(self.id.clone()));
            }
        }
    }

    /// Converts a failed guest call to "machine lost" if the machine has ended. The end of a
    /// machine is noticed moments after its connections break.
    pub(crate) async fn explain(&self, error: AgentError) -> AgentError {
        let is_unreachable = match &error {
            AgentError::Guest(error) => error.kind() == ErrorKind::Unreachable,
            AgentError::Engine(_) => true,
            _ => false,
        };
        if !is_unreachable {
            return error;
        }
        let mut view = self.view.clone();
        let failed = view.wait_for(|view| view.state == SandboxState::Failed);
        match tokio::time::timeout(LOSS_SEEN_MAX, failed).await {
            Ok(Ok(view)) => AgentError::Failed(view.failure.clone().unwrap_or_default()),
            Ok(Err(_)) => AgentError::NoSandbox(self.id.clone()),
            Err(_) => error,
        }
    }

    /// A grant for an edge; see [`pandastack_types::grant`].
    pub(crate) async fn grant(&self, wake: bool) -> Result<EdgeGrant> {
        self.send(|reply| Command::Grant { wake, reply }).await
    }

    pub(crate) async fn move_to(&self, request: Request) -> Result<AgentSandbox> {
        self.send(|reply| Command::Move(request, reply)).await
    }

    pub(crate) async fn hibernate(&self, keep: Keep) -> Result<AgentSandbox> {
        self.send(|reply| Command::Hibernate(keep, reply)).await
    }

    /// Writes the sandbox to disk if it sleeps in memory.
    pub(crate) async fn write_out(&self) -> Result<()> {
        self.send(Command::WriteOut).await
    }

    /// Writes the sandbox to disk if it is asleep in memory or idle; returns whether it did.
    pub(crate) async fn relieve(&self) -> Result<bool> {
        self.send(Command::Relieve).await
    }

    pub(crate) async fn keep_awake(&self, until: Option<Timestamp>) -> Result<AgentSandbox> {
        self.send(|reply| Command::KeepAwake(until, reply)).await
    }

    pub(crate) async fn rollback(&self, id: SnapshotId) -> Result<AgentSandbox> {
        self.send(|reply| Command::Rollback(id, reply)).await
    }

    pub(crate) async fn snapshot(&self, id: SnapshotId) -> Result<AgentSnapshotDone> {
        self.send(|reply| Command::Snapshot(id, reply)).await
    }

    pub(crate) async fn fork(&self, children: Vec<SandboxSpec>) -> Result<AgentForked> {
        self.send(|reply| Command::Fork(children, reply)).await
    }

    pub(crate) async fn set_idle(&self, seconds: Option<u64>) -> Result<AgentSandbox> {
        self.send(|reply| Command::SetIdle(seconds, reply)).await
    }

    /// Changes its network policy. Never wakes it.
    pub(crate) async fn set_network(&self, policy: NetworkPolicy) -> Result<AgentSandbox> {
        self.send(|reply| Command::SetNetwork(Box::new(policy), reply)).await
    }

    /// Sets what happens when it wakes with an outdated state. Never wakes it.
    pub(crate) async fn set_verdict(&self, verdict: Option<OutdatedVerdict>) -> Result<()> {
        self.send(|reply| Command::SetVerdict(verdict.map(Box::new), reply)).await
    }

    /// Makes one of its volumes larger, file system included.
    pub(crate) async fn grow_volume(&self, id: VolumeId, bytes: u64) -> Result<()> {
        self.send(|reply| Command::GrowVolume(id, bytes, reply)).await
    }

    /// Copies one of its volumes at one point in time, at which it is paused.
    pub(crate) async fn copy_volume(&self, from: VolumeId, to: VolumeId) -> Result<()> {
        self.send(|reply| Command::CopyVolume(from, to, reply)).await
    }

    /// Current resource usage. Never wakes the sandbox.
    pub(crate) async fn observe(&self) -> Result<Observation> {
        self.send(Command::Observe).await
    }

    pub(crate) async fn delete(&self) -> Result<()> {
        self.send(Command::Delete).await
    }

    async fn send<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.try_send(command(reply)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => AgentError::NoCapacity(format!(
                "{QUEUE_MAX} requests are already waiting for sandbox {}",
                self.id
            )),
            mpsc::error::TrySendError::Closed(_) => AgentError::NoSandbox(self.id.clone()),
        })?;
        answer.await.map_err(|_| AgentError::NoSandbox(self.id.clone()))?
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A handle of a sandbox that is awake, whose every lease is one of that guest.
    pub(crate) fn handle_to(
        id: SandboxId,
        guest: GuestClient,
        budget: OutputBudget,
        shape: Shape,
    ) -> SandboxHandle {
        let (commands, mut asked) = mpsc::channel(QUEUE_MAX);
        let view = AgentSandbox {
            id: id.clone(),
            incarnation: 1,
            state: SandboxState::Running,
            residency: None,
            template: "base".to_owned(),
            cpu: 1,
            memory_mb: 512,
            guest_ip: None,
            engine: "fake".to_owned(),
            isolation: "hardware".to_owned(),
            boot_mode: "fork".to_owned(),
            boot_ms: 0,
            boot_stages_us: Default::default(),
            idle_seconds: 0,
            awake_until: None,
            failure: None,
            usage: Default::default(),
        };
        let activity = Activity::new();
        let (own, own_budget) = (activity.clone(), budget.clone());
        tokio::spawn(async move {
            while let Some(command) = asked.recv().await {
                if let Command::Lease(reply) | Command::LeaseToStart(reply) = command {
                    let (guest, budget, _activity) = (guest.clone(), own_budget.clone(), own.begin());
                    let _ =
                        reply.send(Ok(GuestLease { guest, budget, rollbacks: 0, starting: None, _activity }));
                }
            }
        });
        SandboxHandle {
            id,
            incarnation: 1,
            shape,
            runtime_dir: None,
            commands,
            view: watch::channel(view).1,
            activity,
            output_budget: budget,
        }
    }
}
