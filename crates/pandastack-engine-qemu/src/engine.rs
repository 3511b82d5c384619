//! The engine itself: probing the host once, then boot, restore, adopt.

use std::sync::Arc;

use async_trait::async_trait;
use pandastack_engine::{
    Boot, Capabilities, Engine, EngineError, KernelFormat, Machine, MachineRecord, Restore, Result,
    VolumeNaming,
};
use pandastack_qemu_shim::protocol::Request;
use tokio::net::UnixStream;

use crate::accelerator::Accelerator;
use crate::command_line::Origin;
use crate::config::QemuConfig;
use crate::endpoints::{self, Paths};
use crate::host::Host;
use crate::library::Library;
use crate::limits::COMMAND_MAX;
use crate::machine::{Details, QemuMachine};
use crate::probe;
use crate::qmp::Qmp;
use crate::shared_namespaces::SharedNamespaces;
use crate::shim_client;
use crate::start::{self, Start};
use crate::starvation;
use crate::tsc;
use pandastack_engine::process::Process;

/// Runs machines in QEMU processes.
#[derive(Debug)]
pub struct QemuEngine {
    host: Arc<Host>,
    capabilities: Capabilities,
}

impl QemuEngine {
    /// Probes the host and prepares the engine. Fails with [`EngineError::Unavailable`] where no machine
    /// could run; where machines run but cannot be forked, [`Capabilities::fork_reason`] says why. The
    /// first call on a host takes the time of a fork test, well under a second; its outcome is kept in
    /// [`QemuConfig::library_dir`].
    pub async fn probe(config: QemuConfig) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            let reason = "starting machines needs root: namespaces, users and taps are made for each; run the agent as root";
            return Err(EngineError::Unavailable(reason.to_owned()));
        }
        let emulator = probe::find_emulator(config.binary)?;
        let accelerator = if config.kvm_usable { Accelerator::KVM } else { Accelerator::TCG };
        let library = Library::install(&config.library_dir)?;
        let host =
            Arc::new(Host::new(emulator.binary.clone(), accelerator, library, SharedNamespaces::prepare()?)?);
        let fork_reason = probe::fork_obstacle(&host, &emulator).await;
        let capabilities = Capabilities {
            name: accelerator.name,
            version: emulator.number().to_owned(),
            isolation: accelerator.isolation,
            kernel_format: KernelFormat::Bzimage,
            fork: fork_reason.is_none(),
            fork_reason,
            volume_naming: VolumeNaming::Serial,
            read_only_volumes: true,
            keeps_guest_streams: true,
            spares: false,
            compatibility_key: probe::compatibility_key(&emulator.series(), &accelerator),
            earlier_keys: vec![probe::compatibility_key(&emulator.version, &accelerator)],
        };
        tracing::info!(engine = capabilities.name, version = %emulator.version, kvm = %config.kvm_reason,
            fork = capabilities.fork, "engine ready");
        Ok(Self { host, capabilities })
    }
}

#[async_trait]
impl Engine for QemuEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn boot(&self, boot: Boot) -> Result<Arc<dyn Machine>> {
        let Boot { shape, place, kernel, initrd, kernel_args, memory } = boot;
        let rate = tokio::task::spawn_blocking(tsc::kernel_arg).await.ok().flatten();
        let args = rate.into_iter().chain([kernel_args]).collect::<Vec<_>>().join(" ");
        let origin = Origin::Kernel { kernel: kernel.into(), initrd: initrd.into(), args };
        let start = Start { shape, place, memory, origin, state: None };
        Ok(start::start(self.host.clone(), start).await?)
    }

    async fn restore(&self, restore: Restore) -> Result<Arc<dyn Machine>> {
        let Restore { shape, place, state, memory } = restore;
        let start = Start { shape, place, memory, origin: Origin::State, state: Some(state) };
        Ok(start::start(self.host.clone(), start).await?)
    }

    async fn adopt(&self, record: MachineRecord) -> Result<Arc<dyn Machine>> {
        let details: Details = serde_json::from_value(record.engine.clone()).map_err(|error| {
            EngineError::Vmm { step: "reading the machine's record", detail: error.to_string() }
        })?;
        let process = Process::find(record.pid, record.pid_started_ticks, &self.host.tasks)?;
        let paths = Paths::new(&record.runtime_dir);
        // If the directory was reused, the socket may belong to another process by now.
        let (reply, _) = shim_client::request(
            &paths.shim(),
            "identifying the machine",
            &Request::Identify,
            &[],
            COMMAND_MAX,
        )
        .await?;
        if reply.pid != record.pid {
            let detail =
                format!("{} belongs to process {}, not {}", paths.shim().display(), reply.pid, record.pid);
            return Err(EngineError::Vmm { step: "identifying the machine", detail });
        }
        let stream = endpoints::connect(&paths.qmp()).and_then(UnixStream::from_std);
        let stream = stream.map_err(EngineError::io("connect to the emulator", paths.qmp()))?;
        let qmp = Qmp::connect(stream, COMMAND_MAX).await?;
        let events = qmp.subscribe();
        let status = qmp.command("query-status", serde_json::json!({})).await?;
        let starved = status.get("status").and_then(serde_json::Value::as_str) == Some(starvation::RUN_STATE);
        let starved = starvation::follow(events, starved, &self.host.tasks);
        Ok(QemuMachine::of_record(self.host.clone(), record, details, process, qmp, None, starved))
    }
}
