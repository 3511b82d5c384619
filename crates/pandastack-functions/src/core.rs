//! The part of the sandbox core that functions use.

use std::sync::Arc;

use pandastack_edge::Edge;
use pandastack_sandboxes::Background;
use pandastack_sandboxes::machines::Machines;

/// The parts of the sandbox core that functions use. Pools and leases share it.
#[derive(Clone)]
pub(crate) struct Core {
    /// Creates and deletes machines.
    pub(crate) machines: Arc<dyn Machines>,
    /// Connects to the runtimes in them.
    pub(crate) edge: Arc<Edge>,
    pub(crate) background: Background,
}
