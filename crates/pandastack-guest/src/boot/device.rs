//! Waits for devices through the kernel's announcements; there is no udev in the machine.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, VsockAddr, bind, listen,
    recv, socket,
};

/// The multicast group of kernel announcements.
const UEVENT_GROUP: u32 = 1;

/// The kernel's device announcements since [`DeviceEvents::listen`].
#[derive(Debug)]
pub(super) struct DeviceEvents {
    socket: OwnedFd,
}

impl DeviceEvents {
    pub(super) fn listen() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket =
            socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkKObjectUEvent)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, UEVENT_GROUP))?;
        Ok(Self { socket })
    }

    /// Searches now and after every device event until something is found.
    pub(super) fn wait_for<T>(&self, wait_max: Duration, look: impl Fn() -> Option<T>) -> io::Result<T> {
        let give_up = Instant::now() + wait_max;
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::new(
                    ErrorKind::TimedOut,
                    format!("it did not appear within {wait_max:?}"),
                ));
            }
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], timeout)?;
            self.drain();
        }
    }

    /// Discards pending announcements: only their arrival matters, not their content. An overrun
    /// also means that some arrived.
    fn drain(&self) {
        let mut message = [0_u8; 4096];
        while recv(self.socket.as_raw_fd(), &mut message, MsgFlags::empty()).is_ok() {}
    }
}

/// The device node of the virtio port with this name.
fn find_port(name: &str) -> Option<PathBuf> {
    let ports = std::fs::read_dir("/sys/class/virtio-ports").ok()?;
    let port = ports.flatten().find(|port| {
        std::fs::read_to_string(port.path().join("name"))
            .is_ok_and(|found| found.trim_end_matches(['\n', '\0']) == name)
    })?;
    let node = Path::new("/dev").join(port.file_name());
    node.exists().then_some(node)
}

/// The device for the channel to the host.
#[derive(Debug)]
pub(super) enum ChannelDevice {
    /// The node of a virtio port.
    Port(PathBuf),
    /// A vsock device.
    Vsock,
}

/// The channel device, once there is one. A machine has one or the other.
pub(super) fn find_channel(port_name: &str) -> Option<ChannelDevice> {
    find_port(port_name).map(ChannelDevice::Port).or_else(|| has_vsock().then_some(ChannelDevice::Vsock))
}

/// Returns whether the vsock driver has a device. The device node only shows that the driver is
/// loaded.
fn has_vsock() -> bool {
    let bound = std::fs::read_dir("/sys/bus/virtio/drivers/vmw_vsock_virtio_transport");
    bound
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| entry.file_name().as_encoded_bytes().starts_with(b"virtio"))
}

/// Listens for the host on vsock. The socket does not block.
pub(super) fn listen_on_vsock(port: u32) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    bind(listener.as_raw_fd(), &VsockAddr::new(libc::VMADDR_CID_ANY, port))?;
    // The newest connection replaces the one before it, so two may wait at a time.
    listen(&listener, Backlog::new(2)?)?;
    Ok(listener)
}

/// Opens the port for good; the kernel allows one opener.
pub(super) fn open_port(node: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(node)
}
