//! What the result of an attempt means for its delivery and its webhook.

use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use pandastack_store::webhooks::{Attempt, DeliveryRecord, NextAttempt, WebhookRecord};
use pandastack_types::limits::{WEBHOOK_ATTEMPTS_MAX, WEBHOOK_FAILING_DAYS_MAX};
use pandastack_webhooks::DeliveryError;

/// Seconds between attempts: about a day in all.
const WAIT_SECONDS: [i64; WEBHOOK_ATTEMPTS_MAX as usize - 1] =
    [5, 30, 120, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600];
/// Longest result that is kept.
const RESULT_CHARS_MAX: usize = 500;

/// The record of an attempt that ended at that time.
pub(crate) fn judge(
    webhook: &WebhookRecord,
    delivery: &DeliveryRecord,
    answer: &Result<StatusCode, DeliveryError>,
    at: Timestamp,
) -> Attempt {
    let result = match answer {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    let result = result.chars().take(RESULT_CHARS_MAX).collect();
    Attempt { delivery: delivery.id, at, result, next: next(webhook, delivery, answer, at) }
}

fn next(
    webhook: &WebhookRecord,
    delivery: &DeliveryRecord,
    answer: &Result<StatusCode, DeliveryError>,
    at: Timestamp,
) -> NextAttempt {
    match answer {
        Ok(_) => return NextAttempt::Delivered,
        // The receiver says that it wants nothing more.
        Err(DeliveryError::Answered(StatusCode::GONE)) => {
            return NextAttempt::Disable("its receiver responded with 410 Gone".to_owned());
        }
        Err(_) => {}
    }
    let failing_max = SignedDuration::from_hours(24 * WEBHOOK_FAILING_DAYS_MAX);
    if let Some(since) = webhook.failing_since.filter(|since| at.duration_since(*since) >= failing_max) {
        return NextAttempt::Disable(format!("it accepted no delivery since {since}"));
    }
    if matches!(answer, Err(DeliveryError::Never(_))) {
        return NextAttempt::GiveUp;
    }
    let wait =
        usize::try_from(delivery.attempts).ok().and_then(|made| WAIT_SECONDS.get(made.saturating_sub(1)));
    match wait.and_then(|seconds| at.checked_add(SignedDuration::from_secs(*seconds)).ok()) {
        Some(due) => NextAttempt::Retry(due),
        None => NextAttempt::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use pandastack_store::webhooks::WebhookSpecRecord;
    use pandastack_types::api::DeliveryState;
    use pandastack_types::{WebhookId, WorkspaceId};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    /// What follows attempt number `attempts`, of a webhook that fails since `failing_since`.
    fn after(
        attempts: u32,
        failing_since: Option<Timestamp>,
        answer: Result<StatusCode, DeliveryError>,
    ) -> NextAttempt {
        let webhook = WebhookRecord {
            id: WebhookId::random(),
            workspace: WorkspaceId::default_workspace(),
            events: Vec::new(),
            enabled: true,
            disabled_reason: None,
            failing_since,
            created_at: at(0),
            spec: WebhookSpecRecord::default(),
        };
        let delivery = DeliveryRecord {
            id: 1,
            webhook: webhook.id.clone(),
            event: "evt_1".to_owned(),
            kind: "ping".to_owned(),
            body: "{}".to_owned(),
            state: DeliveryState::Pending,
            attempts,
            result: None,
            created_at: at(0),
            due_at: None,
            ended_at: None,
        };
        judge(&webhook, &delivery, &answer, at(0)).next
    }

    fn answered(status: u16) -> Result<StatusCode, DeliveryError> {
        Err(DeliveryError::Answered(StatusCode::from_u16(status).unwrap()))
    }

    #[test]
    fn failures_are_retried_for_about_a_day() {
        assert_eq!(after(1, None, Ok(StatusCode::NO_CONTENT)), NextAttempt::Delivered);
        assert_eq!(after(1, None, answered(500)), NextAttempt::Retry(at(5)));
        assert_eq!(after(2, None, answered(404)), NextAttempt::Retry(at(30)));
        let unreachable = Err(DeliveryError::Unreachable("connection refused".to_owned()));
        assert_eq!(after(9, None, unreachable), NextAttempt::Retry(at(12 * 3600)));
        assert_eq!(after(WEBHOOK_ATTEMPTS_MAX, None, answered(500)), NextAttempt::GiveUp);
        let total: i64 = WAIT_SECONDS.iter().sum();
        assert!((20 * 3600..=26 * 3600).contains(&total), "{total}");
    }

    #[test]
    fn a_url_that_is_refused_is_not_retried() {
        assert_eq!(after(1, None, Err(DeliveryError::Never("private".to_owned()))), NextAttempt::GiveUp);
    }

    #[test]
    fn a_webhook_is_disabled_when_it_is_gone_or_fails_for_days() {
        assert!(matches!(after(1, None, answered(410)), NextAttempt::Disable(_)));
        let days = 24 * 3600 * WEBHOOK_FAILING_DAYS_MAX;
        assert_eq!(after(1, Some(at(1 - days)), answered(500)), NextAttempt::Retry(at(5)));
        assert!(matches!(after(1, Some(at(-days)), answered(500)), NextAttempt::Disable(_)));
        assert_eq!(after(1, Some(at(-days)), Ok(StatusCode::OK)), NextAttempt::Delivered);
    }
}
