//! Work that takes bytes from the host step by step.

use pandastack_guest_proto::message::ErrorBody;

/// A consumer of the host's bytes, step by step. Dropping it before its end undoes its work if it
/// can.
pub(crate) trait Sink: Send {
    /// Takes bytes.
    fn write(&mut self, bytes: &[u8]) -> Result<(), ErrorBody>;
    /// All was received; returns how many bytes that were.
    fn finish(&mut self) -> Result<u64, ErrorBody>;
}
