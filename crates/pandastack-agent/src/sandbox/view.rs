//! The description of a sandbox that control receives.

use pandastack_engine::Shape;
use pandastack_types::agent_api::{AgentSandbox, Usage};
use pandastack_types::{Residency, SandboxState};

use crate::host_resources::HostResources;
use crate::record::SandboxRecord;
use crate::running_machine::RunningMachine;

/// Adds a machine's usage since it started.
pub(super) fn add_usage(usage: &mut Usage, host: &HostResources, machine: &RunningMachine, shape: Shape) {
    usage.cpu_ms += machine.resources.cgroup().cpu_ms();
    let traffic = machine.resources.traffic(host);
    usage.sent_bytes += traffic.sent_bytes;
    usage.received_bytes += traffic.received_bytes;
    usage.memory_mb_seconds += machine.awake_since.elapsed().as_secs() * u64::from(shape.memory_mib);
}

/// The sandbox as control sees it.
pub(super) fn view_of(
    host: &HostResources,
    record: &SandboxRecord,
    live: Option<&RunningMachine>,
) -> AgentSandbox {
    let capabilities = host.engine.capabilities();
    let mut usage = record.usage;
    if let Some(live) = live {
        add_usage(&mut usage, host, live, record.shape);
    }
    AgentSandbox {
        id: record.spec.id.clone(),
        incarnation: record.spec.incarnation,
        state: record.state,
        residency: (record.state == SandboxState::Hibernated)
            .then_some(record.residency.unwrap_or(Residency::Disk)),
        template: record.template.clone(),
        cpu: u32::from(record.shape.vcpus),
        memory_mb: record.shape.memory_mib,
        guest_ip: live.and_then(|live| live.resources.guest_ip.clone()),
        engine: capabilities.name.to_owned(),
        isolation: capabilities.isolation.as_str().to_owned(),
        boot_mode: record.boot_mode.as_str().to_owned(),
        boot_ms: record.boot_ms,
        boot_stages_us: record.boot_stages_us.clone(),
        idle_seconds: 0,
        awake_until: record.awake_until,
        failure: record.failure.clone(),
        usage,
    }
}
