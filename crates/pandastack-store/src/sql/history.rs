//! Events and idempotency records.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::Event;
use pandastack_types::{SandboxId, WorkspaceId};

use super::rows::{EventRow, records};
use super::sandboxes::find;
use super::seal::{SealedField, is_sealed};
use super::{SqlStore, Write, corrupt};
use crate::{Durability, HistoryStore, IdempotencyClaim, IdempotencyKey, IdempotencyOutcome, Result};

#[derive(sqlx::FromRow)]
struct IdempotencyRow {
    fingerprint: Vec<u8>,
    instance: String,
    sandbox_id: Option<String>,
    status: Option<i64>,
    body: Option<Vec<u8>>,
    created_at_us: i64,
}

#[async_trait]
impl HistoryStore for SqlStore {
    async fn events_after(
        &self,
        workspace: &WorkspaceId,
        id: &SandboxId,
        after: i64,
        limit: u32,
    ) -> Result<Vec<Event>> {
        let rows: Vec<EventRow> = sqlx::query_as(
            "SELECT id, sandbox_id, kind, at_us, detail FROM events \
             WHERE sandbox_id = $1 AND workspace_id = $2 AND id > $3 ORDER BY id LIMIT $4",
        )
        .bind(id.as_str())
        .bind(workspace.as_str())
        .bind(after)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        records(rows)
    }

    async fn events_tail(&self, workspace: &WorkspaceId, id: &SandboxId, limit: u32) -> Result<Vec<Event>> {
        let rows: Vec<EventRow> = sqlx::query_as(
            "SELECT id, sandbox_id, kind, at_us, detail FROM events \
             WHERE sandbox_id = $1 AND workspace_id = $2 ORDER BY id DESC LIMIT $3",
        )
        .bind(id.as_str())
        .bind(workspace.as_str())
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        let mut events: Vec<Event> = records(rows)?;
        events.reverse();
        Ok(events)
    }

    async fn idempotency_begin(&self, claim: &IdempotencyClaim) -> Result<IdempotencyOutcome> {
        let mut write = self.write(Durability::Process).await?;
        write.lock_workspace(&claim.key.workspace).await?;
        let row: Option<IdempotencyRow> = sqlx::query_as(
            "SELECT fingerprint, instance, sandbox_id, status, body, created_at_us FROM idempotency \
             WHERE workspace_id = $1 AND key = $2",
        )
        .bind(claim.key.workspace.as_str())
        .bind(&claim.key.key)
        .fetch_optional(write.conn())
        .await?;
        let live = row.filter(|row| row.created_at_us >= claim.not_before.as_microsecond());
        if let Some(outcome) = earlier_outcome(&mut write, live, claim).await? {
            return Ok(outcome);
        }
        sqlx::query(
            "INSERT INTO idempotency (workspace_id, key, fingerprint, instance, created_at_us) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (workspace_id, key) DO UPDATE SET \
             fingerprint = excluded.fingerprint, instance = excluded.instance, \
             created_at_us = excluded.created_at_us, sandbox_id = NULL, status = NULL, body = NULL",
        )
        .bind(claim.key.workspace.as_str())
        .bind(&claim.key.key)
        .bind(&claim.fingerprint)
        .bind(&claim.instance)
        .bind(claim.at.as_microsecond())
        .execute(write.conn())
        .await?;
        write.commit().await?;
        Ok(IdempotencyOutcome::Fresh)
    }

    async fn idempotency_finish(&self, key: &IdempotencyKey, answer: Option<(u16, &[u8])>) -> Result<()> {
        // Answers may contain new keys and other secrets.
        let seal = |body| self.sealer.seal(answer_of(key), body).map_err(corrupt("answer"));
        let answer = match answer {
            Some((status, body)) => Some((status, seal(body)?)),
            None => None,
        };
        let mut write = self.write(Durability::Power).await?;
        let query = match answer {
            Some((status, body)) => sqlx::query(
                "UPDATE idempotency SET status = $1, body = $2 WHERE workspace_id = $3 AND key = $4",
            )
            .bind(i64::from(status))
            .bind(body),
            None => sqlx::query("DELETE FROM idempotency WHERE workspace_id = $1 AND key = $2"),
        };
        query.bind(key.workspace.as_str()).bind(&key.key).execute(write.conn()).await?;
        write.commit().await
    }

    async fn prune(
        &self,
        events_before: Timestamp,
        idempotency_before: Timestamp,
        per_sandbox: u32,
    ) -> Result<u64> {
        let mut write = self.write(Durability::Process).await?;
        let mut removed = 0;
        for (statement, before) in [
            ("DELETE FROM events WHERE at_us < $1", events_before),
            ("DELETE FROM idempotency WHERE created_at_us < $1", idempotency_before),
        ] {
            let done = sqlx::query(statement).bind(before.as_microsecond()).execute(write.conn()).await?;
            removed += done.rows_affected();
        }
        let done = sqlx::query(
            "DELETE FROM events WHERE id IN (SELECT id FROM (SELECT id, ROW_NUMBER() OVER \
             (PARTITION BY sandbox_id ORDER BY id DESC) AS place FROM events) AS placed WHERE place > $1)",
        )
        .bind(i64::from(per_sandbox))
        .execute(write.conn())
        .await?;
        write.commit().await?;
        Ok(removed + done.rows_affected())
    }
}

fn answer_of(key: &IdempotencyKey) -> SealedField<'_> {
    SealedField { table: "idempotency", workspace: key.workspace.as_str(), row: &key.key, field: "body" }
}

/// The outcome of an earlier request with the same key; `None` if the request may start.
async fn earlier_outcome(
    write: &mut Write,
    row: Option<IdempotencyRow>,
    claim: &IdempotencyClaim,
) -> Result<Option<IdempotencyOutcome>> {
    let Some(row) = row else { return Ok(None) };
    if row.fingerprint != claim.fingerprint {
        return Ok(Some(IdempotencyOutcome::Mismatch));
    }
    if let (Some(status), Some(body)) = (row.status, row.body) {
        let status = u16::try_from(status).map_err(corrupt("idempotency status"))?;
        let body = match is_sealed(&body) {
            true => write.sealer.open(answer_of(&claim.key), &body).map_err(corrupt("answer"))?,
            false => body,
        };
        return Ok(Some(IdempotencyOutcome::Replay { status, body }));
    }
    if row.instance == claim.instance || write.is_alive(&row.instance).await? {
        return Ok(Some(IdempotencyOutcome::Running));
    }
    let Some(id) = row.sandbox_id else { return Ok(None) };
    let record = find(write, &id.parse().map_err(corrupt("sandbox id"))?).await?;
    Ok(record.map(|record| IdempotencyOutcome::Orphan(Box::new(record))))
}
