//! State that the machines of one engine share.

use std::path::PathBuf;

use pandastack_engine::{Confinement, Result};
use pandastack_qemu_shim::protocol::{Identity, Lockdown, PathText};
use tokio_util::task::TaskTracker;

use crate::accelerator::Accelerator;
use crate::filter::{self, Audience};
use crate::library::Library;
use crate::shared_namespaces::SharedNamespaces;

/// Shared by engine and machines.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) binary: PathBuf,
    pub(crate) accelerator: Accelerator,
    pub(crate) library: Library,
    pub(crate) namespaces: SharedNamespaces,
    /// Tasks that outlive a machine's handle: watchers of processes.
    pub(crate) tasks: TaskTracker,
    tenant_filter: Vec<u8>,
    zygote_filter: Vec<u8>,
}

impl Host {
    pub(crate) fn new(
        binary: PathBuf,
        accelerator: Accelerator,
        library: Library,
        namespaces: SharedNamespaces,
    ) -> Result<Self> {
        let kvm = accelerator.host_processor;
        Ok(Self {
            binary,
            accelerator,
            library,
            namespaces,
            tasks: TaskTracker::new(),
            tenant_filter: filter::build(Audience::Tenant, kvm)?,
            zygote_filter: filter::build(Audience::Zygote, kvm)?,
        })
    }

    /// The lockdown for a process that is not confined yet.
    pub(crate) fn lockdown(&self, confinement: Confinement) -> (Option<Identity>, Lockdown<'_>) {
        match confinement {
            Confinement::Full { uid, gid } => {
                let lockdown = Lockdown { root: self.library.empty_root, filter: &self.tenant_filter };
                (Some(Identity { uid, gid }), lockdown)
            }
            // A zygote keeps its root: it must be able to find the empty one for its children.
            Confinement::Zygote => (None, Lockdown { root: PathText::EMPTY, filter: &self.zygote_filter }),
        }
    }
}
