//! The audit log and sums of usage.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::WorkspaceId;
use pandastack_types::api::{AuditEntry, FunctionUsage, KindUsage, SandboxUsage, UsageTotals};
use pandastack_types::audit::AuditLine;

use super::rows::unsigned;
use super::{SqlStore, audit, corrupt};
use crate::Result;
use crate::ledger::{AuditEnds, AuditRecord, AuditSelect, LedgerStore};

/// Columns of a sum of usage.
macro_rules! sums {
    () => {
        "CAST(COALESCE(SUM(creates), 0) AS BIGINT) AS creates, \
         CAST(COALESCE(SUM(cpu_ms), 0) AS BIGINT) AS cpu_ms, \
         CAST(COALESCE(SUM(memory_mb_seconds), 0) AS BIGINT) AS memory_mb_seconds, \
         CAST(COALESCE(SUM(asleep_seconds), 0) AS BIGINT) AS asleep_seconds, \
         CAST(COALESCE(SUM(sent_bytes), 0) AS BIGINT) AS sent_bytes, \
         CAST(COALESCE(SUM(received_bytes), 0) AS BIGINT) AS received_bytes, \
         CAST(COALESCE(SUM(calls), 0) AS BIGINT) AS calls, \
         CAST(COALESCE(SUM(billed_ms), 0) AS BIGINT) AS billed_ms"
    };
}

/// Usage of a workspace (`$1`) from one time (`$2`) to another (`$3`).
macro_rules! in_period {
    () => {
        " FROM usage_events WHERE workspace_id = $1 AND at_us >= $2 AND at_us < $3"
    };
}

#[derive(sqlx::FromRow)]
struct UsageRow {
    /// Group of the sum: a sandbox, a kind of service, or everything.
    grouped: String,
    creates: i64,
    cpu_ms: i64,
    memory_mb_seconds: i64,
    asleep_seconds: i64,
    sent_bytes: i64,
    received_bytes: i64,
    calls: i64,
    billed_ms: i64,
}

impl UsageRow {
    fn totals(&self) -> UsageTotals {
        UsageTotals {
            creates: unsigned(self.creates),
            cpu_ms: unsigned(self.cpu_ms),
            memory_mb_seconds: unsigned(self.memory_mb_seconds),
            asleep_seconds: unsigned(self.asleep_seconds),
            sent_bytes: unsigned(self.sent_bytes),
            received_bytes: unsigned(self.received_bytes),
            calls: unsigned(self.calls),
            billed_ms: unsigned(self.billed_ms),
        }
    }
}

#[async_trait]
impl LedgerStore for SqlStore {
    async fn insert_audit(&self, records: &[AuditRecord]) -> Result<()> {
        audit::insert(self, records).await
    }

    async fn audit(&self, workspace: &WorkspaceId, select: &AuditSelect) -> Result<Vec<AuditEntry>> {
        audit::list(self, workspace, select).await
    }

    async fn audit_lines(&self, after: i64, limit: u32) -> Result<Vec<AuditLine>> {
        audit::lines(self, after, limit).await
    }

    async fn audit_ends(&self) -> Result<AuditEnds> {
        audit::chain_ends(self).await
    }

    async fn audit_exported(&self) -> Result<i64> {
        audit::exported(self).await
    }

    async fn put_audit_exported(&self, id: i64) -> Result<()> {
        audit::put_exported(self, id).await
    }

    async fn prune_audit(&self, before: Timestamp) -> Result<u64> {
        audit::prune(self, before).await
    }

    async fn usage(&self, workspace: &WorkspaceId, from: Timestamp, to: Timestamp) -> Result<UsageTotals> {
        let row: UsageRow = sqlx::query_as(concat!("SELECT '' AS grouped, ", sums!(), in_period!()))
            .bind(workspace.as_str())
            .bind(from.as_microsecond())
            .bind(to.as_microsecond())
            .fetch_one(&self.readers)
            .await?;
        Ok(row.totals())
    }

    async fn usage_by_sandbox(
        &self,
        workspace: &WorkspaceId,
        from: Timestamp,
        to: Timestamp,
        limit: u32,
    ) -> Result<Vec<SandboxUsage>> {
        let rows: Vec<UsageRow> = sqlx::query_as(concat!(
            "SELECT sandbox_id AS grouped, ",
            sums!(),
            in_period!(),
            " GROUP BY sandbox_id ORDER BY SUM(cpu_ms) DESC, sandbox_id LIMIT $4"
        ))
        .bind(workspace.as_str())
        .bind(from.as_microsecond())
        .bind(to.as_microsecond())
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        let by_sandbox = rows.into_iter().map(|row| {
            let sandbox_id = row.grouped.parse().map_err(corrupt("sandbox id"))?;
            Ok(SandboxUsage { sandbox_id, used: row.totals() })
        });
        by_sandbox.collect()
    }

    async fn usage_by_kind(
        &self,
        workspace: &WorkspaceId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<KindUsage>> {
        let rows: Vec<UsageRow> = sqlx::query_as(concat!(
            "SELECT COALESCE(kind, CASE WHEN function_id IS NULL THEN 'sandbox' ELSE 'function' END) \
             AS grouped, ",
            sums!(),
            in_period!(),
            " GROUP BY 1 ORDER BY SUM(cpu_ms) DESC, 1"
        ))
        .bind(workspace.as_str())
        .bind(from.as_microsecond())
        .bind(to.as_microsecond())
        .fetch_all(&self.readers)
        .await?;
        let by_kind = rows.into_iter().map(|row| {
            let kind = row.grouped.parse().map_err(corrupt("kind of usage"))?;
            Ok(KindUsage { kind, used: row.totals() })
        });
        by_kind.collect()
    }

    async fn usage_by_function(
        &self,
        workspace: &WorkspaceId,
        from: Timestamp,
        to: Timestamp,
        limit: u32,
    ) -> Result<Vec<FunctionUsage>> {
        let rows: Vec<(String, i64, i64)> = sqlx::query_as(
            "SELECT function_id, CAST(SUM(calls) AS BIGINT) AS calls, CAST(SUM(billed_ms) AS BIGINT) AS billed_ms \
             FROM usage_events WHERE workspace_id = $1 AND at_us >= $2 AND at_us < $3 AND function_id IS NOT NULL \
             GROUP BY function_id ORDER BY SUM(billed_ms) DESC, function_id LIMIT $4",
        )
        .bind(workspace.as_str())
        .bind(from.as_microsecond())
        .bind(to.as_microsecond())
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        let by_function = rows.into_iter().map(|(id, calls, billed_ms)| {
            let function_id = id.parse().map_err(corrupt("function id"))?;
            Ok(FunctionUsage { function_id, calls: unsigned(calls), billed_ms: unsigned(billed_ms) })
        });
        by_function.collect()
    }
}
