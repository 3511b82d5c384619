//! Two control servers on one PostgreSQL database.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use pandastack_control::ServeError;
use reqwest::Method;
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio::sync::Notify;

use crate::fake_agent::FakeAgent;
use crate::harness::{World, eventually};
use crate::postgres_server::Server;

/// A leader and a follower, and a host that reports to the follower.
struct Pair {
    first: World,
    second: World,
    agent: FakeAgent,
    url: String,
    _server: Server,
}

impl Pair {
    async fn start(test: &str) -> Option<Self> {
        let server = Server::start(test)?;
        let url = server.database().await;
        let on_database = |config: &mut pandastack_control::ControlConfig| {
            config.database_url = Some(url.parse().unwrap());
        };
        let first = World::start_with(on_database).await;
        let mut second = World::start_with(on_database).await;
        second.token.clone_from(&first.token);
        let agent = second.agent("host-a", 8192).await;
        Some(Self { first, second, agent, url, _server: server })
    }

    async fn count(&self, query: &'static str) -> i64 {
        let mut connection = PgConnection::connect(&self.url).await.unwrap();
        sqlx::query_scalar(query).fetch_one(&mut connection).await.unwrap()
    }
}

#[tokio::test]
async fn replicas_share_sandboxes_and_forward_leader_requests() {
    let Some(pair) = Pair::start("both_serve_the_same_sandboxes").await else { return };
    let Pair { first, second, agent, .. } = &pair;
    let id = first.create().await;
    second.post(&format!("/v1/sandboxes/{id}/exec"), json!({"cmd": "true"})).await.expect(200);
    // A change on one replica is visible on the other, also on a stream that was open before.
    let follow =
        first.request(Method::GET, &format!("/v1/sandboxes/{id}/events?follow=1")).send().await.unwrap();
    let mut frames = follow.bytes_stream();
    second.post(&format!("/v1/sandboxes/{id}/pause"), json!({})).await.expect(204);
    assert_eq!(first.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["status"], "paused");
    second.post(&format!("/v1/sandboxes/{id}/resume"), json!({})).await.expect(204);
    let mut text = String::new();
    while !text.contains("resumed") {
        text.push_str(std::str::from_utf8(&frames.next().await.unwrap().unwrap()).unwrap());
    }
    let order = ["creating", "created", "paused", "resumed"].map(|kind| text.find(&format!("\"{kind}\"")));
    assert!(order.is_sorted() && order[0].is_some(), "{text}");
    // Requests about hosts and services are forwarded to the leader.
    assert_eq!(second.get("/v1/hosts").await.expect(200)["items"][0]["sandboxes"], 0);
    agent.report().await;
    assert_eq!(second.get("/v1/hosts").await.expect(200)["items"][0]["sandboxes"], 1);
    let schedule =
        json!({"name": "s", "every_seconds": 3600, "target": {"type": "http", "url": "http://example.com"}});
    let made = second.post("/v1/schedules", schedule).await;
    assert!(made.status < 500, "{}", made.json);
    second.get("/v1/schedules").await.expect(200);
    second.get("/v1/apps/none").await.refused(404, "not_found");
    second.delete(&format!("/v1/sandboxes/{id}")).await.expect(204);
    first.get(&format!("/v1/sandboxes/{id}")).await.refused(404, "not_found");
    assert!(agent.ids().is_empty());
}

#[tokio::test]
async fn the_leader_ignores_sandboxes_that_a_follower_is_creating() {
    let Some(mut pair) = Pair::start("a_follower_create").await else { return };
    let gate = Arc::new(Notify::new());
    pair.agent.lock().create_gate = Some(gate.clone());
    let request = |world: &World| {
        world.request(Method::POST, "/v1/sandboxes").header("idempotency-key", "k").json(&json!({}))
    };
    let making = tokio::spawn(request(&pair.second).send());
    eventually("it waits at the host", || async { pair.agent.lock().creates == 1 }).await;
    let id = pair.first.ids().await[0].clone();
    // Reports without it, and the same request at the other server: it is still being made.
    pair.agent.report().await;
    pair.agent.report().await;
    pair.first.send(request(&pair.first)).await.refused(409, "idempotency_conflict");
    assert_eq!(pair.first.kinds(&id).await, ["creating"]);
    gate.notify_waiters();
    assert_eq!(making.await.unwrap().unwrap().status(), 201);
    // The leader undoes creates of a replica that died.
    let lost = tokio::spawn(pair.second.request(Method::POST, "/v1/sandboxes").json(&json!({})).send());
    eventually("another waits at the host", || async { pair.agent.lock().creates == 2 }).await;
    pair.second.crash().await;
    lost.abort();
    pair.agent.lock().create_gate = None;
    let agent = pair.agent.reporting_to(pair.first.internal_socket());
    eventually("only the first is left", || async {
        agent.report().await;
        pair.first.ids().await == std::slice::from_ref(&id)
    })
    .await;
}

#[tokio::test]
async fn sandboxes_expire_once_across_a_leader_failover() {
    let Some(mut pair) = Pair::start("a_follower_takes_over").await else { return };
    let short = json!({"ttl_seconds": 1, "on_timeout": "kill"});
    let id = pair.second.post("/v1/sandboxes", short.clone()).await.expect(201)["id"].clone();
    eventually("the leader ends it", || async { pair.agent.ids().is_empty() }).await;
    let events = "SELECT COUNT(*) FROM events WHERE kind = 'deleting'";
    assert_eq!(pair.count(events).await, 1, "{id}");
    pair.first.crash().await;
    pair.second.post("/v1/sandboxes", short).await.expect(201);
    eventually("the successor ends the next one", || async { pair.agent.ids().is_empty() }).await;
    pair.second.get("/v1/schedules").await.expect(200);
    assert_eq!(pair.count(events).await, 2);
    // A restarted replica follows.
    pair.first.start_again().await;
    assert_eq!(
        pair.first.get("/v1/schedules").await.expect(200),
        pair.second.get("/v1/schedules").await.expect(200)
    );
}

#[tokio::test]
async fn a_leader_without_session_stops_before_its_successor_starts() {
    let Some(mut pair) = Pair::start("a_leader_that_loses_its_session").await else { return };
    let began = tokio::time::Instant::now();
    let cut =
        "SELECT COUNT(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1";
    assert_eq!(pair.count(cut).await, 1);
    assert!(matches!(pair.first.ended().await, Err(ServeError::LeadershipLost(_))));
    assert!(began.elapsed() < Duration::from_secs(3), "it hears of it before a successor may begin");
    // Expiry needs a leader.
    pair.second.post("/v1/sandboxes", json!({"ttl_seconds": 1, "on_timeout": "kill"})).await.expect(201);
    eventually("the other one leads", || async { pair.agent.ids().is_empty() }).await;
    assert!(began.elapsed() > Duration::from_secs(3), "not before a cut-off leader would know");
}
