//! Taps: checking the one a caller gives, making one that leads nowhere for a machine without network.
//!
//! Every machine has a network device with a tap behind it, since a snapshot restores only into the same devices.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use pandastack_engine::{EngineError, Result};

use crate::surroundings::Surroundings;

const DEVICE: &str = "/dev/net/tun";
/// Ethernet frames, no packet information, virtio headers: what the emulator's device expects.
const FLAGS: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
/// `TUNGETIFF`, missing in the C bindings.
const TUNGETIFF: libc::c_ulong = 0x8004_54d2;

/// The tap of a machine: the caller's if it fits, else one in an empty network.
pub(crate) fn prepare(given: Option<OwnedFd>, surroundings: &Surroundings) -> Result<OwnedFd> {
    match given {
        Some(tap) => check(tap),
        None => surroundings
            .in_network(open_unconnected)
            .map_err(EngineError::io("make a tap that leads nowhere", DEVICE)),
    }
}

fn check(tap: OwnedFd) -> Result<OwnedFd> {
    // SAFETY: an all-zero request is valid, and it is what the call fills in.
    let flags = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        if libc::ioctl(tap.as_raw_fd(), TUNGETIFF, &raw mut request) != 0 {
            return Err(EngineError::io("use the machine's tap", DEVICE)(io::Error::last_os_error()));
        }
        libc::c_int::from(request.ifr_ifru.ifru_flags)
    };
    if flags & FLAGS == FLAGS {
        return Ok(tap);
    }
    let detail = format!("it must be a tap with IFF_NO_PI and IFF_VNET_HDR, but its flags are {flags:#x}");
    Err(EngineError::Vmm { step: "using the machine's tap", detail })
}

fn open_unconnected() -> io::Result<OwnedFd> {
    let tap = OpenOptions::new().read(true).write(true).open(DEVICE)?;
    // SAFETY: an all-zero request is valid; the name stays NUL-terminated.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (place, byte) in request.ifr_name.iter_mut().zip(b"nowhere%d") {
            *place = *byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = FLAGS as libc::c_short;
        if libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(tap.into())
}
