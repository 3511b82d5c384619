//! The guest program, built by `build.rs` and carried inside this one.

/// Static executable that becomes PID 1 of every machine.
pub(crate) const GUEST_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pandastack-guest"));
