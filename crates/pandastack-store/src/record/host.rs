//! A host.

use jiff::Timestamp;
use pandastack_types::agent_api::HostReport;

/// A host as it last reported, without the lists that have rows of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct HostRecord {
    /// The host's last report; `sandboxes` and `snapshots` are empty.
    pub summary: HostReport,
    /// When the report arrived, by control's clock.
    pub last_seen_at: Timestamp,
}
