//! Work whose results are sent to the host step by step.

use pandastack_guest_proto::message::{ErrorBody, Event};

/// One step of a transfer to the host.
#[derive(Debug)]
pub(crate) enum Step {
    /// Raw bytes.
    Data(Vec<u8>),
    /// A message.
    Event(Event),
    /// No data yet: the step only did work, and more follows.
    Idle,
    /// All was sent.
    End,
}

/// A producer of data for the host, step by step.
pub(crate) trait Source: Send {
    /// The next step; data is at most `bytes_max` long.
    fn next(&mut self, bytes_max: usize) -> Result<Step, ErrorBody>;
}
