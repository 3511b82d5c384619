//! Settings of an agent.

use std::net::SocketAddr;
use std::path::PathBuf;

use pandastack_types::HostId;
use pandastack_types::guests::GuestSettings;
use pandastack_types::network::{Cidr, Mail};

use crate::link::LinkCredentials;

/// The address on which an agent listens for control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket, for one box.
    Unix(PathBuf),
    /// An address that control can reach from another machine.
    Tcp(SocketAddr),
}

/// The configured engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// The best that this host can run: Firecracker, else QEMU with KVM, else QEMU with emulation.
    #[default]
    Auto,
    /// Firecracker, which needs KVM.
    Firecracker,
    /// QEMU, with KVM where a probe that executes instructions passes.
    Qemu,
    /// QEMU with emulation, also where KVM works.
    Emulated,
}

/// Configuration of one agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Id of this host.
    pub host: HostId,
    /// Machines, snapshots and templates live below it.
    pub data_dir: PathBuf,
    /// Sockets live below it; kept short, see `RUNTIME_DIR_BYTES_MAX` of the engine crate.
    pub runtime_dir: PathBuf,
    /// Built images and kernels, shared by every agent of the box.
    pub cache_dir: PathBuf,
    /// Address at which this agent listens for control.
    pub listen: Listen,
    /// Address and port at which control reaches it, where that differs.
    pub advertise: Option<String>,
    /// User and group of control, which may use the socket; `None` for this process's own.
    pub socket_owner: Option<(u32, u32)>,
    /// Address at which this agent reaches control: `unix:/path`, or `https://address:port` with a
    /// certificate.
    pub control: String,
    /// Time that an idle sandbox stays stopped in memory before it is written to disk; zero writes
    /// it at once.
    pub light_sleep: std::time::Duration,
    /// Proof of this host's identity.
    pub link: LinkCredentials,
    /// Engine.
    pub engine: EngineChoice,
    /// Network of this host's slots, such as `10.201.0.0/16`.
    pub subnet: String,
    /// Prefix of the host's interface and namespace names; two agents on one box need two.
    pub net_prefix: String,
    /// Name server that guests' queries are passed on to; `None` takes the host's own.
    pub resolver: Option<SocketAddr>,
    /// Private networks that policies may open: the operator's limit over all of them.
    pub reachable_private: Vec<Cidr>,
    /// Certificates, mirrors and addresses for all guests.
    pub guests: GuestSettings,
    /// Access to outbound mail ports.
    pub mail: Mail,
    /// Connections that one sandbox may have to the outside.
    pub connections_max: u32,
    /// Connections that one sandbox may begin in a minute; `None` for no limit.
    pub connections_per_minute: Option<u32>,
    /// Different addresses that one sandbox may connect to in a minute; `None` for no limit.
    pub destinations_per_minute: Option<u32>,
    /// Megabits a second that one sandbox may send, and receive; `None` for no limit.
    pub bandwidth_mbit: Option<u32>,
    /// Percent of a processor that a sandbox may use for each one it has; `None` for all of them and one more.
    pub cpu_percent: Option<u32>,
    /// Slots kept ready.
    pub slots_ready: usize,
    /// Memory that may be promised to sandboxes; `None` leaves 1 GiB to the host.
    pub memory_limit_mb: Option<u64>,
    /// Percent of a sandbox's memory that is promised to it when it is made; it may write all of it.
    /// `None` depends on whether there are several workspaces.
    pub memory_promised_percent: Option<u32>,
    /// Keep a zygote per template in use. Without, every create restores the snapshot: slower, but no memory is held.
    pub zygotes: bool,
    /// Templates to make ready when the agent starts.
    pub warm_templates: Vec<String>,
    /// Program that hosts the KVM probe's child: this very program, as a rule.
    pub probe_program: PathBuf,
}
