//! From the kernel's first user instruction to a served channel.
//!
//! ```text
//! early mounts -> modules -> root disk -> switch root -> cgroups, network -> channel -> serve
//! ```
//!
//! Kernel arguments carry all configuration (`cmdline.rs`); waiting is done on kernel events, with
//! a deadline.

mod cmdline;
mod device;
mod modules;
mod mounts;
mod network;
mod quiet;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use pandastack_guest_proto::{PORT_NAME, VSOCK_PORT};

use crate::channel::Channel;
use crate::console::log;
use crate::environment::GuestEnvironment;
use crate::poller::Poller;
use crate::power;
use crate::process::UserCgroup;
use crate::protect;
use crate::server::Server;
use cmdline::BootArguments;
use device::{ChannelDevice, DeviceEvents};

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Longest time for a device to appear.
const DEVICE_WAIT_MAX: Duration = Duration::from_secs(30);
/// Processes and threads reserved for the guest program.
const PIDS_RESERVED: u64 = 256;

/// A step of the boot that failed.
#[derive(Debug)]
struct BootError {
    step: &'static str,
    error: io::Error,
}

impl std::fmt::Display for BootError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot {}: {}", self.step, self.error)
    }
}

impl std::error::Error for BootError {}

trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, BootError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, BootError> {
        self.map_err(|error| BootError { step, error: error.into() })
    }
}

/// Boots and serves. Returns only if even powering off does not work.
pub(crate) fn run() -> ExitCode {
    if let Err(error) = boot_and_serve() {
        log(&format!("{error}; the machine goes off"));
    }
    power::halt()
}

fn boot_and_serve() -> Result<(), BootError> {
    mounts::mount_early().step("mount /proc, /sys and /dev")?;
    log("started");
    let arguments = BootArguments::parse(&std::fs::read_to_string("/proc/cmdline").unwrap_or_default());
    let events = DeviceEvents::listen().step("listen to device events")?;
    modules::load_listed(Path::new("/lib/pandastack/modules")).step("load drivers")?;
    log("drivers loaded");
    events
        .wait_for(DEVICE_WAIT_MAX, || Path::new("/dev/vda").exists().then_some(()))
        .step("find the root disk /dev/vda")?;
    mounts::switch_to_root("/dev/vda", &arguments.root_options).step("mount the root disk /dev/vda")?;
    log("root disk mounted");
    prepare_machine(&arguments)?;
    let found = events.wait_for(DEVICE_WAIT_MAX, || device::find_channel(PORT_NAME));
    let device = found.step("find a virtio port or a vsock device")?;
    drop(events);
    serve(&device)
}

fn prepare_machine(arguments: &BootArguments) -> Result<(), BootError> {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    protect::raise_machine();
    quiet::settle();
    mounts::mount_late().step("mount /dev/pts, /dev/shm, /run, /tmp and cgroups")?;
    std::fs::create_dir_all("/run/pandastack").step("make /run/pandastack")?;
    let hostname = std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    let hostname = hostname.trim();
    // A first name until the identity sets the real one.
    let _ = nix::unistd::sethostname(if hostname.is_empty() { "pandastack" } else { hostname });
    network::configure(arguments.network.as_ref()).step("configure the network")?;
    Ok(())
}

fn serve(device: &ChannelDevice) -> Result<(), BootError> {
    let cgroup =
        UserCgroup::create(Path::new(CGROUP_ROOT)).step("make the control group of user processes")?;
    reserve_pids(&cgroup);
    let poller = Poller::new().step("make a poller")?;
    let channel = match device {
        ChannelDevice::Port(node) => device::open_port(node).and_then(|port| Channel::port(port, &poller)),
        ChannelDevice::Vsock => {
            device::listen_on_vsock(VSOCK_PORT).and_then(|listener| Channel::socket(listener, &poller))
        }
    };
    let channel = channel.step("open the channel to the host")?;
    let environment =
        GuestEnvironment { root: PathBuf::from("/"), is_machine: true, cgroup: Some(cgroup.clone()) };
    let mut server = Server::new(poller, channel, environment).step("set up the event loop")?;
    log("serving");
    let shutdown = server.run().step("serve")?;
    power::power_off(shutdown, Some(&cgroup));
    Ok(())
}

/// Without the limit a fork bomb would keep the guest program from starting threads; with it the tenant's own
/// processes fail to fork first.
fn reserve_pids(cgroup: &UserCgroup) {
    let threads_max = std::fs::read_to_string("/proc/sys/kernel/threads-max")
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let pids_max =
        std::fs::read_to_string("/proc/sys/kernel/pid_max").ok().and_then(|text| text.trim().parse().ok());
    let limit: u64 = threads_max.unwrap_or(u64::MAX).min(pids_max.unwrap_or(u64::MAX));
    if let Err(error) =
        cgroup.limit_pids(Path::new(CGROUP_ROOT), limit.saturating_sub(PIDS_RESERVED).max(PIDS_RESERVED))
    {
        log(&format!("process limit not set: {error}"));
    }
}
