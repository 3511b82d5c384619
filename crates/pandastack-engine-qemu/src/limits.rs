//! Time limits of steps and size limits of buffers.
//!
//! Limits are generous: they end waits that would never end, on hosts ten times slower than a quiet one. A caller with
//! a deadline of its own drops the future.

use std::time::Duration;

/// Longest time from the start of the process to its first answer. Emulators load dozens of
/// libraries; a busy host takes a second.
pub(crate) const START_MAX: Duration = Duration::from_secs(30);
/// One command without I/O of its own.
pub(crate) const COMMAND_MAX: Duration = Duration::from_secs(10);
/// Stopping the processors includes draining disk writes.
pub(crate) const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Writing or loading device state.
pub(crate) const STATE_MAX: Duration = Duration::from_secs(30);
/// Bringing the threads of a stopped machine to rest: 0.2 ms, unless the host has no processor time to give.
pub(crate) const PARK_MAX: Duration = Duration::from_secs(5);
/// A fork with all its children, beyond the park.
pub(crate) const FORK_MAX: Duration = Duration::from_secs(15);

/// Longest line of the control protocol.
pub(crate) const QMP_LINE_BYTES_MAX: usize = 1 << 20;
/// Events kept for a slow waiter; older ones are dropped.
pub(crate) const QMP_EVENTS_MAX: usize = 64;
/// Largest device state: a few hundred KiB in practice.
pub(crate) const STATE_BYTES_MAX: u64 = 256 << 20;
/// Open descriptors of an emulator: some twenty of its own, and those of a fork into many.
pub(crate) const DESCRIPTORS_MAX: u64 = 1_024;
