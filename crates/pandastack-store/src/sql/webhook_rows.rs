//! Rows of webhooks and deliveries.

use pandastack_types::api::DeliveryState;

use super::rows::{from_json, id, time, times};
use super::schedules::small;
use super::seal::sealed_row;
use crate::webhooks::{DeliveryRecord, WebhookRecord};
use crate::{Result, StoreError};

/// Selects webhooks.
pub(super) const COLUMNS: &str = "SELECT id, workspace_id, spec, events, enabled, disabled_reason, \
     failing_since_us, created_at_us FROM webhooks";
/// Selects deliveries.
pub(super) const DELIVERY: &str = "SELECT id, webhook_id, event_id, kind, body, state, attempts, result, \
     created_at_us, due_at_us, ended_at_us FROM webhook_deliveries";

#[derive(sqlx::FromRow)]
pub(super) struct WebhookRow {
    id: String,
    workspace_id: String,
    spec: String,
    events: String,
    enabled: i64,
    disabled_reason: Option<String>,
    failing_since_us: Option<i64>,
    created_at_us: i64,
}

sealed_row!(WebhookRow, WEBHOOKS);

impl TryFrom<WebhookRow> for WebhookRecord {
    type Error = StoreError;
    fn try_from(row: WebhookRow) -> Result<Self> {
        let filters = row.events.split(',').filter(|filter| !filter.is_empty());
        // A newer version may know more kinds of events.
        let events = filters.filter_map(|filter| filter.parse().ok()).collect();
        Ok(Self {
            id: id(row.id)?,
            workspace: id(row.workspace_id)?,
            events,
            enabled: row.enabled != 0,
            disabled_reason: row.disabled_reason,
            failing_since: times(row.failing_since_us)?,
            created_at: time(row.created_at_us)?,
            spec: from_json("webhook", &row.spec)?,
        })
    }
}

#[derive(sqlx::FromRow)]
pub(super) struct DeliveryRow {
    pub(super) id: i64,
    pub(super) webhook_id: String,
    event_id: String,
    kind: String,
    body: String,
    state: String,
    pub(super) attempts: i64,
    result: Option<String>,
    created_at_us: i64,
    due_at_us: Option<i64>,
    ended_at_us: Option<i64>,
}

impl TryFrom<DeliveryRow> for DeliveryRecord {
    type Error = StoreError;
    fn try_from(row: DeliveryRow) -> Result<Self> {
        let unknown = || StoreError::Corrupt {
            what: "state of a delivery",
            source: format!("`{}` is not a state", row.state).into(),
        };
        Ok(Self {
            id: row.id,
            webhook: id(row.webhook_id)?,
            event: row.event_id,
            kind: row.kind,
            body: row.body,
            state: DeliveryState::parse(&row.state).ok_or_else(unknown)?,
            attempts: small(row.attempts),
            result: row.result,
            created_at: time(row.created_at_us)?,
            due_at: times(row.due_at_us)?,
            ended_at: times(row.ended_at_us)?,
        })
    }
}
