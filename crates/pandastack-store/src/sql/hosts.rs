//! Hosts, and the usage that their reports carry.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::agent_api::Usage;
use pandastack_types::api::UsageKind;
use pandastack_types::{HostId, SandboxId};
use sqlx::AnyConnection;

use super::SqlStore;
use super::rows::{HostRow, records, signed, to_json};
use super::sandboxes::{find, update};
use crate::record::usage_since;
use crate::{Durability, HostRecord, HostStore, Result, SandboxRecord};

#[async_trait]
impl HostStore for SqlStore {
    async fn put_host(&self, host: &HostRecord) -> Result<()> {
        let summary = to_json("host summary", &host.summary)?;
        let mut write = self.write(Durability::Process).await?;
        sqlx::query(
            "INSERT INTO hosts (id, summary, last_seen_at_us) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE \
             SET summary = excluded.summary, last_seen_at_us = excluded.last_seen_at_us",
        )
        .bind(host.summary.host.as_str())
        .bind(summary)
        .bind(host.last_seen_at.as_microsecond())
        .execute(write.conn())
        .await?;
        write.commit().await
    }

    async fn hosts(&self) -> Result<Vec<HostRecord>> {
        let rows: Vec<HostRow> = sqlx::query_as("SELECT summary, last_seen_at_us FROM hosts ORDER BY id")
            .fetch_all(&self.readers)
            .await?;
        records(rows)
    }

    async fn host(&self, id: &HostId) -> Result<Option<HostRecord>> {
        let row: Option<HostRow> = sqlx::query_as("SELECT summary, last_seen_at_us FROM hosts WHERE id = $1")
            .bind(id.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.map(TryInto::try_into).transpose()
    }

    async fn record_usage(&self, totals: &[(SandboxId, Usage)], at: Timestamp) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        for (id, now) in totals {
            let Some(mut record) = find(&mut write, id).await? else { continue };
            let used = usage_since(record.spec.usage, *now);
            if used == Usage::default() {
                continue;
            }
            insert_usage(write.conn(), &record, at, 0, used).await?;
            record.spec.usage = *now;
            update(&mut write, &record).await?;
        }
        write.commit().await
    }
}

/// Appends a usage event within a transaction.
pub(super) async fn insert_usage(
    conn: &mut AnyConnection,
    sandbox: &SandboxRecord,
    at: Timestamp,
    creates: i64,
    used: Usage,
) -> Result<()> {
    sqlx::query(
        "INSERT INTO usage_events (workspace_id, sandbox_id, at_us, creates, cpu_ms, memory_mb_seconds, \
         asleep_seconds, sent_bytes, received_bytes, kind) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    )
    .bind(sandbox.workspace.as_str())
    .bind(sandbox.id.as_str())
    .bind(at.as_microsecond())
    .bind(creates)
    .bind(signed(used.cpu_ms))
    .bind(signed(used.memory_mb_seconds))
    .bind(signed(used.asleep_seconds))
    .bind(signed(used.sent_bytes))
    .bind(signed(used.received_bytes))
    .bind(UsageKind::of(sandbox.owner.as_ref()).as_str())
    .execute(conn)
    .await?;
    Ok(())
}
