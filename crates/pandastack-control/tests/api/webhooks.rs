//! Webhooks: events of a workspace at a receiver.

use std::future::IntoFuture;

use axum::routing::post;
use http::{HeaderMap, StatusCode};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::harness::{PATIENCE, World};

/// A receiver of deliveries.
struct Receiver {
    url: String,
    messages: mpsc::Receiver<(HeaderMap, Value)>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Receiver {
    /// Answers the first deliveries with these statuses, and all others with 204.
    async fn start(statuses: &'static [StatusCode]) -> Self {
        let (sender, messages) = mpsc::channel(64);
        let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let answer = move |headers: HeaderMap, body: String| async move {
            let call = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            sender.send((headers, serde_json::from_str(&body).unwrap())).await.unwrap();
            statuses.get(call).copied().unwrap_or(StatusCode::NO_CONTENT)
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let server = axum::serve(listener, axum::Router::new().route("/hook", post(answer)));
        Self { url, messages, server: tokio::spawn(server.into_future()) }
    }

    async fn next(&mut self) -> (HeaderMap, Value) {
        tokio::time::timeout(PATIENCE, self.messages.recv()).await.unwrap().unwrap()
    }

    /// Type of the next message.
    async fn next_type(&mut self) -> String {
        self.next().await.1["type"].as_str().unwrap().to_owned()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn world() -> World {
    World::start_with(|config| config.schedules_private_targets = true).await
}

async fn create(world: &World, url: &str, events: &[&str]) -> Value {
    world.post("/v1/webhooks", json!({ "url": url, "events": events })).await.expect(201)
}

/// The deliveries of a webhook once the newest one is in that state.
async fn deliveries_when(world: &World, webhook: &Value, state: &str) -> Vec<Value> {
    let path = format!("/v1/webhooks/{}/deliveries", webhook["id"].as_str().unwrap());
    let changes = async {
        loop {
            let items = world.get(&path).await.expect(200)["items"].as_array().unwrap().clone();
            if items.first().is_some_and(|newest| newest["state"] == state) {
                return items;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, changes).await.unwrap()
}

/// The newest delivery of a webhook once it was attempted.
async fn attempted(world: &World, webhook: &Value) -> Value {
    let path = format!("/v1/webhooks/{}/deliveries", webhook["id"].as_str().unwrap());
    let attempt = async {
        loop {
            let newest = world.get(&path).await.expect(200)["items"][0].clone();
            if newest["result"].is_string() {
                return newest;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, attempt).await.unwrap()
}

#[tokio::test]
async fn a_webhook_receives_the_life_of_a_sandbox() {
    let (world, mut receiver) = (world().await, Receiver::start(&[]).await);
    let _agent = world.agent("host-a", 8192).await;
    let webhook = create(&world, &receiver.url, &[]).await;
    let secret = webhook["secret"].as_str().unwrap();
    assert!(secret.starts_with("whsec_"), "{secret}");
    let id = world.post("/v1/sandboxes", json!({ "metadata": { "k": "v" } })).await.expect(201)["id"].clone();
    let (headers, body) = receiver.next().await;
    assert_eq!(body["type"], "sandbox.created");
    assert_eq!((&body["data"]["sandbox_id"], &body["data"]["metadata"]["k"]), (&id, &json!("v")));
    assert_eq!(headers["webhook-id"].to_str().unwrap(), body["id"]);
    assert!(headers["webhook-signature"].to_str().unwrap().starts_with("v1,"));
    let path = format!("/v1/sandboxes/{}", id.as_str().unwrap());
    world.post(&format!("{path}/hibernate"), json!({})).await.expect(200);
    assert_eq!(receiver.next_type().await, "sandbox.hibernated");
    world.post(&format!("{path}/wake"), json!({})).await.expect(200);
    assert_eq!(receiver.next_type().await, "sandbox.woken");
    world.send(world.request(Method::DELETE, &path)).await.expect(204);
    assert_eq!(receiver.next_type().await, "sandbox.deleted");
    let deliveries = deliveries_when(&world, &webhook, "delivered").await;
    assert_eq!(deliveries.len(), 4);
    assert_eq!((&deliveries[0]["attempts"], &deliveries[0]["result"]), (&json!(1), &json!("204 No Content")));
    // The secret is shown once.
    let shown = world.get(&format!("/v1/webhooks/{}", webhook["id"].as_str().unwrap())).await.expect(200);
    assert!(shown["secret"].is_null() && shown["url"] == receiver.url.as_str(), "{shown}");
}

#[tokio::test]
async fn a_failed_delivery_is_sent_again_with_the_same_id() {
    let (world, mut receiver) = (world().await, Receiver::start(&[StatusCode::BAD_GATEWAY]).await);
    let webhook = create(&world, &receiver.url, &["sandbox.failed"]).await;
    let path = format!("/v1/webhooks/{}", webhook["id"].as_str().unwrap());
    let sent = world.post(&format!("{path}/test"), json!({})).await.expect(202);
    let (first, body) = receiver.next().await;
    assert_eq!((&body["type"], &body["data"]["webhook_id"]), (&json!("ping"), &webhook["id"]));
    let (second, again) = receiver.next().await;
    assert_eq!((&body, &first["webhook-id"]), (&again, &second["webhook-id"]));
    let delivered = deliveries_when(&world, &webhook, "delivered").await;
    assert_eq!((&delivered[0]["id"], &delivered[0]["attempts"]), (&sent["id"], &json!(2)));
    // By hand, once more.
    let redeliver = format!("{path}/deliveries/{}/redeliver", sent["id"]);
    world.post(&redeliver, json!({})).await.expect(202);
    assert_eq!(receiver.next().await.0["webhook-id"], first["webhook-id"]);
    world.post(&format!("{path}/deliveries/999/redeliver"), json!({})).await.refused(409, "conflict");
}

#[tokio::test]
async fn a_receiver_that_is_gone_disables_its_webhook() {
    let (world, mut receiver) = (world().await, Receiver::start(&[StatusCode::GONE]).await);
    let webhook = create(&world, &receiver.url, &[]).await;
    let path = format!("/v1/webhooks/{}", webhook["id"].as_str().unwrap());
    world.post(&format!("{path}/test"), json!({})).await.expect(202);
    receiver.next().await;
    deliveries_when(&world, &webhook, "failed").await;
    let shown = world.get(&path).await.expect(200);
    assert_eq!((&shown["enabled"], shown["disabled_reason"].is_string()), (&json!(false), true), "{shown}");
    world.post(&format!("{path}/test"), json!({})).await.refused(409, "conflict");
    let on =
        world.send(world.request(Method::PATCH, &path).json(&json!({ "enabled": true }))).await.expect(200);
    assert_eq!((&on["enabled"], &on["disabled_reason"]), (&json!(true), &Value::Null));
    world.post(&format!("{path}/test"), json!({})).await.expect(202);
    assert_eq!(receiver.next_type().await, "ping");
}

#[tokio::test]
async fn deliveries_survive_a_crash_of_the_server() {
    let mut world = world().await;
    // Nothing listens there yet.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let webhook = create(&world, &format!("http://{address}/hook"), &[]).await;
    let path = format!("/v1/webhooks/{}", webhook["id"].as_str().unwrap());
    world.post(&format!("{path}/test"), json!({})).await.expect(202);
    let tried = attempted(&world, &webhook).await;
    assert!(!tried["result"].as_str().unwrap().contains("hook"), "the URL may be a secret: {tried}");
    world.crash().await;
    let (sender, mut messages) = mpsc::channel(8);
    let answer = move |body: String| async move { sender.send(body).await.unwrap() };
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let server = axum::serve(listener, axum::Router::new().route("/hook", post(answer)));
    let server = tokio::spawn(server.into_future());
    world.start_again().await;
    let body = tokio::time::timeout(PATIENCE, messages.recv()).await.unwrap().unwrap();
    assert!(body.contains("\"ping\""), "{body}");
    server.abort();
}

#[tokio::test]
async fn invalid_webhooks_are_rejected() {
    let world = World::start().await;
    let refused = async |body: Value, expected: &str| {
        let answer = world.post("/v1/webhooks", body).await.refused(400, "bad_request");
        let error = answer["error"].as_str().unwrap();
        assert!(error.contains(expected), "{error}");
    };
    refused(json!({ "url": "http://127.0.0.1/" }), "public address").await;
    refused(json!({ "url": "ftp://example.com/" }), "http").await;
    refused(json!({ "url": "https://example.com/", "events": ["sandbox.eaten"] }), "sandbox.failed").await;
    refused(json!({ "url": "https://example.com/", "description": "x".repeat(257) }), "256 bytes").await;
    refused(json!({ "url": "https://example.com/", "event": [] }), "events").await;
    let webhook = create(&world, "https://example.com/", &["sandbox.*", "sandbox.*", "app.deployed"]).await;
    assert_eq!(webhook["events"], json!(["app.deployed", "sandbox.*"]));
    let path = format!("/v1/webhooks/{}", webhook["id"].as_str().unwrap());
    let private = json!({ "url": "http://10.0.0.1/" });
    world.send(world.request(Method::PATCH, &path).json(&private)).await.refused(400, "bad_request");
    let rotated = world.post(&format!("{path}/rotate-secret"), json!({})).await.expect(200);
    assert_ne!(rotated["secret"], webhook["secret"]);
    world.send(world.request(Method::DELETE, &path)).await.expect(204);
    world.get(&path).await.refused(404, "not_found");
}
