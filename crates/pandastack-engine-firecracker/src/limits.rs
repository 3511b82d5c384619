//! Deadlines and sizes.
//!
//! Deadlines only end waits that would never end, so they allow for hosts ten times slower than a
//! quiet one. A caller with a deadline of its own drops the future.

use std::time::Duration;

/// From the start of the process to its API socket.
pub(crate) const START_MAX: Duration = Duration::from_secs(30);
/// One call without I/O of its own.
pub(crate) const COMMAND_MAX: Duration = Duration::from_secs(10);
/// Loading a kernel and an initial ramdisk into guest memory.
pub(crate) const BOOT_MAX: Duration = Duration::from_secs(60);
/// Stopping the processors.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Writing a snapshot. Firecracker syncs both files before it answers, so this covers writing all
/// of guest memory to disk.
pub(crate) const SNAPSHOT_MAX: Duration = Duration::from_secs(600);
/// Loading a snapshot; memory is mapped, not read.
pub(crate) const LOAD_MAX: Duration = Duration::from_secs(60);
/// Time to wait for the exit of a process after its API connection broke.
pub(crate) const END_NOTICE_MAX: Duration = Duration::from_secs(2);
/// One attempt to connect to the guest program over vsock. Firecracker gives the guest two seconds
/// to accept.
pub(crate) const DIAL_MAX: Duration = Duration::from_secs(5);
/// Pause between attempts while the guest program does not listen yet.
pub(crate) const DIAL_PAUSE: Duration = Duration::from_millis(20);

/// Largest answer of the API.
pub(crate) const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Open descriptors of a process: about thirty, plus up to 1,023 vsock connections.
pub(crate) const DESCRIPTORS_MAX: u64 = 2_048;
/// Size of a jail's tmpfs. It holds the program, about 3 MB; files that grow are mounts of host files.
pub(crate) const ROOT_BYTES_MAX: u64 = 64 << 20;
/// Serial output per second. Firecracker drops the excess.
pub(crate) const SERIAL_BYTES_PER_SECOND: u64 = 1 << 20;
/// One-time burst of serial output, for boot messages.
pub(crate) const SERIAL_BURST_BYTES: u64 = 4 << 20;
