//! The tap device: a guest's network card as a file descriptor.
//!
//! Made persistent, so that it outlives the machine's process and a second machine (after a wake) finds it as it was.
//! Its header size and offloads are set here, not by the virtual machine monitor alone: a forked machine inherits a
//! device that believes they are already set.
//!
//! The only unsafe code of this crate: the ioctls of `linux/if_tun.h`.

#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::error::{NetError, Result};

/// Clone device that turns into a tap.
pub(crate) const TUN_DEVICE: &str = "/dev/net/tun";

/// Bytes of the virtio header before every frame: the size that a virtio 1.0 driver negotiates.
pub const TAP_VNET_HEADER_BYTES: u32 = 12;

/// Offloads that Linux's driver accepts from a card: unfinished checksums and large TCP and UDP
/// segments (`TUN_F_CSUM`, `TSO4`, `TSO6`, `TSO_ECN`, `UFO`).
pub const TAP_OFFLOADS: u32 = 0x01 | 0x02 | 0x04 | 0x08 | 0x10;

nix::ioctl_write_int!(tun_set_persist, b'T', 203);
nix::ioctl_write_int!(tun_set_offload, b'T', 208);
nix::ioctl_write_ptr!(tun_set_header_bytes, b'T', 216, libc::c_int);

/// `TUNSETIFF` is declared with the size of an int but takes a pointer to `struct ifreq`.
const TUNSETIFF: libc::Ioctl = nix::request_code_write!(b'T', 202, size_of::<libc::c_int>()) as libc::Ioctl;

/// Opens the tap of that name in the calling thread's namespace, creating it if it does not exist.
pub(crate) fn open(name: &str) -> Result<OwnedFd> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        // Every user of a tap waits for frames elsewhere; QEMU sets this again itself.
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(TUN_DEVICE)
        .map_err(NetError::io("opening (load the tun module; run as root)", TUN_DEVICE))?;
    let fd = OwnedFd::from(file);
    attach(&fd, name).map_err(NetError::io("attaching to tap", name))?;
    configure(&fd).map_err(NetError::io("configuring tap", name))?;
    Ok(fd)
}

fn attach(fd: &OwnedFd, name: &str) -> io::Result<()> {
    // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: `fd` is open for the call, TUNSETIFF reads and writes one `ifreq`, and `request`
    // lives until the call returns.
    let outcome = unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn configure(fd: &OwnedFd) -> io::Result<()> {
    let raw = fd.as_raw_fd();
    let header_bytes = TAP_VNET_HEADER_BYTES as libc::c_int;
    // SAFETY: `raw` is open for the call; the argument is a plain number, not a pointer.
    unsafe { tun_set_persist(raw, 1) }?;
    // SAFETY: as above, and the kernel reads one int from the pointer, which outlives the call.
    unsafe { tun_set_header_bytes(raw, &raw const header_bytes) }?;
    // SAFETY: as for persist.
    unsafe { tun_set_offload(raw, libc::c_ulong::from(TAP_OFFLOADS)) }?;
    Ok(())
}
