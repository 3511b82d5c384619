//! The guest program, built by `build.rs` and embedded in this one.

/// The program that is PID 1 of every machine, for those that run it elsewhere: it is the function runtime too.
pub fn guest_program() -> &'static [u8] {
    GUEST_PROGRAM
}

/// Static executable that becomes PID 1 of every machine.
pub(crate) const GUEST_PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pandastack-guest"));
