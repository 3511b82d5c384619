//! The tap of a machine. Every machine has a network device with a tap behind it, since a snapshot
//! restores only into the same devices; a machine without network gets a disconnected tap.

use std::os::fd::{AsFd, OwnedFd};

use pandastack_engine::{EngineError, Result, tap};

use crate::shared_namespaces::SharedNamespaces;

/// The tap of a machine: the caller's if it fits, else one in an empty network.
pub(crate) fn prepare(given: Option<OwnedFd>, namespaces: &SharedNamespaces) -> Result<OwnedFd> {
    match given {
        Some(tap) => tap::check(tap.as_fd()).map(|_| tap),
        None => namespaces
            .in_network(|| tap::create("nowhere%d"))
            .map_err(EngineError::io("make a tap that leads nowhere", tap::DEVICE)),
    }
}
