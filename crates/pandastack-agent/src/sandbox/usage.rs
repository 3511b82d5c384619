//! Resource usage of a sandbox, as seen from its host.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use pandastack_types::SandboxState;
use pandastack_types::api::HostView;

use super::driver::Driver;
use super::view::add_usage;
use crate::layout::machine as names;
use crate::observe::Observation;

impl Driver {
    /// Adds the machine's usage before it ends or sleeps.
    pub(super) fn settle_usage(&mut self) {
        if let Some(live) = &self.live {
            add_usage(&mut self.record.usage, &self.host, live, self.record.shape);
        }
    }

    /// The sandbox's resource usage, without asking its guest.
    pub(super) fn observe(&mut self) -> Observation {
        let usage = self.describe().usage;
        let shape = self.record.shape;
        let since = match &self.live {
            Some(live) => self.cpu_seen.unwrap_or((live.awake_since, self.record.usage.cpu_ms)),
            None => (Instant::now(), usage.cpu_ms),
        };
        self.cpu_seen = self.live.is_some().then(|| (Instant::now(), usage.cpu_ms));
        let disk = self.host.layout.machine(&self.record.spec.id).join(names::DISK);
        let host = HostView {
            cpu_count: shape.vcpus.into(),
            cpu_ms: usage.cpu_ms,
            cpu_used_percent: percent(usage.cpu_ms.saturating_sub(since.1), since.0.elapsed(), shape.vcpus),
            memory_bytes: self.live.as_ref().map_or(0, |live| live.resources.cgroup().memory_bytes()),
            memory_limit_bytes: shape.memory_bytes(),
            disk_bytes: std::fs::metadata(disk).map_or(0, |meta| meta.blocks() * 512),
            sent_bytes: usage.sent_bytes,
            received_bytes: usage.received_bytes,
        };
        let running = self.record.state == SandboxState::Running;
        let guest = self.live.as_ref().and_then(|live| live.guest.clone()).filter(|_| running);
        let pid = self.live.as_ref().and_then(|live| live.resources.cgroup().pid());
        Observation { state: self.record.state, pid, host, guest }
    }
}

/// Share of `cpus` that `used_ms` is of a time, with one decimal.
fn percent(used_ms: u64, time: Duration, cpus: u8) -> f64 {
    let available = time.as_secs_f64() * 1000.0 * f64::from(cpus);
    if available < 1.0 { 0.0 } else { (used_ms as f64 / available * 1000.0).round() / 10.0 }
}
