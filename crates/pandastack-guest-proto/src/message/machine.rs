//! The machine as a whole.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The answer to a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// Time since the machine booted, on its own clock.
    pub uptime_ms: u64,
    /// User processes are frozen.
    #[serde(default)]
    pub frozen: bool,
}

/// A TCP port that something in the machine listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListeningPort {
    /// The port.
    pub port: u16,
    /// The address it is bound to.
    pub address: IpAddr,
}

/// Processor time since boot, summed over processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuStats {
    /// Processors.
    pub count: u32,
    /// In user code.
    pub user_ms: u64,
    /// In the kernel.
    pub system_ms: u64,
    /// Waiting for work, or for a disk.
    pub idle_ms: u64,
    /// Runnable tasks averaged over a minute, in thousandths.
    pub load_1m_milli: u64,
}

/// Memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStats {
    /// All of it.
    pub total_bytes: u64,
    /// Bytes available to a new program without swapping.
    pub available_bytes: u64,
    /// File pages.
    pub cached_bytes: u64,
}

/// The root file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStats {
    /// Size.
    pub total_bytes: u64,
    /// Free for programs.
    pub available_bytes: u64,
    /// Inodes.
    pub inodes_total: u64,
    /// Free inodes.
    pub inodes_available: u64,
}

/// Traffic since boot, summed over interfaces but the loopback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStats {
    /// Received bytes.
    pub received_bytes: u64,
    /// Sent bytes.
    pub sent_bytes: u64,
}

/// The guest's own view of its usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Time since boot.
    pub uptime_ms: u64,
    /// Processors.
    pub cpu: CpuStats,
    /// Memory.
    pub memory: MemoryStats,
    /// Root file system.
    pub disk: DiskStats,
    /// Processes that the guest keeps and that still run.
    pub processes_running: u32,
    /// Traffic; absent from older guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
}
