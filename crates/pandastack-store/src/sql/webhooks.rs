//! Webhooks and their deliveries.

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::{DeliveryState, WebhookFilter};
use pandastack_types::limits::{WEBHOOK_PENDING_MAX, WEBHOOKS_PER_WORKSPACE_MAX};
use pandastack_types::{WebhookId, WorkspaceId, chain};
use sqlx::{AnyConnection, AssertSqlSafe};
use tokio::sync::watch;

use super::quotas::admit_any;
use super::rows::{id, records, times, unsigned};
use super::sealed_columns::WEBHOOKS;
use super::webhook_rows::{COLUMNS, DELIVERY, DeliveryRow, WebhookRow};
use super::{SqlStore, Write};
use crate::webhooks::{
    Attempt, DeliveryClaim, DeliveryRecord, NextAttempt, WebhookEvent, WebhookRecord, WebhookStore,
};
use crate::{Durability, Result, StoreError};

/// Ends the pending deliveries of a webhook.
const FAIL_PENDING: &str = "UPDATE webhook_deliveries SET state = 'failed', due_at_us = NULL, \
     ended_at_us = $1, result = $2 WHERE webhook_id = $3 AND state = 'pending'";
/// Result of deliveries whose webhook was disabled.
const DISABLED: &str = "the webhook was disabled";
/// A condition on a row of `webhooks`, with a parameter: fewer deliveries than that wait for it.
macro_rules! has_room {
    ($max:literal) => {
        concat!(
            " AND NOT EXISTS (SELECT 1 FROM webhook_deliveries WHERE webhook_id = webhooks.id \
             AND due_at_us IS NOT NULL LIMIT 1 OFFSET CAST(",
            $max,
            " AS BIGINT))"
        )
    };
}

/// Adds a delivery of an event to every webhook of its workspace that asks for it, within the transaction of
/// the event.
pub(super) async fn queue(write: &mut Write, event: &WebhookEvent) -> Result<()> {
    let done = sqlx::query(concat!(
        "INSERT INTO webhook_deliveries (webhook_id, workspace_id, event_id, kind, body, state, attempts, \
         created_at_us, due_at_us) SELECT id, workspace_id, CAST($1 AS TEXT), CAST($2 AS TEXT), \
         CAST($3 AS TEXT), 'pending', 0, CAST($4 AS BIGINT), CAST($4 AS BIGINT) FROM webhooks \
         WHERE workspace_id = $5 AND enabled = 1 \
         AND (events = '' OR events LIKE CAST($6 AS TEXT) OR events LIKE CAST($7 AS TEXT))",
        has_room!("$8")
    ))
    .bind(&event.id)
    .bind(event.kind.as_str())
    .bind(event.body())
    .bind(event.at.as_microsecond())
    .bind(event.workspace.as_str())
    .bind(format!("%,{},%", event.kind.as_str()))
    .bind(format!("%,{},%", event.kind.group_filter()))
    .bind(i64::from(WEBHOOK_PENDING_MAX) - 1)
    .execute(write.conn())
    .await?;
    write.has_deliveries |= done.rows_affected() > 0;
    Ok(())
}

fn filters(events: &[WebhookFilter]) -> String {
    let mut text: String = events.iter().map(|filter| format!(",{}", filter.as_str())).collect();
    if !text.is_empty() {
        text.push(',');
    }
    text
}

fn spec(write: &Write, webhook: &WebhookRecord) -> Result<String> {
    write.sealer.to_json(&WEBHOOKS, webhook.workspace.as_str(), webhook.id.as_str(), &webhook.spec)
}

fn absent(id: &WebhookId) -> StoreError {
    StoreError::NotFound { what: "webhook", id: id.to_string() }
}

async fn delivery(conn: &mut AnyConnection, id: i64) -> Result<Option<DeliveryRecord>> {
    let row: Option<DeliveryRow> = sqlx::query_as(AssertSqlSafe(format!("{DELIVERY} WHERE id = $1")))
        .bind(id)
        .fetch_optional(conn)
        .await?;
    row.map(DeliveryRecord::try_from).transpose()
}

#[async_trait]
impl WebhookStore for SqlStore {
    async fn insert_webhook(&self, webhook: &WebhookRecord) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        write.lock_workspace(&webhook.workspace).await?;
        admit_any(write.conn(), &webhook.workspace).await?;
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM webhooks WHERE workspace_id = $1")
            .bind(webhook.workspace.as_str())
            .fetch_one(write.conn())
            .await?;
        if unsigned(count) >= WEBHOOKS_PER_WORKSPACE_MAX {
            return Err(StoreError::Quota { what: "webhooks", limit: WEBHOOKS_PER_WORKSPACE_MAX });
        }
        let spec = spec(&write, webhook)?;
        sqlx::query(
            "INSERT INTO webhooks (id, workspace_id, spec, events, enabled, created_at_us) \
             VALUES ($1, $2, $3, $4, $5, $6)",
        )
        .bind(webhook.id.as_str())
        .bind(webhook.workspace.as_str())
        .bind(spec)
        .bind(filters(&webhook.events))
        .bind(i64::from(webhook.enabled))
        .bind(webhook.created_at.as_microsecond())
        .execute(write.conn())
        .await?;
        write.commit().await
    }

    async fn webhook(&self, workspace: &WorkspaceId, id: &WebhookId) -> Result<WebhookRecord> {
        let one = format!("{COLUMNS} WHERE id = $1 AND workspace_id = $2");
        let row: Option<WebhookRow> = sqlx::query_as(AssertSqlSafe(one))
            .bind(id.as_str())
            .bind(workspace.as_str())
            .fetch_optional(&self.readers)
            .await?;
        self.sealer.record(row.ok_or_else(|| absent(id))?)
    }

    async fn webhooks(&self, workspace: &WorkspaceId) -> Result<Vec<WebhookRecord>> {
        let all = format!("{COLUMNS} WHERE workspace_id = $1 ORDER BY created_at_us, id");
        let rows: Vec<WebhookRow> =
            sqlx::query_as(AssertSqlSafe(all)).bind(workspace.as_str()).fetch_all(&self.readers).await?;
        self.sealer.records(rows)
    }

    async fn change_webhook(
        &self,
        workspace: &WorkspaceId,
        id: &WebhookId,
        change: &mut (dyn for<'a> FnMut(&'a mut WebhookRecord) + Send),
    ) -> Result<WebhookRecord> {
        let mut write = self.write(Durability::Power).await?;
        let one = format!("{COLUMNS} WHERE id = $1 AND workspace_id = $2{}", write.lock_clause());
        let row: Option<WebhookRow> = sqlx::query_as(AssertSqlSafe(one))
            .bind(id.as_str())
            .bind(workspace.as_str())
            .fetch_optional(write.conn())
            .await?;
        let mut webhook: WebhookRecord = self.sealer.record(row.ok_or_else(|| absent(id))?)?;
        change(&mut webhook);
        let spec = spec(&write, &webhook)?;
        sqlx::query(
            "UPDATE webhooks SET spec = $1, events = $2, enabled = $3, disabled_reason = $4, \
             failing_since_us = $5 WHERE id = $6",
        )
        .bind(spec)
        .bind(filters(&webhook.events))
        .bind(i64::from(webhook.enabled))
        .bind(&webhook.disabled_reason)
        .bind(webhook.failing_since.map(Timestamp::as_microsecond))
        .bind(id.as_str())
        .execute(write.conn())
        .await?;
        if !webhook.enabled {
            fail_pending(write.conn(), id, crate::clock::now()).await?;
        }
        write.commit().await?;
        Ok(webhook)
    }

    async fn delete_webhook(&self, workspace: &WorkspaceId, id: &WebhookId) -> Result<()> {
        let mut write = self.write(Durability::Power).await?;
        let done = sqlx::query("DELETE FROM webhooks WHERE id = $1 AND workspace_id = $2")
            .bind(id.as_str())
            .bind(workspace.as_str())
            .execute(write.conn())
            .await?;
        if done.rows_affected() == 0 {
            return Err(absent(id));
        }
        let deliveries = sqlx::query("DELETE FROM webhook_deliveries WHERE webhook_id = $1");
        deliveries.bind(id.as_str()).execute(write.conn()).await?;
        write.commit().await
    }

    async fn insert_delivery(&self, webhook: &WebhookId, event: &WebhookEvent) -> Result<DeliveryRecord> {
        let mut write = self.write(Durability::Power).await?;
        let new: Option<i64> = sqlx::query_scalar(concat!(
            "INSERT INTO webhook_deliveries (webhook_id, workspace_id, event_id, kind, body, state, \
             attempts, created_at_us, due_at_us) SELECT id, workspace_id, CAST($1 AS TEXT), \
             CAST($2 AS TEXT), CAST($3 AS TEXT), 'pending', 0, CAST($4 AS BIGINT), CAST($4 AS BIGINT) \
             FROM webhooks WHERE id = $5",
            has_room!("$6"),
            " RETURNING id"
        ))
        .bind(&event.id)
        .bind(event.kind.as_str())
        .bind(event.body())
        .bind(event.at.as_microsecond())
        .bind(webhook.as_str())
        .bind(i64::from(WEBHOOK_PENDING_MAX) - 1)
        .fetch_optional(write.conn())
        .await?;
        let limit = WEBHOOK_PENDING_MAX.into();
        let new = new.ok_or(StoreError::Quota { what: "pending deliveries of this webhook", limit })?;
        let record = delivery(write.conn(), new).await?.ok_or_else(|| absent(webhook))?;
        write.has_deliveries = true;
        write.commit().await?;
        Ok(record)
    }

    async fn webhook_deliveries(&self, webhook: &WebhookId, limit: u32) -> Result<Vec<DeliveryRecord>> {
        let newest = format!("{DELIVERY} WHERE webhook_id = $1 ORDER BY id DESC LIMIT $2");
        let rows: Vec<DeliveryRow> = sqlx::query_as(AssertSqlSafe(newest))
            .bind(webhook.as_str())
            .bind(i64::from(limit))
            .fetch_all(&self.readers)
            .await?;
        records(rows)
    }

    async fn redeliver(&self, webhook: &WebhookId, id: i64, at: Timestamp) -> Result<Option<DeliveryRecord>> {
        let mut write = self.write(Durability::Power).await?;
        let done = sqlx::query(
            "UPDATE webhook_deliveries SET state = 'pending', attempts = 0, due_at_us = $1, \
             ended_at_us = NULL WHERE id = $2 AND webhook_id = $3 AND state <> 'pending'",
        )
        .bind(at.as_microsecond())
        .bind(id)
        .bind(webhook.as_str())
        .execute(write.conn())
        .await?;
        if done.rows_affected() == 0 {
            return Ok(None);
        }
        let record = delivery(write.conn(), id).await?;
        write.has_deliveries = true;
        write.commit().await?;
        Ok(record)
    }

    async fn claim_webhook_deliveries(
        &self,
        claim: &DeliveryClaim,
    ) -> Result<Vec<(WebhookRecord, DeliveryRecord)>> {
        // Looking takes no turn of the writers, however much waits.
        let mut claimed = Vec::new();
        for row in self.due_in_turns(claim).await? {
            let id = row.id;
            match self.claim_one(row, claim).await {
                Ok(one) => claimed.extend(one),
                // It must not stop the others.
                Err(error) => {
                    tracing::warn!(delivery = id, error = %chain(&error), "cannot deliver to a webhook");
                }
            }
        }
        Ok(claimed)
    }

    async fn record_attempt(&self, attempt: &Attempt) -> Result<()> {
        let mut write = self.write(Durability::Process).await?;
        let at = attempt.at;
        let (state, due, ended) = match &attempt.next {
            NextAttempt::Delivered => (DeliveryState::Delivered, None, Some(at)),
            NextAttempt::Retry(due) => (DeliveryState::Pending, Some(*due), None),
            NextAttempt::GiveUp | NextAttempt::Disable(_) => (DeliveryState::Failed, None, Some(at)),
        };
        // Whoever locks a webhook and its deliveries locks the webhook first.
        let lock = format!(
            "SELECT id FROM webhooks WHERE id = (SELECT webhook_id FROM webhook_deliveries WHERE id = $1){}",
            write.lock_clause()
        );
        sqlx::query(AssertSqlSafe(lock)).bind(attempt.delivery).execute(write.conn()).await?;
        let webhook: Option<String> = sqlx::query_scalar(
            "UPDATE webhook_deliveries SET state = $1, due_at_us = $2, ended_at_us = $3, result = $4 \
             WHERE id = $5 AND state = 'pending' RETURNING webhook_id",
        )
        .bind(state.as_str())
        .bind(due.map(Timestamp::as_microsecond))
        .bind(ended.map(Timestamp::as_microsecond))
        .bind(&attempt.result)
        .bind(attempt.delivery)
        .fetch_optional(write.conn())
        .await?;
        // The webhook was deleted or disabled meanwhile.
        let Some(webhook) = webhook else { return Ok(()) };
        let health = match attempt.next {
            NextAttempt::Delivered => {
                sqlx::query("UPDATE webhooks SET failing_since_us = NULL WHERE id = $1").bind(&webhook)
            }
            _ => sqlx::query(
                "UPDATE webhooks SET failing_since_us = COALESCE(failing_since_us, $2) WHERE id = $1",
            )
            .bind(&webhook)
            .bind(at.as_microsecond()),
        };
        health.execute(write.conn()).await?;
        if let NextAttempt::Disable(reason) = &attempt.next {
            sqlx::query("UPDATE webhooks SET enabled = 0, disabled_reason = $1 WHERE id = $2")
                .bind(reason)
                .bind(&webhook)
                .execute(write.conn())
                .await?;
            fail_pending(write.conn(), &id(webhook)?, at).await?;
        }
        write.commit().await
    }

    async fn next_webhook_delivery(&self) -> Result<Option<Timestamp>> {
        let next: Option<i64> = sqlx::query_scalar(concat!(
            "SELECT MIN(due_at_us) FROM webhook_deliveries WHERE due_at_us IS NOT NULL",
            in_open_workspace!()
        ))
        .fetch_one(&self.readers)
        .await?;
        times(next)
    }

    async fn prune_webhook_deliveries(&self, ended_before: Timestamp, kept: u32) -> Result<u64> {
        Ok(self.prune_by_age(ended_before).await? + self.prune_by_count(kept).await?)
    }

    fn queued_deliveries(&self) -> watch::Receiver<u64> {
        self.deliveries.subscribe()
    }
}

async fn fail_pending(conn: &mut AnyConnection, webhook: &WebhookId, at: Timestamp) -> Result<()> {
    sqlx::query(FAIL_PENDING)
        .bind(at.as_microsecond())
        .bind(DISABLED)
        .bind(webhook.as_str())
        .execute(conn)
        .await?;
    Ok(())
}
