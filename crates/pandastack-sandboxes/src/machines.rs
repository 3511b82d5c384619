//! Machines for services: the narrow interface with which a service creates, finds and deletes its
//! machines.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pandastack_store::{self as store, SandboxRecord, Select, SnapshotRecord};
use pandastack_types::api::{CreateSandbox, ExecResult, Lifecycle, PatchLifecycle, RunRequest};
use pandastack_types::{HostId, Owner, Result, SandboxId, SnapshotId, WorkspaceId};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::machine::Machine;
use crate::user_sandbox::UserSandbox;
use crate::{EventNotice, Sandboxes, ops};

/// The specification of a machine.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    /// Workspace whose quota the machine counts against.
    pub workspace: WorkspaceId,
    /// Template or snapshot, size, lifetime, variables.
    pub request: CreateSandbox,
}

/// Behaviour when a template is being built or no host has capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Fail at once, because a client waits for the answer.
    None,
    /// Retry, up to [`WaitPolicy::MAX`].
    Long,
}

impl WaitPolicy {
    /// Longest wait of a patient service: building a template takes a minute on an emulated host,
    /// and may have to wait for others.
    pub const MAX: Duration = Duration::from_secs(600);
}

/// Machines of services.
#[async_trait]
pub trait Machines: Send + Sync {
    /// Creates a machine that belongs to `owner` from its first moment on. Runs to its end even if the
    /// caller is dropped.
    async fn create(&self, owner: Owner, spec: MachineSpec, patience: WaitPolicy) -> Result<Machine>;

    /// Opens a machine of a workspace that has not failed and is not being deleted, also a sealed one.
    /// Refuses machines of a suspended workspace.
    async fn open(&self, workspace: &WorkspaceId, id: &SandboxId) -> Result<Machine>;

    /// The records of all machines of an owner, in any state.
    async fn owned_by(&self, owner: &Owner) -> Result<Vec<SandboxRecord>>;

    /// Forks a machine into one for another owner. Runs to its end even if the caller is dropped.
    async fn fork(&self, parent: &Machine, owner: Owner) -> Result<Machine>;

    /// Deletes a machine, or records that it is to be deleted. Runs to its end even if the caller is dropped.
    async fn delete(&self, record: SandboxRecord, why: Option<&str>) -> Result<()>;

    /// The record of a machine, in any state; of any workspace if `workspace` is `None`.
    async fn find(&self, workspace: Option<&WorkspaceId>, id: &SandboxId) -> store::Result<SandboxRecord>;

    /// A user's sandbox, for calls in the user's name.
    fn sandbox(&self, workspace: &WorkspaceId, id: &SandboxId) -> UserSandbox;

    /// Runs a command in a machine of its own and answers the end of its output. The machine is deleted even if the caller is dropped;
    /// `gone` ends the command early.
    async fn run(
        &self,
        workspace: WorkspaceId,
        request: RunRequest,
        last_bytes: usize,
        gone: CancellationToken,
    ) -> Result<(SandboxId, ExecResult)>;

    /// The lifetime of a machine, as users see it.
    async fn lifecycle(&self, record: &SandboxRecord) -> Lifecycle;

    /// Changes the lifetime of a machine.
    async fn patch(&self, record: SandboxRecord, request: PatchLifecycle) -> Result<()>;

    /// A snapshot of a workspace, a service's or a user's.
    async fn snapshot(&self, workspace: &WorkspaceId, id: &SnapshotId) -> store::Result<SnapshotRecord>;

    /// A snapshot that a user may use. Refuses those of services and of sealed machines.
    async fn user_snapshot(&self, workspace: &WorkspaceId, id: &SnapshotId) -> Result<SnapshotRecord>;

    /// All snapshots of a workspace.
    async fn snapshots(&self, workspace: &WorkspaceId) -> Result<Vec<SnapshotRecord>>;

    /// Deletes a snapshot. Safe to repeat.
    async fn remove_snapshot(&self, snapshot: &SnapshotRecord) -> Result<()>;

    /// Returns whether a host reported recently.
    fn is_reachable(&self, host: &HostId) -> bool;

    /// Events of machines from now on, in the order of commits.
    fn events(&self) -> broadcast::Receiver<EventNotice>;
}

impl Sandboxes {
    /// Machines, for services.
    pub fn machines(self: &Arc<Self>) -> Arc<dyn Machines> {
        Arc::new(Arc::clone(self))
    }
}

/// Opens a new machine for its owner. If its host was lost right after the create, the machine is
/// deleted here, because the owner never gets its id.
async fn opened(sandboxes: &Arc<Sandboxes>, record: SandboxRecord) -> Result<Machine> {
    match Machine::of(sandboxes, record.clone()) {
        Ok(machine) => Ok(machine),
        Err(error) => {
            ops::delete::delete(sandboxes, record, Some("its host was lost after the create")).await?;
            Err(error)
        }
    }
}

#[async_trait]
impl Machines for Arc<Sandboxes> {
    async fn create(&self, owner: Owner, spec: MachineSpec, patience: WaitPolicy) -> Result<Machine> {
        let MachineSpec { workspace, request } = spec;
        let record = match patience {
            WaitPolicy::None => ops::create::create_owned(self, workspace, request, owner).await?,
            WaitPolicy::Long => ops::create::create_patiently(self, workspace, request, owner).await?,
        };
        opened(self, record).await
    }

    async fn open(&self, workspace: &WorkspaceId, id: &SandboxId) -> Result<Machine> {
        if let Some(why) = self.why_closed(workspace).await? {
            return Err(why.into());
        }
        let record = self.store.sandbox(Some(workspace), id).await?;
        ops::check_live(&record)?;
        Machine::of(self, record)
    }

    async fn owned_by(&self, owner: &Owner) -> Result<Vec<SandboxRecord>> {
        Ok(self.store.sandboxes(&Select::Owner(owner.clone())).await?)
    }

    async fn fork(&self, parent: &Machine, owner: Owner) -> Result<Machine> {
        let (record, client) = (parent.record.clone(), parent.client().clone());
        opened(self, ops::fork::fork_owned(self, record, client, owner).await?).await
    }

    async fn delete(&self, record: SandboxRecord, why: Option<&str>) -> Result<()> {
        ops::delete::delete(self, record, why).await
    }

    async fn find(&self, workspace: Option<&WorkspaceId>, id: &SandboxId) -> store::Result<SandboxRecord> {
        self.store.sandbox(workspace, id).await
    }

    fn sandbox(&self, workspace: &WorkspaceId, id: &SandboxId) -> UserSandbox {
        UserSandbox::new(self, workspace, id)
    }

    async fn run(
        &self,
        workspace: WorkspaceId,
        request: RunRequest,
        last_bytes: usize,
        gone: CancellationToken,
    ) -> Result<(SandboxId, ExecResult)> {
        ops::exec::run(self, workspace, request, last_bytes, gone).await
    }

    async fn lifecycle(&self, record: &SandboxRecord) -> Lifecycle {
        ops::lifecycle::show(self, record).await
    }

    async fn patch(&self, record: SandboxRecord, request: PatchLifecycle) -> Result<()> {
        ops::lifecycle::patch(self, record, request).await.map(drop)
    }

    async fn snapshot(&self, workspace: &WorkspaceId, id: &SnapshotId) -> store::Result<SnapshotRecord> {
        self.store.snapshot(workspace, id).await
    }

    async fn user_snapshot(&self, workspace: &WorkspaceId, id: &SnapshotId) -> Result<SnapshotRecord> {
        let snapshot = ops::snapshot::find(self, workspace, id).await?;
        ops::snapshot::check_unsealed(self, &snapshot).await?;
        Ok(snapshot)
    }

    async fn snapshots(&self, workspace: &WorkspaceId) -> Result<Vec<SnapshotRecord>> {
        Ok(self.store.snapshots(workspace, None).await?)
    }

    async fn remove_snapshot(&self, snapshot: &SnapshotRecord) -> Result<()> {
        ops::snapshot::remove(self, snapshot).await
    }

    fn is_reachable(&self, host: &HostId) -> bool {
        self.hosts.reachable(host)
    }

    fn events(&self) -> broadcast::Receiver<EventNotice> {
        self.events.subscribe()
    }
}
