//! Machines for services: the narrow interface with which a service creates, finds and deletes its
//! machines.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pandastack_store::{SandboxRecord, Select};
use pandastack_types::api::CreateSandbox;
use pandastack_types::{Owner, Result, SandboxId, WorkspaceId};

use crate::machine::Machine;
use crate::{Sandboxes, ops};

/// The specification of a machine.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    /// Workspace whose quota the machine counts against.
    pub workspace: WorkspaceId,
    /// Template or snapshot, size, lifetime, variables.
    pub request: CreateSandbox,
}

/// What to do when a template is being built or no host has capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Fail; somebody waits for the answer.
    None,
    /// Retry, up to [`WaitPolicy::MAX`].
    Long,
}

impl WaitPolicy {
    /// How long a patient service waits: building a template takes a minute on an emulated host,
    /// and may have to wait for others.
    pub const MAX: Duration = Duration::from_secs(600);
}

/// Machines of services.
#[async_trait]
pub trait Machines: Send + Sync {
    /// Makes a machine that belongs to `owner` from its first moment on. Runs to its end even if
    /// the caller is dropped.
    async fn create(&self, owner: Owner, spec: MachineSpec, patience: WaitPolicy) -> Result<Machine>;

    /// Opens a machine of a workspace that has not failed and is not being deleted, also a sealed one.
    /// Refuses machines of a suspended workspace.
    async fn open(&self, workspace: &WorkspaceId, id: &SandboxId) -> Result<Machine>;

    /// The records of all machines of an owner, whatever their state.
    async fn owned_by(&self, owner: &Owner) -> Result<Vec<SandboxRecord>>;

    /// Forks a machine into one for another owner. Runs to its end even if the caller is dropped.
    async fn fork(&self, parent: &Machine, owner: Owner) -> Result<Machine>;

    /// Deletes a machine, or records that it is to be deleted. Runs to its end even if the caller is dropped.
    async fn delete(&self, record: SandboxRecord, why: &str) -> Result<()>;
}

#[async_trait]
impl Machines for Arc<Sandboxes> {
    async fn create(&self, owner: Owner, spec: MachineSpec, patience: WaitPolicy) -> Result<Machine> {
        let MachineSpec { workspace, request } = spec;
        let record = match patience {
            WaitPolicy::None => ops::create::create_owned(self, workspace, request, owner).await?,
            WaitPolicy::Long => ops::create::create_patiently(self, workspace, request, owner).await?,
        };
        Machine::of(self, record)
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
        Machine::of(self, ops::fork::fork_owned(self, record, client, owner).await?)
    }

    async fn delete(&self, record: SandboxRecord, why: &str) -> Result<()> {
        ops::delete::delete(self, record, Some(why)).await
    }
}
