//! Bodies of the API's requests and answers. Firecracker refuses fields that it does not know.

use serde::{Deserialize, Serialize};

/// `GET /`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Instance {
    /// Given on the command line.
    pub id: String,
    /// State of the machine.
    pub state: InstanceState,
    /// Version of the program.
    pub vmm_version: String,
}

/// State of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum InstanceState {
    /// Being configured.
    #[serde(rename = "Not started")]
    NotStarted,
    /// Processors stopped.
    Paused,
    /// Processors running.
    Running,
}

/// `PUT /logger`. Without a path, the destination of messages is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Logger {
    /// Least severity that is logged.
    pub level: &'static str,
}

/// `PUT /metrics`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// Existing file; one line of JSON is written each minute.
    pub metrics_path: String,
}

/// `PUT /serial`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Serial {
    /// File for serial output. With one, serial input is off.
    pub serial_out_path: String,
    /// Most output; the rest is lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<TokenBucket>,
}

/// Tokens that refill over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenBucket {
    /// Tokens in a full bucket.
    pub size: u64,
    /// Milliseconds until an empty bucket is full.
    pub refill_time: u64,
    /// Tokens on top, once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_time_burst: Option<u64>,
}

/// Limits of a disk or of one direction of a network interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimiter {
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<TokenBucket>,
    /// In operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<TokenBucket>,
}

/// `PUT /machine-config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MachineConfig {
    /// Virtual processors.
    pub vcpu_count: u8,
    /// Guest memory.
    pub mem_size_mib: u32,
    /// Hyper-threading of the guest.
    pub smt: bool,
    /// Whether snapshots can be differences. Not kept in a snapshot: given again when one is loaded.
    pub track_dirty_pages: bool,
}

/// `PUT /boot-source`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BootSource {
    /// Uncompressed ELF image.
    pub kernel_image_path: String,
    /// Initial ramdisk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initrd_path: Option<String>,
    /// Kernel command line.
    pub boot_args: String,
}

/// Handling of a guest's disk flushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CacheType {
    /// Flushes are ignored: a guest's writes survive its machine, not its host.
    Unsafe,
    /// Yes.
    Writeback,
}

/// `PUT /drives/{drive_id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drive {
    /// Name.
    pub drive_id: String,
    /// Raw image. The path goes into snapshots.
    pub path_on_host: String,
    /// Adds `root=` to the kernel command line.
    pub is_root_device: bool,
    /// Whether the disk is read-only for the guest.
    pub is_read_only: bool,
    /// Flushes.
    pub cache_type: CacheType,
    /// `Sync` or `Async`.
    pub io_engine: &'static str,
    /// Limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
}

/// `PATCH /drives/{drive_id}`: opens the image again, and tells the guest its size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriveUpdate {
    /// Name.
    pub drive_id: String,
    /// Raw image.
    pub path_on_host: String,
}

/// `PUT /network-interfaces/{iface_id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NetworkInterface {
    /// Name.
    pub iface_id: String,
    /// Tap in the network namespace of the process.
    pub host_dev_name: String,
    /// Hardware address that the guest sees.
    pub guest_mac: String,
    /// Limits of what the guest receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_rate_limiter: Option<RateLimiter>,
    /// Limits of what it sends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_rate_limiter: Option<RateLimiter>,
}

/// `PUT /vsock`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vsock {
    /// The guest's address.
    pub guest_cid: u32,
    /// Socket that leads to the guest's ports.
    pub uds_path: String,
}

/// `PUT /entropy`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entropy {}

/// `PUT /actions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Action {
    /// The action.
    pub action_type: ActionType,
}

/// Action on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ActionType {
    /// Runs the configured machine.
    InstanceStart,
    /// Writes metrics now.
    FlushMetrics,
}

/// `PATCH /vm`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VmUpdate {
    /// State to change to.
    pub state: VmState,
}

/// States that a started machine can be put in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum VmState {
    /// Processors stopped.
    Paused,
    /// Processors running.
    Resumed,
}

/// Contents of a snapshot's memory file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum SnapshotType {
    /// All memory.
    Full,
    /// Pages written since the last snapshot, the load or the start; in place, if the file has the
    /// size of memory.
    Diff,
}

/// `PUT /snapshot/create`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotCreate {
    /// All memory or a difference.
    pub snapshot_type: SnapshotType,
    /// Device state.
    pub snapshot_path: String,
    /// Memory.
    pub mem_file_path: String,
}

/// Source of a loaded machine's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryBackend {
    /// `File`: mapped privately, read on demand.
    pub backend_type: &'static str,
    /// The file.
    pub backend_path: String,
}

/// Another tap than the one in the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NetworkOverride {
    /// The interface.
    pub iface_id: String,
    /// Tap on this host.
    pub host_dev_name: String,
}

/// `PUT /snapshot/load`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotLoad {
    /// Device state.
    pub snapshot_path: String,
    /// Memory.
    pub mem_backend: MemoryBackend,
    /// Whether snapshots of the loaded machine can be differences.
    pub track_dirty_pages: bool,
    /// Whether the machine runs at once.
    pub resume_vm: bool,
    /// Taps that have other names here.
    pub network_overrides: Vec<NetworkOverride>,
}
