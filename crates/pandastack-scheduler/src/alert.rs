//! Notifies a webhook that a schedule's runs keep failing.
//!
//! An alert is in the store until it was answered with 2xx or given up, so that it survives a restart; it may then arrive
//! twice.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use pandastack_store as store;
use pandastack_store::schedules::{RunRecord, ScheduleRecord};
use pandastack_types::api::Contents;
use pandastack_types::chain;
use pandastack_webhooks::{ANSWER_WAIT, Webhooks};
use serde_json::json;

use crate::dispatcher::{Dispatcher, later};
use crate::spec;

/// Times that an alert is tried.
const ATTEMPTS_MAX: u32 = 5;
/// Wait before it is retried, from the end of the last try at the latest.
const RETRY_WAIT: Duration = Duration::from_secs(15);
/// Alerts sent at once.
const ALERTS_AT_ONCE: u32 = 32;

/// Starts to send the alerts that are due.
pub(crate) async fn send_due(dispatcher: &Arc<Dispatcher>, now: Timestamp) -> store::Result<()> {
    let retry_at = later(now, ANSWER_WAIT + RETRY_WAIT);
    for (schedule, run) in dispatcher.store.claim_alerts(now, retry_at, ALERTS_AT_ONCE).await? {
        let owner = Arc::clone(dispatcher);
        dispatcher.activity.tasks.spawn(async move {
            let attempts = schedule.alert.as_ref().map_or(0, |alert| alert.attempts) + 1;
            let sent = send(&owner.webhooks, &schedule, &run).await;
            if let Err(why) = &sent {
                tracing::warn!(schedule = %schedule.id, attempts, why, "cannot deliver an alert");
            }
            if sent.is_ok() || attempts >= ATTEMPTS_MAX {
                if let Err(error) = owner.store.settle_alert(&schedule.id, &run.id).await {
                    tracing::warn!(
                        schedule = %schedule.id, error = %chain(&error),
                        "an alert may be sent again"
                    );
                }
                owner.activity.wake();
            }
        });
    }
    Ok(())
}

/// A schedule as a webhook may see it. Headers, variables, bodies and inputs hold secrets of the
/// target, which the receiver of the alert must not see; maps keep their names.
fn without_secrets(mut schedule: ScheduleRecord) -> ScheduleRecord {
    schedule.spec.target.mask();
    schedule
}

async fn send(webhooks: &Webhooks, schedule: &ScheduleRecord, run: &RunRecord) -> Result<(), String> {
    let Some(alert) = &schedule.spec.options.alert else { return Ok(()) };
    let body = json!({
        "event": "schedule.failing",
        "consecutive_failures": schedule.failures,
        "schedule": spec::schedule_view(without_secrets(schedule.clone())),
        "run": spec::run_view(schedule, run.clone()),
    });
    webhooks.deliver("alert.url", &alert.url, &body).await
}
