//! The state of the service, and what the API changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::SignedDuration;
use pandastack_metrics::{Latencies, Page};
use pandastack_sandboxes::Background;
use pandastack_store::clock::now;
use pandastack_store::webhooks::{
    DeliveryRecord, PreviousSecret, WebhookEvent, WebhookRecord, WebhookSpecRecord, WebhookStore,
};
use pandastack_types::api::{
    CreateWebhook, PatchWebhook, Webhook, WebhookDelivery, WebhookEventKind, WebhookFilter,
};
use pandastack_types::limits::{WEBHOOK_DESCRIPTION_BYTES_MAX, WEBHOOK_EVENTS_MAX};
use pandastack_types::{Error, Result, WebhookId, WorkspaceId};
use pandastack_webhooks::Webhooks;
use serde_json::json;
use tokio::sync::Notify;

use crate::signature;

/// Time for which deliveries are also signed with a secret that was replaced.
const OVERLAP: SignedDuration = SignedDuration::from_hours(24);

/// Attempts in progress.
#[derive(Default)]
pub(crate) struct Sending {
    /// By workspace.
    pub(crate) counts: HashMap<WorkspaceId, u32>,
    /// The workspace whose turn was last.
    pub(crate) last: Option<WorkspaceId>,
}

/// The webhooks of this server.
pub struct EventWebhooks {
    pub(crate) store: Arc<dyn WebhookStore>,
    /// Makes the requests.
    pub(crate) client: Arc<Webhooks>,
    pub(crate) background: Background,
    /// Attempts in progress.
    sending: Mutex<Sending>,
    /// Notified when an attempt ends.
    pub(crate) ended: Notify,
    /// Time of attempts, by result.
    pub(crate) attempts: Latencies,
}

impl EventWebhooks {
    /// Webhooks with these records, whose deliveries are sent with that client.
    pub fn new(store: Arc<dyn WebhookStore>, client: Arc<Webhooks>, background: Background) -> Self {
        Self {
            store,
            client,
            background,
            sending: Mutex::default(),
            ended: Notify::new(),
            attempts: Latencies::new(
                "pandastack_webhook_attempt_seconds",
                "Time that attempts to deliver events to webhooks took.",
                &["result"],
            ),
        }
    }

    /// Adds counters to the page of metrics.
    pub fn add_metrics(&self, page: &mut Page) {
        page.latencies(&self.attempts);
    }

    pub(crate) fn sending(&self) -> MutexGuard<'_, Sending> {
        // Every critical section leaves both whole.
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a webhook. The response has its secret.
    pub(crate) async fn create(&self, workspace: WorkspaceId, request: CreateWebhook) -> Result<Webhook> {
        let CreateWebhook { url, events, description } = request;
        self.client.check_url("url", &url)?;
        let spec = WebhookSpecRecord { url, secret: new_secret()?, previous: None, description };
        check_description(spec.description.as_deref())?;
        let record = WebhookRecord {
            id: WebhookId::random(),
            workspace,
            events: checked_events(events)?,
            enabled: true,
            disabled_reason: None,
            failing_since: None,
            created_at: now(),
            spec,
        };
        self.store.insert_webhook(&record).await?;
        Ok(with_secret(record))
    }

    /// Changes a webhook. Enabling it forgets earlier failures.
    pub(crate) async fn change(
        &self,
        workspace: &WorkspaceId,
        id: &WebhookId,
        patch: PatchWebhook,
    ) -> Result<Webhook> {
        let PatchWebhook { url, events, description, enabled } = patch;
        if let Some(url) = &url {
            self.client.check_url("url", url)?;
        }
        check_description(description.as_deref())?;
        let events = events.map(checked_events).transpose()?;
        let mut change = |record: &mut WebhookRecord| {
            if let Some(url) = &url {
                record.spec.url.clone_from(url);
            }
            if let Some(events) = &events {
                record.events.clone_from(events);
            }
            if let Some(description) = &description {
                record.spec.description = Some(description.clone()).filter(|text| !text.is_empty());
            }
            if let Some(enabled) = enabled {
                (record.enabled, record.disabled_reason, record.failing_since) = (enabled, None, None);
            }
        };
        Ok(shown(self.store.change_webhook(workspace, id, &mut change).await?))
    }

    /// Replaces the secret. The one before signs deliveries, too, for a day.
    pub(crate) async fn rotate_secret(&self, workspace: &WorkspaceId, id: &WebhookId) -> Result<Webhook> {
        let until = now().checked_add(OVERLAP).map_err(Error::internal)?;
        let new = new_secret()?;
        let mut rotate = |record: &mut WebhookRecord| {
            let secret = std::mem::replace(&mut record.spec.secret, new.clone());
            record.spec.previous = Some(PreviousSecret { secret, until });
        };
        Ok(with_secret(self.store.change_webhook(workspace, id, &mut rotate).await?))
    }

    /// Sends a test message, whatever events the webhook asks for.
    pub(crate) async fn test(&self, workspace: &WorkspaceId, id: &WebhookId) -> Result<WebhookDelivery> {
        let record = self.enabled(workspace, id).await?;
        let event = WebhookEvent {
            // As random as any id.
            id: format!("evt_test_{}", WebhookId::random()),
            workspace: workspace.clone(),
            kind: WebhookEventKind::Ping,
            at: now(),
            data: json!({ "webhook_id": record.id }),
        };
        Ok(delivery_view(self.store.insert_delivery(&record.id, &event).await?))
    }

    /// Sends a delivery that has ended again.
    pub(crate) async fn redeliver(
        &self,
        workspace: &WorkspaceId,
        id: &WebhookId,
        delivery: i64,
    ) -> Result<WebhookDelivery> {
        let record = self.enabled(workspace, id).await?;
        match self.store.redeliver(&record.id, delivery, now()).await? {
            Some(again) => Ok(delivery_view(again)),
            None => {
                let why =
                    "has no such delivery that has ended; list them with `pandastack webhook deliveries`";
                Err(Error::conflict(format!("webhook `{id}` {why}")))
            }
        }
    }

    async fn enabled(&self, workspace: &WorkspaceId, id: &WebhookId) -> Result<WebhookRecord> {
        let record = self.store.webhook(workspace, id).await?;
        if !record.enabled {
            let hint = format!("enable it with `pandastack webhook update {id} --enable`");
            return Err(Error::conflict(format!("webhook `{id}` is disabled; {hint}")));
        }
        Ok(record)
    }
}

fn new_secret() -> Result<String> {
    signature::new_secret().map_err(Error::internal)
}

fn check_description(text: Option<&str>) -> Result<()> {
    if text.is_some_and(|text| text.len() > WEBHOOK_DESCRIPTION_BYTES_MAX) {
        let what = format!("`description` must be at most {WEBHOOK_DESCRIPTION_BYTES_MAX} bytes");
        return Err(Error::bad_request(what));
    }
    Ok(())
}

/// Each filter once.
fn checked_events(mut events: Vec<WebhookFilter>) -> Result<Vec<WebhookFilter>> {
    if events.len() > WEBHOOK_EVENTS_MAX {
        return Err(Error::bad_request(format!("`events` must have at most {WEBHOOK_EVENTS_MAX} entries")));
    }
    events.sort();
    events.dedup();
    Ok(events)
}

/// The record as the API shows it.
pub(crate) fn shown(record: WebhookRecord) -> Webhook {
    let WebhookRecord { id, events, enabled, disabled_reason, failing_since, created_at, spec, .. } = record;
    let WebhookSpecRecord { url, description, .. } = spec;
    Webhook {
        id,
        url,
        events,
        description,
        enabled,
        disabled_reason,
        failing_since,
        created_at,
        secret: None,
    }
}

fn with_secret(record: WebhookRecord) -> Webhook {
    let secret = Some(record.spec.secret.clone());
    Webhook { secret, ..shown(record) }
}

/// A delivery as the API shows it.
pub(crate) fn delivery_view(record: DeliveryRecord) -> WebhookDelivery {
    WebhookDelivery {
        id: record.id,
        event_id: record.event,
        kind: record.kind,
        state: record.state,
        attempts: record.attempts,
        result: record.result,
        created_at: record.created_at,
        next_attempt_at: record.due_at,
        ended_at: record.ended_at,
    }
}
