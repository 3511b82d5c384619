//! Taps: checks one from a caller, or creates an unconnected one.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::{EngineError, Result};

/// Device that creates taps.
pub const DEVICE: &str = "/dev/net/tun";
/// Ethernet frames, no packet information, virtio headers: the format that all engines' devices
/// expect.
const FLAGS: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

/// Checks that a descriptor is a tap with the flags that engines need, and returns its name.
pub fn check(tap: BorrowedFd<'_>) -> Result<String> {
    // SAFETY: an all-zero request is valid, and it is what the call fills in.
    let request = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        if libc::ioctl(tap.as_raw_fd(), libc::TUNGETIFF, &raw mut request) != 0 {
            return Err(EngineError::io("use the machine's tap", DEVICE)(io::Error::last_os_error()));
        }
        request
    };
    // SAFETY: the call above filled in the flags.
    let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    if flags & FLAGS == FLAGS {
        let name = request.ifr_name.iter().take_while(|byte| **byte != 0);
        return Ok(name.map(|byte| char::from(*byte as u8)).collect());
    }
    let detail = format!("it must be a tap with IFF_NO_PI and IFF_VNET_HDR, but its flags are {flags:#x}");
    Err(EngineError::Vmm { step: "using the machine's tap", detail })
}

/// The network namespace that a tap is in.
pub fn namespace(tap: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no argument and returns a new descriptor without another owner.
    unsafe {
        match libc::ioctl(tap.as_raw_fd(), libc::TUNGETDEVNETNS, 0) {
            fd if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Keeps a tap when its last descriptor is closed, and lets that user open it again by its name.
pub fn keep_for(tap: BorrowedFd<'_>, uid: u32) -> io::Result<()> {
    for (request, argument) in [(libc::TUNSETPERSIST, 1), (libc::TUNSETOWNER, libc::c_ulong::from(uid))] {
        // SAFETY: both calls take a plain number.
        if unsafe { libc::ioctl(tap.as_raw_fd(), request, argument) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Creates a tap in the calling thread's network namespace. `%d` in the name becomes a number.
pub fn create(name: &str) -> io::Result<OwnedFd> {
    let tap = OpenOptions::new().read(true).write(true).open(DEVICE)?;
    // SAFETY: an all-zero request is valid; the name stays NUL-terminated.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (place, byte) in request.ifr_name[..libc::IFNAMSIZ - 1].iter_mut().zip(name.bytes()) {
            *place = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = FLAGS as libc::c_short;
        if libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(tap.into())
}
