//! The kernel's random generator.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;

use pandastack_guest_proto::limits::ENTROPY_BYTES_MAX;

nix::ioctl_write_ptr!(rnd_add_entropy, b'R', 0x03, [libc::c_int; 2]);
nix::ioctl_none!(rnd_reseed_crng, b'R', 0x07);

/// The kernel's `struct rand_pool_info`.
#[repr(C)]
struct RandPoolInfo {
    entropy_bits: libc::c_int,
    buffer_bytes: libc::c_int,
    buffer: [u8; ENTROPY_BYTES_MAX],
}

/// Mixes fresh bytes in, then makes the generator use them at once: without the second step it would
/// continue with the key that every copy of this machine shares until its next scheduled reseed.
pub(super) fn reseed(bytes: &[u8]) -> io::Result<()> {
    let mut info = RandPoolInfo { entropy_bits: 0, buffer_bytes: 0, buffer: [0; ENTROPY_BYTES_MAX] };
    let length = bytes.len().min(ENTROPY_BYTES_MAX);
    info.buffer.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    info.buffer_bytes = libc::c_int::try_from(length).unwrap_or(0);
    info.entropy_bits = info.buffer_bytes * 8;
    let device = OpenOptions::new().write(true).open("/dev/urandom")?;
    // SAFETY: the kernel reads the two lengths and then that many bytes after them, all inside
    // `info`.
    unsafe { rnd_add_entropy(device.as_raw_fd(), (&raw const info).cast()) }?;
    // SAFETY: takes no argument.
    unsafe { rnd_reseed_crng(device.as_raw_fd()) }?;
    Ok(())
}
