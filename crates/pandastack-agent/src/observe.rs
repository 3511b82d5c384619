//! Current resource usage of a sandbox, from host and guest.

use std::time::Duration;

use jiff::Timestamp;
use pandastack_guest_proto::client::GuestClient;
use pandastack_guest_proto::message::Stats;
use pandastack_types::SandboxState;
use pandastack_types::api::{GuestView, HostView, SandboxMetrics};

/// Timeout of a guest; guests that take longer are left out.
const GUEST_ANSWER_MAX: Duration = Duration::from_secs(5);

/// Facts that a driver knows without a call to its guest.
pub(crate) struct Observation {
    pub state: SandboxState,
    pub pid: Option<u32>,
    pub host: HostView,
    /// Client of the guest, if the machine runs.
    pub guest: Option<GuestClient>,
}

/// Adds the guest's view. If the guest does not respond, only the host's view is returned.
pub(crate) async fn metrics(observed: Observation) -> SandboxMetrics {
    let Observation { state, pid, host, guest } = observed;
    let guest = match guest {
        Some(guest) => match tokio::time::timeout(GUEST_ANSWER_MAX, guest.stats()).await {
            Ok(Ok(stats)) => Some(guest_view(&stats)),
            Ok(Err(_)) | Err(_) => None,
        },
        None => None,
    };
    // Refusals are counted where they are reported: control adds them.
    let (at, host_rss_bytes) = (Timestamp::now(), host.memory_bytes);
    SandboxMetrics { at, status: state, pid, host_rss_bytes, host, egress_denied: 0, guest }
}

fn guest_view(stats: &Stats) -> GuestView {
    let Stats { uptime_ms, cpu, memory, disk, processes_running, network } = *stats;
    let network = network.unwrap_or_default();
    GuestView {
        uptime_ms,
        cpu_count: cpu.count,
        cpu_user_ms: cpu.user_ms,
        cpu_system_ms: cpu.system_ms,
        load_1m: cpu.load_1m_milli as f64 / 1000.0,
        memory_total_bytes: memory.total_bytes,
        memory_used_bytes: memory.total_bytes.saturating_sub(memory.available_bytes),
        memory_cached_bytes: memory.cached_bytes,
        disk_total_bytes: disk.total_bytes,
        disk_used_bytes: disk.total_bytes.saturating_sub(disk.available_bytes),
        received_bytes: network.received_bytes,
        sent_bytes: network.sent_bytes,
        processes_running,
    }
}
