//! `/v1/webhooks`.

use std::sync::Arc;

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use pandastack_rest::{ApiError, ApiResult, Caller, Id, JsonBody, Query};
use pandastack_types::api::{CreateWebhook, Items, PatchWebhook, Webhook, WebhookDelivery};
use pandastack_types::limits::WEBHOOK_DELIVERIES_PAGE_MAX;
use pandastack_types::{Error, ErrorBody, WebhookId};
use serde::Deserialize;

use crate::service::{EventWebhooks, delivery_view, shown};

/// Deliveries in a list without `limit`.
const DELIVERIES_DEFAULT: u32 = 100;

/// `{id}/deliveries/{delivery}/...`: a delivery to a webhook.
pub struct DeliveryPath(WebhookId, i64);

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for DeliveryPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut http::request::Parts, state: &S) -> ApiResult<Self> {
        let both = axum::extract::Path::<(String, String)>::from_request_parts(parts, state).await;
        let axum::extract::Path((webhook, id)) = both.map_err(|_| Error::not_found("delivery", "?"))?;
        let webhook = webhook.parse().map_err(|_| Error::not_found("webhook", &webhook))?;
        Ok(Self(webhook, id.parse().map_err(|_| Error::not_found("delivery", &id))?))
    }
}

/// All routes. None takes an `Idempotency-Key`: responses with a secret must not be stored.
pub fn routes(webhooks: &Arc<EventWebhooks>) -> Router {
    Router::new()
        .route("/webhooks", get(list).post(create))
        .route("/webhooks/{id}", get(get_one).patch(change).delete(delete))
        .route("/webhooks/{id}/rotate-secret", post(rotate_secret))
        .route("/webhooks/{id}/test", post(test))
        .route("/webhooks/{id}/deliveries", get(deliveries))
        .route("/webhooks/{id}/deliveries/{delivery}/redeliver", post(redeliver))
        .with_state(Arc::clone(webhooks))
}

/// Create a webhook. Only this response and that of `rotate-secret` contain the secret.
#[utoipa::path(post, path = "/v1/webhooks", tag = "webhooks", request_body = CreateWebhook, responses(
    (status = 201, body = Webhook), (status = 400, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn create(
    State(webhooks): State<Arc<EventWebhooks>>,
    caller: Caller,
    JsonBody(request): JsonBody<CreateWebhook>,
) -> ApiResult<(StatusCode, Json<Webhook>)> {
    Ok((StatusCode::CREATED, Json(webhooks.create(caller.workspace, request).await?)))
}

/// List webhooks.
#[utoipa::path(get, path = "/v1/webhooks", tag = "webhooks",
    responses((status = 200, body = Items<Webhook>)))]
pub async fn list(
    State(webhooks): State<Arc<EventWebhooks>>,
    caller: Caller,
) -> ApiResult<Json<Items<Webhook>>> {
    let records = webhooks.store.webhooks(&caller.workspace).await?;
    let items = records.into_iter().map(shown).collect();
    Ok(Json(Items { items: caller.shown::<Vec<_>>(items) }))
}

/// Get a webhook.
#[utoipa::path(get, path = "/v1/webhooks/{id}", operation_id = "get_webhook", tag = "webhooks",
    params(("id" = WebhookId, Path)),
    responses((status = 200, body = Webhook), (status = 404, body = ErrorBody)))]
pub async fn get_one(
    State(webhooks): State<Arc<EventWebhooks>>,
    caller: Caller,
    Id(id): Id<WebhookId>,
) -> ApiResult<Json<Webhook>> {
    let record = webhooks.store.webhook(&caller.workspace, &id).await?;
    Ok(Json(caller.shown(shown(record))))
}

/// Update a webhook. Omitted settings are kept.
#[utoipa::path(patch, path = "/v1/webhooks/{id}", tag = "webhooks", params(("id" = WebhookId, Path)),
    request_body = PatchWebhook, responses((status = 200, body = Webhook), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub async fn change(
    State(webhooks): State<Arc<EventWebhooks>>,
    caller: Caller,
    Id(id): Id<WebhookId>,
    JsonBody(request): JsonBody<PatchWebhook>,
) -> ApiResult<Json<Webhook>> {
    Ok(Json(webhooks.change(&caller.workspace, &id, request).await?))
}

/// Delete a webhook and its deliveries.
#[utoipa::path(delete, path = "/v1/webhooks/{id}", tag = "webhooks", params(("id" = WebhookId, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub async fn delete(
    State(webhooks): State<Arc<EventWebhooks>>,
    caller: Caller,
    Id(id): Id<WebhookId>,
) -> ApiResult<StatusCode> {
    webhooks.store.delete_webhook(&caller.workspace, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Replace the secret of a webhook. For 24 hours, deliveries are also signed with the one before.
#[utoipa::path(post, path = "/v1/webhooks/{id}/rotate-secret", operation_id = "rotate_webhook_secret",
    tag = "webhooks", params(("id" = WebhookId, Path)),
    responses((status = 200, body = Webhook), (status = 404, body = ErrorBody)))]
pub async fn rotate_secret(
    State(webhooks): State<Arc<EventWebhooks>>,
    caller: Caller,
    Id(id): Id<WebhookId>,
) -> ApiResult<Json<Webhook>> {
    Ok(Json(webhooks.rotate_secret(&caller.workspace, &id).await?))
}

/// Send a test message (`ping`) to a webhook.
#[utoipa::path(post, path = "/v1/webhooks/{id}/test", operation_id = "test_webhook", tag = "webhooks",
    params(("id" = WebhookId, Path)), responses((status = 202, body = WebhookDelivery),
    (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub async fn test(
    State(webhooks): State<Arc<EventWebhooks>>,
    caller: Caller,
    Id(id): Id<WebhookId>,
) -> ApiResult<(StatusCode, Json<WebhookDelivery>)> {
    Ok((StatusCode::ACCEPTED, Json(webhooks.test(&caller.workspace, &id).await?)))
}

/// Query of a list of deliveries.
#[derive(Deserialize)]
pub struct DeliveriesQuery {
    limit: Option<u32>,
}

/// List deliveries to a webhook, newest first.
#[utoipa::path(get, path = "/v1/webhooks/{id}/deliveries", operation_id = "list_webhook_deliveries",
    tag = "webhooks", params(("id" = WebhookId, Path), ("limit" = Option<u32>, Query)),
    responses((status = 200, body = Items<WebhookDelivery>), (status = 400, body = ErrorBody),
    (status = 404, body = ErrorBody)))]
pub async fn deliveries(
    State(webhooks): State<Arc<EventWebhooks>>,
    caller: Caller,
    Id(id): Id<WebhookId>,
    Query(query): Query<DeliveriesQuery>,
) -> ApiResult<Json<Items<WebhookDelivery>>> {
    let limit = query.limit.unwrap_or(DELIVERIES_DEFAULT);
    if !(1..=WEBHOOK_DELIVERIES_PAGE_MAX).contains(&limit) {
        return Err(Error::bad_request(format!("`limit` must be 1 to {WEBHOOK_DELIVERIES_PAGE_MAX}")).into());
    }
    let webhook = webhooks.store.webhook(&caller.workspace, &id).await?;
    let records = webhooks.store.webhook_deliveries(&webhook.id, limit).await?;
    Ok(Json(Items { items: records.into_iter().map(delivery_view).collect() }))
}

/// Send a delivery that has ended again.
#[utoipa::path(post, path = "/v1/webhooks/{id}/deliveries/{delivery}/redeliver",
    operation_id = "redeliver_webhook", tag = "webhooks",
    params(("id" = WebhookId, Path), ("delivery" = i64, Path)),
    responses((status = 202, body = WebhookDelivery), (status = 404, body = ErrorBody),
    (status = 409, body = ErrorBody)))]
pub async fn redeliver(
    State(webhooks): State<Arc<EventWebhooks>>,
    caller: Caller,
    DeliveryPath(id, delivery): DeliveryPath,
) -> ApiResult<(StatusCode, Json<WebhookDelivery>)> {
    Ok((StatusCode::ACCEPTED, Json(webhooks.redeliver(&caller.workspace, &id, delivery).await?)))
}
