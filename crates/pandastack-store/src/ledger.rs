//! The audit log and usage totals.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::{AuditEntry, FunctionUsage, KindUsage, SandboxUsage, UsageTotals};
use pandastack_types::audit::AuditLine;
use pandastack_types::{SandboxId, WorkspaceId};

use super::Result;

/// An entry to write; the row gets its id.
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
    /// Only entries before this id.
    pub before: Option<i64>,
    /// Only entries about this sandbox.
    pub sandbox: Option<SandboxId>,
    /// At most this many.
    pub limit: u32,
}

/// The ends of the audit log's hash chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEnds {
    /// Hash of the entry before the first; empty if nothing was pruned.
    pub pruned: String,
    /// Hash of the newest entry; empty if there never was one.
    pub head: String,
}

/// The audit log, and sums over the usage events.
#[async_trait]
pub trait LedgerStore: Send + Sync {
    /// Appends calls to the log and its hash chain, all or none. Ids increase in the order of commits.
    async fn insert_audit(&self, records: &[AuditRecord]) -> Result<()>;
    /// Entries of a workspace, newest first.
    async fn audit(&self, workspace: &WorkspaceId, select: &AuditSelect) -> Result<Vec<AuditEntry>>;
    /// Entries of all workspaces after an id, oldest first. Leaves out those from before there was a chain.
    async fn audit_lines(&self, after: i64, limit: u32) -> Result<Vec<AuditLine>>;
    /// The ends of the hash chain.
    async fn audit_ends(&self) -> Result<AuditEnds>;
    /// The id of the entry that was exported last; 0 for none.
    async fn audit_exported(&self) -> Result<i64>;
    /// Records it.
    async fn put_audit_exported(&self, id: i64) -> Result<()>;
    /// Removes the oldest entries, up to the first that is not older than `before`.
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
    /// The same by kind of service, most processor time first.
    async fn usage_by_kind(
        &self,
        workspace: &WorkspaceId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<KindUsage>>;
    /// Calls by function, most time first, at most `limit`.
    async fn usage_by_function(
        &self,
        workspace: &WorkspaceId,
        from: Timestamp,
        to: Timestamp,
        limit: u32,
    ) -> Result<Vec<FunctionUsage>>;
}
