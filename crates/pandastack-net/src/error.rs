//! Errors of network slots.

use std::io;
use std::path::PathBuf;

use crate::config::SlotIndex;

/// Reason why a network call failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A setting makes no sense.
    #[error("network configuration: {0}")]
    InvalidConfig(String),
    /// Another agent uses the same interface names.
    #[error(
        "another agent on this host already uses the interface names {prefix}-*; choose others with \
         --net-prefix, and a --subnet of their own"
    )]
    PrefixTaken {
        /// The prefix both want.
        prefix: String,
    },
    /// The slots' addresses are in use for something else.
    #[error(
        "the subnet {subnet} contains the address {address} of interface {interface}; choose another with \
         --subnet, such as 10.202.0.0/16"
    )]
    SubnetTaken {
        /// The configured subnet.
        subnet: String,
        /// Address found inside it.
        address: String,
        /// Interface that has it.
        interface: String,
    },
    /// Every slot of the subnet is leased.
    #[error(
        "all {capacity} network slots are in use; delete or hibernate sandboxes, or configure a larger subnet"
    )]
    Exhausted {
        /// Slots in the subnet.
        capacity: usize,
    },
    /// No slot became ready in time.
    #[error("no network slot became ready within {waited_ms} ms: {cause}")]
    NotReady {
        /// Milliseconds waited.
        waited_ms: u64,
        /// The last failure of the maker, or that there was none.
        cause: String,
    },
    /// The slot is not leased, so no operation on it is possible.
    #[error("network slot {0} is not in use")]
    NotInUse(SlotIndex),
    /// [`shutdown`](crate::SlotPool::shutdown) was called.
    #[error("the network slot pool is shut down")]
    Closed,
    /// The kernel refused a netlink request.
    #[error("{action} ({target})")]
    Netlink {
        /// The request.
        action: String,
        /// On which slot or table.
        target: String,
        /// The kernel's answer.
        #[source]
        reason: io::Error,
    },
    /// The kernel refused something else.
    #[error("{action} ({})", path.display())]
    Io {
        /// The action.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        reason: io::Error,
    },
}

impl NetError {
    /// For `map_err`: names the action and the file around an I/O error.
    pub(crate) fn io<E: Into<io::Error>>(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |reason| NetError::Io { action, path, reason: reason.into() }
    }

    /// Returns whether the caller should retry later or elsewhere, rather than report a fault.
    pub fn is_capacity(&self) -> bool {
        matches!(self, NetError::Exhausted { .. } | NetError::NotReady { .. })
    }
}

/// Result of a network call.
pub type Result<T, E = NetError> = std::result::Result<T, E>;
