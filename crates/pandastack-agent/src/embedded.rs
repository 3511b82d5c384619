//! The guest program, built by `build.rs` and embedded in this one.

/// The guest program, which is PID 1 of every machine. Callers also run it elsewhere, as the
/// function runtime.
pub fn guest_program() -> &'static [u8] {
    GUEST_PROGRAM
}

/// Static executable that becomes PID 1 of every machine.
pub(crate) const GUEST_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pandastack-guest"));
