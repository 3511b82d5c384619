//! Webhooks of workspaces, and the deliveries of events to them.
//!
//! An event becomes one delivery for each webhook that asks for it, in the transaction that commits
//! the event: neither exists without the other. A delivery that was claimed is due again by itself,
//! so a server that is killed loses none; its receiver may get one twice, with the same event id.

use std::collections::HashMap;

use async_trait::async_trait;
use jiff::Timestamp;
use pandastack_types::api::{DeliveryState, WebhookEventKind, WebhookFilter};
use pandastack_types::{WebhookId, WorkspaceId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::Result;

/// A webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRecord {
    /// Its id in the API.
    pub id: WebhookId,
    /// Tenant.
    pub workspace: WorkspaceId,
    /// Events to send; empty for all.
    pub events: Vec<WebhookFilter>,
    /// Whether events are sent.
    pub enabled: bool,
    /// Reason why the server disabled it.
    pub disabled_reason: Option<String>,
    /// First failed attempt since the last success.
    pub failing_since: Option<Timestamp>,
    /// When it was created.
    pub created_at: Timestamp,
    /// The rest.
    pub spec: WebhookSpecRecord,
}

/// Fields of a webhook that no query filters by.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WebhookSpecRecord {
    /// URL that receives the events.
    pub url: String,
    /// Secret that deliveries are signed with.
    pub secret: String,
    /// The secret before, for as long as receivers may still use it.
    pub previous: Option<PreviousSecret>,
    /// Description for people.
    pub description: Option<String>,
}

/// A secret that was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreviousSecret {
    /// The secret.
    pub secret: String,
    /// Until when deliveries are signed with it, too.
    pub until: Timestamp,
}

/// An event for webhooks.
#[derive(Debug, Clone, PartialEq)]
pub struct WebhookEvent {
    /// Identifies the event for its receivers.
    pub id: String,
    /// Workspace in which it happened.
    pub workspace: WorkspaceId,
    /// Kind.
    pub kind: WebhookEventKind,
    /// When it happened.
    pub at: Timestamp,
    /// The resource, and details.
    pub data: Value,
}

impl WebhookEvent {
    /// The body that receivers get.
    pub fn body(&self) -> String {
        let Self { id, workspace, kind, at, data } = self;
        let body = json!({
            "id": id, "type": kind.as_str(), "created_at": at, "workspace": workspace, "data": data,
        });
        body.to_string()
    }
}

/// A delivery of an event to a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryRecord {
    /// Its id.
    pub id: i64,
    /// Where it goes.
    pub webhook: WebhookId,
    /// The event.
    pub event: String,
    /// Kind of the event.
    pub kind: String,
    /// What is sent.
    pub body: String,
    /// State.
    pub state: DeliveryState,
    /// Attempts, the one in progress included.
    pub attempts: u32,
    /// Result of the last attempt.
    pub result: Option<String>,
    /// When the event happened.
    pub created_at: Timestamp,
    /// When the next attempt is due.
    pub due_at: Option<Timestamp>,
    /// When it was accepted or failed.
    pub ended_at: Option<Timestamp>,
}

/// Which deliveries to claim. Workspaces take turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryClaim {
    /// Deliveries that are due by then.
    pub at: Timestamp,
    /// When a claimed delivery is due again, unless its attempt is recorded before.
    pub retry_at: Timestamp,
    /// At most as many in all.
    pub limit: u32,
    /// At most as many attempts in progress of one workspace.
    pub per_workspace: u32,
    /// Attempts in progress of workspaces.
    pub in_progress: HashMap<WorkspaceId, u32>,
    /// The workspace whose turn was last.
    pub last: Option<WorkspaceId>,
}

/// The result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The delivery.
    pub delivery: i64,
    /// When the attempt ended.
    pub at: Timestamp,
    /// The result in words.
    pub result: String,
    /// What happens next.
    pub next: NextAttempt,
}

/// What happens after an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextAttempt {
    /// The receiver accepted the delivery.
    Delivered,
    /// Another attempt.
    Retry(Timestamp),
    /// None: the delivery has failed.
    GiveUp,
    /// None, and the webhook is disabled for that reason; its other deliveries fail, too.
    Disable(String),
}

/// Webhooks and their deliveries.
#[async_trait]
pub trait WebhookStore: Send + Sync {
    /// Adds a webhook. Quota: `WEBHOOKS_PER_WORKSPACE_MAX`.
    async fn insert_webhook(&self, webhook: &WebhookRecord) -> Result<()>;
    /// Returns the webhook of a workspace.
    async fn webhook(&self, workspace: &WorkspaceId, id: &WebhookId) -> Result<WebhookRecord>;
    /// The webhooks of a workspace, oldest first.
    async fn webhooks(&self, workspace: &WorkspaceId) -> Result<Vec<WebhookRecord>>;
    /// Changes a webhook in one transaction, and returns it. One that is not enabled keeps no pending
    /// delivery.
    async fn change_webhook(
        &self,
        workspace: &WorkspaceId,
        id: &WebhookId,
        change: &mut (dyn for<'a> FnMut(&'a mut WebhookRecord) + Send),
    ) -> Result<WebhookRecord>;
    /// Removes a webhook and its deliveries.
    async fn delete_webhook(&self, workspace: &WorkspaceId, id: &WebhookId) -> Result<()>;
    /// Adds a delivery to one webhook, whatever events it asks for, and returns it.
    async fn insert_delivery(&self, webhook: &WebhookId, event: &WebhookEvent) -> Result<DeliveryRecord>;
    /// Deliveries of a webhook, newest first.
    async fn webhook_deliveries(&self, webhook: &WebhookId, limit: u32) -> Result<Vec<DeliveryRecord>>;
    /// Makes a delivery that has ended pending again, with all its attempts; `None` if the webhook
    /// has no such delivery or it has not ended.
    async fn redeliver(
        &self,
        webhook: &WebhookId,
        delivery: i64,
        at: Timestamp,
    ) -> Result<Option<DeliveryRecord>>;
    /// Claims deliveries that are due, the oldest of each workspace first. Removes those whose webhook was
    /// deleted or disabled while their event was committed.
    async fn claim_webhook_deliveries(
        &self,
        claim: &DeliveryClaim,
    ) -> Result<Vec<(WebhookRecord, DeliveryRecord)>>;
    /// Records the result of an attempt.
    async fn record_attempt(&self, attempt: &Attempt) -> Result<()>;
    /// When the next delivery is due.
    async fn next_webhook_delivery(&self) -> Result<Option<Timestamp>>;
    /// Removes deliveries that ended before then, and of each webhook all but the newest `kept`
    /// that have ended.
    async fn prune_webhook_deliveries(&self, ended_before: Timestamp, kept: u32) -> Result<u64>;
    /// Changes whenever this process commits deliveries.
    fn queued_deliveries(&self) -> watch::Receiver<u64>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receivers_get_kind_time_workspace_and_data() {
        let event = WebhookEvent {
            id: "evt_1".to_owned(),
            workspace: WorkspaceId::default_workspace(),
            kind: WebhookEventKind::SandboxFailed,
            at: Timestamp::from_second(1_700_000_000).unwrap(),
            data: json!({ "sandbox_id": "a" }),
        };
        let body: Value = serde_json::from_str(&event.body()).unwrap();
        let expected = json!({
            "id": "evt_1", "type": "sandbox.failed", "created_at": "2023-11-14T22:13:20Z",
            "workspace": "default", "data": { "sandbox_id": "a" },
        });
        assert_eq!(body, expected);
    }
}
