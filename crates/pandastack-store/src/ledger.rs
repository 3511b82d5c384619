//! The audit log and usage totals.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::{AuditEntry, FunctionUsage, SandboxUsage, UsageTotals};
use pandastack_types::{SandboxId, WorkspaceId};

use super::Result;

/// A call to be written down; its id comes with the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Tenant of the key that called.
    pub workspace: WorkspaceId,
    /// Everything else; the id is ignored.
    pub entry: AuditEntry,
}

/// Filter of a workspace's audit log.
#[derive(Debug, Clone, Default)]
pub struct AuditSelect {
    /// Only older ones than this id.
    pub before: Option<i64>,
    /// Only those about a sandbox.
    pub sandbox: Option<SandboxId>,
    /// At most this many.
    pub limit: u32,
}

/// The audit log, and sums over the usage events.
#[async_trait]
pub trait LedgerStore: Send + Sync {
    /// Appends calls, all or none.
    async fn insert_audit(&self, records: &[AuditRecord]) -> Result<()>;
    /// Entries of a workspace, newest first.
    async fn audit(&self, workspace: &WorkspaceId, select: &AuditSelect) -> Result<Vec<AuditEntry>>;
    /// Removes entries older than given.
    async fn prune_audit(&self, before: Timestamp) -> Result<u64>;
    /// Usage of a workspace from one time (inclusive) to another (exclusive).
    async fn usage(&self, workspace: &WorkspaceId, from: Timestamp, to: Timestamp) -> Result<UsageTotals>;
    /// The same by sandbox, most processor time first, at most `limit`.
    async fn usage_by_sandbox(
        &self,
        workspace: &WorkspaceId,
        from: Timestamp,
        to: Timestamp,
        limit: u32,
    ) -> Result<Vec<SandboxUsage>>;
    /// Calls by function, most time first, at most `limit`.
    async fn usage_by_function(
        &self,
        workspace: &WorkspaceId,
        from: Timestamp,
        to: Timestamp,
        limit: u32,
    ) -> Result<Vec<FunctionUsage>>;
}
