//! Which deliveries are attempted next, and which are forgotten.
//!
//! Looking uses readers and an index of what waits, so that a workspace with a long backlog slows
//! down neither the other workspaces nor the writers.

use jiff::Timestamp;
use sqlx::AssertSqlSafe;

use super::SqlStore;
use super::webhook_rows::{COLUMNS, DELIVERY, DeliveryRow, WebhookRow};
use crate::webhooks::{DeliveryClaim, DeliveryRecord, WebhookRecord};
use crate::{Durability, Result};

/// Workspaces that one claim looks at.
const WORKSPACES_PER_CLAIM_MAX: usize = 1_000;

impl SqlStore {
    /// Deliveries that are due: of each workspace as many as it may have attempts, beginning with
    /// the one after the last.
    pub(super) async fn due_in_turns(&self, claim: &DeliveryClaim) -> Result<Vec<DeliveryRow>> {
        let last = claim.last.as_ref().map_or("", |last| last.as_str());
        let (mut turn, mut has_wrapped, mut rows) = (last.to_owned(), false, Vec::new());
        for _ in 0..WORKSPACES_PER_CLAIM_MAX {
            let next: Option<String> = sqlx::query_scalar(
                "SELECT MIN(workspace_id) FROM webhook_deliveries \
                 WHERE due_at_us IS NOT NULL AND workspace_id > $1",
            )
            .bind(&turn)
            .fetch_one(&self.readers)
            .await?;
            match next {
                Some(next) if has_wrapped && next.as_str() > last => break,
                Some(next) => turn = next,
                None if has_wrapped || last.is_empty() => break,
                None => {
                    (turn, has_wrapped) = (String::new(), true);
                    continue;
                }
            }
            let busy = claim.in_progress.iter().find(|(workspace, _)| workspace.as_str() == turn);
            let share = claim.per_workspace.saturating_sub(busy.map_or(0, |(_, count)| *count));
            let room = share.min(claim.limit.saturating_sub(u32::try_from(rows.len()).unwrap_or(u32::MAX)));
            let due = format!(
                "{DELIVERY} WHERE workspace_id = $1 AND due_at_us <= $2{} ORDER BY due_at_us, id LIMIT $3",
                in_open_workspace!()
            );
            let found: Vec<DeliveryRow> = sqlx::query_as(AssertSqlSafe(due))
                .bind(&turn)
                .bind(claim.at.as_microsecond())
                .bind(i64::from(room))
                .fetch_all(&self.readers)
                .await?;
            rows.extend(found);
            if rows.len() >= claim.limit as usize {
                break;
            }
        }
        Ok(rows)
    }

    /// Claims a delivery that was due; `None` if it is not any more, or if its webhook does not want it.
    pub(super) async fn claim_one(
        &self,
        row: DeliveryRow,
        claim: &DeliveryClaim,
    ) -> Result<Option<(WebhookRecord, DeliveryRecord)>> {
        let mut write = self.write(Durability::Process).await?;
        let one = format!("{COLUMNS} WHERE id = $1{}", write.lock_clause());
        let webhook: Option<WebhookRow> =
            sqlx::query_as(AssertSqlSafe(one)).bind(&row.webhook_id).fetch_optional(write.conn()).await?;
        let webhook: Option<WebhookRecord> = webhook.map(|row| self.sealer.record(row)).transpose()?;
        let Some(webhook) = webhook.filter(|webhook| webhook.enabled) else {
            // It was deleted or disabled while the event was committed.
            sqlx::query("DELETE FROM webhook_deliveries WHERE id = $1 AND state = 'pending'")
                .bind(row.id)
                .execute(write.conn())
                .await?;
            write.commit().await?;
            return Ok(None);
        };
        let done = sqlx::query(
            "UPDATE webhook_deliveries SET attempts = attempts + 1, due_at_us = $1 \
             WHERE id = $2 AND state = 'pending' AND attempts = $3",
        )
        .bind(claim.retry_at.as_microsecond())
        .bind(row.id)
        .bind(row.attempts)
        .execute(write.conn())
        .await?;
        write.commit().await?;
        let mut record = DeliveryRecord::try_from(row)?;
        record.attempts += 1;
        Ok((done.rows_affected() == 1).then_some((webhook, record)))
    }

    /// Removes deliveries that ended before then.
    pub(super) async fn prune_by_age(&self, ended_before: Timestamp) -> Result<u64> {
        let mut write = self.write(Durability::Process).await?;
        let done = sqlx::query("DELETE FROM webhook_deliveries WHERE ended_at_us < $1")
            .bind(ended_before.as_microsecond())
            .execute(write.conn())
            .await?;
        write.commit().await?;
        Ok(done.rows_affected())
    }

    /// Removes all but the newest `kept` deliveries of each webhook that have ended.
    pub(super) async fn prune_by_count(&self, kept: u32) -> Result<u64> {
        let webhooks: Vec<String> =
            sqlx::query_scalar("SELECT id FROM webhooks").fetch_all(&self.readers).await?;
        let mut removed = 0;
        for webhook in webhooks {
            let first_excess: Option<i64> = sqlx::query_scalar(
                "SELECT id FROM webhook_deliveries WHERE webhook_id = $1 AND ended_at_us IS NOT NULL \
                 ORDER BY id DESC LIMIT 1 OFFSET CAST($2 AS BIGINT)",
            )
            .bind(&webhook)
            .bind(i64::from(kept))
            .fetch_optional(&self.readers)
            .await?;
            let Some(first_excess) = first_excess else { continue };
            let mut write = self.write(Durability::Process).await?;
            let done = sqlx::query(
                "DELETE FROM webhook_deliveries WHERE webhook_id = $1 AND id <= $2 \
                 AND ended_at_us IS NOT NULL",
            )
            .bind(&webhook)
            .bind(first_excess)
            .execute(write.conn())
            .await?;
            write.commit().await?;
            removed += done.rows_affected();
        }
        Ok(removed)
    }
}
