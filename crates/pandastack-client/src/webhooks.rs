//! Webhooks and their deliveries.

use pandastack_types::WebhookId;
use pandastack_types::api::{CreateWebhook, PatchWebhook, Webhook, WebhookDelivery};
use reqwest::Method;

use crate::client::{Client, List, READ_SECONDS};
use crate::error::Result;

impl Client {
    /// Creates a webhook. The response has its secret.
    pub async fn create_webhook(&self, request: &CreateWebhook) -> Result<Webhook> {
        self.call(Method::POST, &["webhooks"], READ_SECONDS).json(request).receive().await
    }

    /// Every webhook of the workspace.
    pub async fn list_webhooks(&self) -> Result<Vec<Webhook>> {
        let list: List<Webhook> = self.call(Method::GET, &["webhooks"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Returns the webhook.
    pub async fn get_webhook(&self, id: &WebhookId) -> Result<Webhook> {
        self.call(Method::GET, &["webhooks", id.as_str()], READ_SECONDS).receive().await
    }

    /// Changes a webhook.
    pub async fn patch_webhook(&self, id: &WebhookId, request: &PatchWebhook) -> Result<Webhook> {
        self.call(Method::PATCH, &["webhooks", id.as_str()], READ_SECONDS).json(request).receive().await
    }

    /// Deletes a webhook.
    pub async fn delete_webhook(&self, id: &WebhookId) -> Result<()> {
        self.call(Method::DELETE, &["webhooks", id.as_str()], READ_SECONDS).finish().await
    }

    /// Replaces the secret of a webhook. The response has the new one.
    pub async fn rotate_webhook_secret(&self, id: &WebhookId) -> Result<Webhook> {
        let path = ["webhooks", id.as_str(), "rotate-secret"];
        self.call(Method::POST, &path, READ_SECONDS).receive().await
    }

    /// Sends a test message.
    pub async fn test_webhook(&self, id: &WebhookId) -> Result<WebhookDelivery> {
        self.call(Method::POST, &["webhooks", id.as_str(), "test"], READ_SECONDS).receive().await
    }

    /// Deliveries to a webhook, newest first.
    pub async fn list_webhook_deliveries(&self, id: &WebhookId, limit: u32) -> Result<Vec<WebhookDelivery>> {
        let call = self.call(Method::GET, &["webhooks", id.as_str(), "deliveries"], READ_SECONDS);
        let list: List<WebhookDelivery> =
            call.query(&[("limit", limit.to_string().as_str())]).receive().await?;
        Ok(list.into_vec())
    }

    /// Sends a delivery that has ended again.
    pub async fn redeliver_webhook(&self, id: &WebhookId, delivery: i64) -> Result<WebhookDelivery> {
        let delivery = delivery.to_string();
        let path = ["webhooks", id.as_str(), "deliveries", delivery.as_str(), "redeliver"];
        self.call(Method::POST, &path, READ_SECONDS).receive().await
    }
}
