//! The engine: probe the host once, then boot, restore and adopt machines.

use std::sync::Arc;

use async_trait::async_trait;
use pandastack_engine::process::Process;
use pandastack_engine::{
    Boot, Capabilities, Engine, EngineError, Isolation, KernelFormat, Machine, MachineRecord, Restore,
    Result, Spare, SpareFiles, VolumeNaming, completion,
};
use tokio_util::task::TaskTracker;

use crate::config::{FirecrackerConfig, Launcher};
use crate::empty::EmptyProcess;
use crate::machine::{Details, FirecrackerMachine};
use crate::probe::{self, Programs};
use crate::root::blocking;
use crate::start::{self, Origin, Start};
use crate::version::Version;

/// State that the machines of one engine share.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) programs: Programs,
    pub(crate) version: Version,
    pub(crate) launcher: Launcher,
    /// Tasks that may outlive a machine's handle, such as process watchers.
    pub(crate) tasks: TaskTracker,
}

/// Runs machines in Firecracker processes.
#[derive(Debug)]
pub struct FirecrackerEngine {
    host: Arc<Host>,
    capabilities: Capabilities,
}

impl FirecrackerEngine {
    /// Probes the host and prepares the engine. Fails with [`EngineError::Unavailable`] where no machine
    /// could run. The caller must check whether KVM really runs guests.
    pub async fn probe(config: FirecrackerConfig) -> Result<Self> {
        if config.launcher == Launcher::Jailer && !rustix::process::geteuid().is_root() {
            let reason = "jailing machines needs root: users, namespaces and device files are made for each; \
                          run the agent as root";
            return Err(EngineError::Unavailable(reason.to_owned()));
        }
        let FirecrackerConfig { launcher, kvm_reason, .. } = config.clone();
        let found = blocking("looking for Firecracker", move || probe::find(&config)).await?;
        let capabilities = Capabilities {
            name: "firecracker",
            version: found.version.to_string(),
            isolation: Isolation::Hardware,
            kernel_format: KernelFormat::Elf,
            fork: false,
            fork_reason: Some("machines run on KVM, whose descriptors belong to one process".to_owned()),
            // Firecracker assigns its own serial numbers to devices.
            volume_naming: VolumeNaming::Order,
            read_only_volumes: false,
            keeps_guest_streams: false,
            spares: true,
            compatibility_key: found.compatibility_key,
            earlier_keys: Vec::new(),
        };
        tracing::info!(engine = capabilities.name, version = %found.version, kvm = kvm_reason,
            ?launcher, "engine ready");
        let (programs, version) = (found.programs, found.version);
        let host = Arc::new(Host { programs, version, launcher, tasks: TaskTracker::new() });
        Ok(Self { host, capabilities })
    }
}

#[async_trait]
impl Engine for FirecrackerEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn boot(&self, boot: Boot) -> Result<Arc<dyn Machine>> {
        let Boot { shape, place, kernel, initrd, kernel_args, memory } = boot;
        let origin = Origin::Kernel { kernel, initrd, args: kernel_args };
        Ok(start::start(self.host.clone(), Start { shape, place, memory, origin }).await?)
    }

    async fn restore(&self, restore: Restore) -> Result<Arc<dyn Machine>> {
        let Restore { shape, place, state, memory } = restore;
        let origin = Origin::State(state);
        Ok(start::start(self.host.clone(), Start { shape, place, memory, origin }).await?)
    }

    async fn spare(&self, files: SpareFiles) -> Result<Spare> {
        let (host, tasks) = (self.host.clone(), &self.host.tasks);
        let start = async move {
            let SpareFiles { runtime_dir, tap, confinement } = files;
            EmptyProcess::start(&host, &runtime_dir, Some(tap), confinement).await
        };
        // No receiver: the process ends when it is dropped.
        let undo = |process: EmptyProcess| async move { drop(process) };
        completion::run(tasks, "starting a process ahead", start, undo).await.map(Spare::new)
    }

    async fn adopt(&self, record: MachineRecord) -> Result<Arc<dyn Machine>> {
        let details: Details = serde_json::from_value(record.engine.clone()).map_err(|error| {
            EngineError::Vmm { step: "reading the machine's record", detail: error.to_string() }
        })?;
        let process = Process::find(record.pid, record.pid_started_ticks, &self.host.tasks)?;
        Ok(FirecrackerMachine::adopt(self.host.clone(), record, details, process).await?)
    }
}
