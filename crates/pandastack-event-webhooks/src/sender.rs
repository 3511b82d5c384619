//! Attempts deliveries as they fall due.
//!
//! A commit that queues deliveries wakes the sender at once ([`WebhookStore::queued_deliveries`]);
//! deliveries that another control server queues are found within [`CHECK_EVERY`]. An attempt that
//! the shutdown cuts off is due again by itself.
//!
//! [`WebhookStore::queued_deliveries`]: pandastack_store::webhooks::WebhookStore::queued_deliveries

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use pandastack_store::clock::now;
use pandastack_store::webhooks::{DeliveryClaim, DeliveryRecord, NextAttempt, WebhookRecord};
use pandastack_types::limits::{WEBHOOK_DELIVERIES_KEPT, WEBHOOK_DELIVERY_DAYS};
use pandastack_types::{Result, WorkspaceId, chain};
use pandastack_webhooks::ANSWER_WAIT;

use crate::service::EventWebhooks;
use crate::{retry, signature};

/// Attempts in progress at once.
const ATTEMPTS_AT_ONCE: u32 = 64;
/// Attempts in progress of one workspace while the server has room.
const PER_WORKSPACE: u32 = 8;
/// Longest pause: other servers on the same database do not notify this one.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Interval at which old deliveries are removed; a loop that sleeps takes at most [`CHECK_EVERY`] longer.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Pause after an error of the store.
const STORE_RETRY: Duration = Duration::from_secs(2);
/// Time after which a claimed delivery is due again if its attempt was not recorded.
const CLAIM: SignedDuration = SignedDuration::from_secs(ANSWER_WAIT.as_secs() as i64 + 20);

/// Sends deliveries until shutdown. Only the leader does.
pub async fn run(webhooks: Arc<EventWebhooks>) {
    let shutdown = webhooks.background.shutdown.clone();
    let mut queued = webhooks.store.queued_deliveries();
    let mut prune_at = Instant::now();
    let work = async {
        loop {
            if prune_at <= Instant::now() {
                prune(&webhooks).await;
                prune_at = Instant::now() + PRUNE_EVERY;
            }
            queued.mark_unchanged();
            let pause = send_due(&webhooks).await.unwrap_or_else(|error| {
                tracing::warn!(error = %chain(&error), "cannot send events to webhooks; retrying");
                STORE_RETRY
            });
            tokio::select! {
                // Cannot fail: the store lives as long as the service.
                _ = queued.changed() => {}
                () = webhooks.ended.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    };
    shutdown.run_until_cancelled(work).await;
}

/// Removes deliveries that ended long ago, or that are too many.
async fn prune(webhooks: &EventWebhooks) {
    let age = SignedDuration::from_hours(24 * WEBHOOK_DELIVERY_DAYS);
    let before = now().checked_sub(age).unwrap_or(Timestamp::MIN);
    if let Err(error) = webhooks.store.prune_webhook_deliveries(before, WEBHOOK_DELIVERIES_KEPT).await {
        tracing::warn!(error = %chain(&error), "cannot remove old deliveries of webhooks; retrying later");
    }
}

/// Starts the attempts that are due; returns how long nothing else is.
async fn send_due(webhooks: &Arc<EventWebhooks>) -> Result<Duration> {
    let at = now();
    let retry_at = at.checked_add(CLAIM).unwrap_or(Timestamp::MAX);
    let claim = {
        let sending = webhooks.sending();
        let limit = ATTEMPTS_AT_ONCE.saturating_sub(sending.counts.values().sum());
        let (in_progress, last) = (sending.counts.clone(), sending.last.clone());
        DeliveryClaim { at, retry_at, limit, per_workspace: share(limit), in_progress, last }
    };
    if claim.limit == 0 {
        return Ok(CHECK_EVERY);
    }
    for (webhook, delivery) in webhooks.store.claim_webhook_deliveries(&claim).await? {
        let turn = Turn::new(Arc::clone(webhooks), webhook.workspace.clone());
        let shutdown = webhooks.background.shutdown.clone();
        webhooks.background.tasks.spawn(async move {
            shutdown.run_until_cancelled(attempt(&turn.webhooks, &webhook, delivery)).await;
        });
    }
    let next = webhooks.store.next_webhook_delivery().await?;
    // What is due already waits for an attempt to end.
    let until = next.and_then(|next| Duration::try_from(next.duration_since(now())).ok());
    Ok(until.filter(|wait| !wait.is_zero()).unwrap_or(CHECK_EVERY).min(CHECK_EVERY))
}

/// Attempts in progress that one workspace may have while `free` more can start. The last free ones are for
/// workspaces with none, so that slow receivers of a few workspaces do not stop the others.
fn share(free: u32) -> u32 {
    PER_WORKSPACE.min(free / 2).max(1)
}

async fn attempt(webhooks: &EventWebhooks, webhook: &WebhookRecord, delivery: DeliveryRecord) {
    let headers = signature::headers(&webhook.spec, &delivery.event, now(), &delivery.body);
    let began = Instant::now();
    let body = delivery.body.clone();
    let answer = webhooks.client.deliver_text("url", &webhook.spec.url, headers, body).await;
    let record = retry::judge(webhook, &delivery, &answer, now());
    let result = match &record.next {
        NextAttempt::Delivered => "delivered",
        NextAttempt::Retry(_) => "retry",
        NextAttempt::GiveUp | NextAttempt::Disable(_) => "failed",
    };
    webhooks.attempts.observe(&[result], began.elapsed().as_secs_f64());
    if let NextAttempt::Disable(reason) = &record.next {
        tracing::warn!(webhook = %webhook.id, reason, "a webhook is disabled");
    }
    if let Err(error) = webhooks.store.record_attempt(&record).await {
        let error = chain(&error);
        tracing::warn!(webhook = %webhook.id, error, "an event may be delivered to a webhook again");
    }
}

/// An attempt in progress. Dropping it makes room for another.
struct Turn {
    webhooks: Arc<EventWebhooks>,
    workspace: WorkspaceId,
}

impl Turn {
    fn new(webhooks: Arc<EventWebhooks>, workspace: WorkspaceId) -> Self {
        let mut sending = webhooks.sending();
        *sending.counts.entry(workspace.clone()).or_default() += 1;
        sending.last = Some(workspace.clone());
        drop(sending);
        Self { webhooks, workspace }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut sending = self.webhooks.sending();
        if let Some(count) = sending.counts.get_mut(&self.workspace) {
            *count -= 1;
            if *count == 0 {
                sending.counts.remove(&self.workspace);
            }
        }
        drop(sending);
        self.webhooks.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_receivers_of_few_workspaces_leave_room_for_others() {
        // Each workspace takes what it may until nobody can take more.
        let mut counts = [0_u32; 10];
        loop {
            let free = ATTEMPTS_AT_ONCE - counts.iter().sum::<u32>();
            let Some(next) = counts.iter_mut().find(|count| **count < share(free)) else { break };
            *next += 1;
        }
        assert!(
            counts.iter().sum::<u32>() < ATTEMPTS_AT_ONCE,
            "a new workspace finds a free one: {counts:?}"
        );
        assert_eq!(counts[0], PER_WORKSPACE);
    }
}
