//! Rows as the program sees them, and the pure rules of how they change.

mod change;
mod host;
mod sandbox;
mod snapshot;
mod token;
mod usage;

pub use change::{Amendment, Change, after_seconds};
pub use host::HostRecord;
pub use sandbox::{SandboxRecord, SandboxSpecRecord};
pub use snapshot::{SnapshotRecord, SnapshotSpecRecord};
pub use token::{SessionRecord, TokenRecord};
pub use usage::usage_since;
