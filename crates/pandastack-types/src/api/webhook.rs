//! Webhooks: URLs that receive the events of a workspace.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Contents;
use super::contents::mask_url;
use crate::WebhookId;

/// A kind of event, such as `sandbox.failed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WebhookEventKind {
    /// A sandbox was created and runs.
    SandboxCreated,
    /// A sandbox was paused.
    SandboxPaused,
    /// A paused sandbox was resumed.
    SandboxResumed,
    /// A sandbox went to sleep.
    SandboxHibernated,
    /// A sleeping sandbox woke.
    SandboxWoken,
    /// A sandbox was lost, or could not be created.
    SandboxFailed,
    /// A sandbox was deleted.
    SandboxDeleted,
    /// A deployment of an app went live.
    AppDeployed,
    /// A deployment of an app failed.
    AppDeploymentFailed,
    /// A message that `POST /v1/webhooks/{id}/test` sends.
    Ping,
}

/// Text that names no kind of event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an event; use one of {}, or `sandbox.*` or `app.*`", WebhookEventKind::names())]
pub struct UnknownWebhookEvent {
    text: String,
}

impl WebhookEventKind {
    /// All kinds that a webhook can choose.
    pub const ALL: [Self; 9] = [
        Self::SandboxCreated,
        Self::SandboxPaused,
        Self::SandboxResumed,
        Self::SandboxHibernated,
        Self::SandboxWoken,
        Self::SandboxFailed,
        Self::SandboxDeleted,
        Self::AppDeployed,
        Self::AppDeploymentFailed,
    ];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SandboxCreated => "sandbox.created",
            Self::SandboxPaused => "sandbox.paused",
            Self::SandboxResumed => "sandbox.resumed",
            Self::SandboxHibernated => "sandbox.hibernated",
            Self::SandboxWoken => "sandbox.woken",
            Self::SandboxFailed => "sandbox.failed",
            Self::SandboxDeleted => "sandbox.deleted",
            Self::AppDeployed => "app.deployed",
            Self::AppDeploymentFailed => "app.deployment_failed",
            Self::Ping => "ping",
        }
    }

    /// The part before the dot.
    fn group(self) -> &'static str {
        self.as_str().split_once('.').map_or("", |(group, _)| group)
    }

    /// Filter that matches all kinds of the same resource.
    pub fn group_filter(self) -> String {
        format!("{}.*", self.group())
    }

    fn names() -> String {
        Self::ALL.map(|kind| format!("`{}`", kind.as_str())).join(", ")
    }
}

impl fmt::Display for WebhookEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a webhook asks for: a kind of event, or all kinds of a resource, such as `sandbox.*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "sandbox.*")]
pub struct WebhookFilter(String);

impl WebhookFilter {
    /// The filter as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for WebhookFilter {
    type Err = UnknownWebhookEvent;

    fn from_str(text: &str) -> Result<Self, UnknownWebhookEvent> {
        let group = text.strip_suffix(".*");
        let is_known = |kind: &WebhookEventKind| kind.as_str() == text || group == Some(kind.group());
        if WebhookEventKind::ALL.iter().any(is_known) {
            return Ok(Self(text.to_owned()));
        }
        Err(UnknownWebhookEvent { text: text.chars().take(60).collect() })
    }
}

impl TryFrom<String> for WebhookFilter {
    type Error = UnknownWebhookEvent;

    fn try_from(text: String) -> Result<Self, UnknownWebhookEvent> {
        text.parse()
    }
}

impl From<WebhookFilter> for String {
    fn from(filter: WebhookFilter) -> Self {
        filter.0
    }
}

/// Request body of `POST /v1/webhooks`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateWebhook {
    /// URL that receives a `POST` for every event.
    pub url: String,
    /// Events to send: kinds such as `sandbox.failed`, or all of a resource, such as `sandbox.*`. Default:
    /// all events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<WebhookFilter>,
    /// Description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Request body of `PATCH /v1/webhooks/{id}`. Omitted fields are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PatchWebhook {
    /// New URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// New events; an empty list means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<WebhookFilter>>,
    /// New description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `false` to disable it: events that happen meanwhile are not sent later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// A webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Webhook {
    /// Webhook ID.
    pub id: WebhookId,
    /// URL that receives the events.
    pub url: String,
    /// Events that are sent; empty for all.
    pub events: Vec<WebhookFilter>,
    /// Description for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether events are sent.
    pub enabled: bool,
    /// Reason why the server disabled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// Time of the first failed attempt since the last delivery that was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub failing_since: Option<Timestamp>,
    /// Time when the webhook was created.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Secret that deliveries are signed with. Only in the responses to create and to rotate the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// The URL may be all that is needed to post to it.
impl Contents for Webhook {
    fn mask(&mut self) {
        mask_url(&mut self.url);
    }
}

/// State of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryState {
    /// Waits for its next attempt.
    Pending,
    /// The receiver accepted it.
    Delivered,
    /// All attempts failed.
    Failed,
}

impl DeliveryState {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
        }
    }

    /// The state of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Pending, Self::Delivered, Self::Failed].into_iter().find(|state| state.as_str() == name)
    }
}

/// An event on its way to a webhook, or sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookDelivery {
    /// Delivery ID.
    pub id: i64,
    /// Event ID, which the receiver gets as `webhook-id`. It is the same for every attempt.
    pub event_id: String,
    /// Kind of the event, such as `sandbox.failed`.
    #[serde(rename = "type")]
    pub kind: String,
    /// State of the delivery.
    pub state: DeliveryState,
    /// Attempts so far.
    pub attempts: u32,
    /// Result of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Time of the event.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time of the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_attempt_at: Option<Timestamp>,
    /// Time when the delivery was accepted or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_name_kinds_or_whole_resources() {
        for good in ["sandbox.failed", "app.deployed", "sandbox.*", "app.*"] {
            assert_eq!(good.parse::<WebhookFilter>().unwrap().as_str(), good);
        }
        for bad in ["", "*", "sandbox", "sandbox.", "sandbox.eaten", "ping", ".*", "sandbox.*.*"] {
            let refused = bad.parse::<WebhookFilter>().unwrap_err().to_string();
            assert!(refused.contains("`sandbox.created`") && refused.contains("`app.*`"), "{refused}");
        }
    }

    #[test]
    fn every_kind_matches_its_own_filters() {
        for kind in WebhookEventKind::ALL {
            assert!(kind.as_str().parse::<WebhookFilter>().is_ok());
            assert!(kind.group_filter().parse::<WebhookFilter>().is_ok());
        }
    }
}
