use std::sync::Arc;

use pandastack_control::{Control, ControlConfig, ServeError};
use pandastack_types::SandboxState;
use pandastack_types::link::LinkKey;
use reqwest::Method;
use serde_json::json;
use tokio::sync::Notify;

use crate::fake_agent::SECRET;
use crate::harness::{World, eventually};

#[tokio::test]
async fn sandboxes_survive_a_control_restart() {
    let mut world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let before = world.get(&format!("/v1/sandboxes/{id}")).await.expect(200);
    world.restart().await;
    assert_eq!(world.get(&format!("/v1/sandboxes/{id}")).await.expect(200), before);
    // The host was heard a moment ago: its sandboxes answer before it reports again.
    world.post(&format!("/v1/sandboxes/{id}/exec"), json!({"cmd": "true"})).await.expect(200);
    agent.report().await;
    assert_eq!(world.ids().await, [id]);
}

/// A crash while a create is in progress: finished if the host made it, undone if not; the key gives the same sandbox.
#[tokio::test]
async fn a_crash_during_creates_finishes_or_undoes_them() {
    let mut world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let gate = Arc::new(Notify::new());
    agent.lock().create_gate = Some(gate.clone());
    let request =
        || world.request(Method::POST, "/v1/sandboxes").header("idempotency-key", "k").json(&json!({}));
    let kept = tokio::spawn(request().send());
    eventually("one waits at the host", || async { agent.lock().creates == 1 }).await;
    let kept_id = world.ids().await[0].clone();
    let dropped = tokio::spawn(world.request(Method::POST, "/v1/sandboxes").json(&json!({})).send());
    eventually("two wait at the host", || async { agent.lock().creates == 2 }).await;
    world.crash().await;
    kept.abort();
    dropped.abort();
    // The host finishes one of them and never began the other.
    let made = crate::fake_agent::sandbox(kept_id.parse().unwrap(), "base");
    agent.lock().sandboxes.insert(made.id.clone(), made);
    agent.lock().create_gate = None;
    world.start_again().await;
    assert_eq!(world.ids().await.len(), 2);
    agent.report().await;
    eventually("one is left, running", || async {
        let list = world.get("/v1/sandboxes").await.expect(200);
        list["items"].as_array().unwrap().len() == 1 && list["items"][0]["status"] == "running"
    })
    .await;
    assert_eq!(world.ids().await, std::slice::from_ref(&kept_id));
    let request =
        world.request(Method::POST, "/v1/sandboxes").header("idempotency-key", "k").json(&json!({}));
    assert_eq!(world.send(request).await.expect(201)["id"], kept_id);
    assert_eq!(agent.ids(), [kept_id]);
}

/// A sandbox whose create was never answered loses its machine as well: the key gives another one,
/// and nothing is left of it.
#[tokio::test]
async fn a_lost_unreported_sandbox_is_recreated() {
    let mut world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    agent.lock().create_gate = Some(Arc::new(Notify::new()));
    let request =
        || world.request(Method::POST, "/v1/sandboxes").header("idempotency-key", "k").json(&json!({}));
    let asked = tokio::spawn(request().send());
    eventually("it waits at the host", || async { agent.lock().creates == 1 }).await;
    let lost = world.ids().await[0].clone();
    world.crash().await;
    asked.abort();
    let made = crate::fake_agent::sandbox(lost.parse().unwrap(), "base");
    agent.lock().sandboxes.insert(made.id.clone(), made);
    agent.lock().create_gate = None;
    world.start_again().await;
    for state in [SandboxState::Running, SandboxState::Failed] {
        agent.set_state(&lost, state);
        agent.report().await;
        eventually("the record has the state", || async {
            let shown = world.get(&format!("/v1/sandboxes/{lost}")).await.expect(200);
            shown["status"] == state.as_str()
        })
        .await;
    }
    let request =
        world.request(Method::POST, "/v1/sandboxes").header("idempotency-key", "k").json(&json!({}));
    let again = world.send(request).await.expect(201);
    assert_eq!(again["status"], "running");
    assert_ne!(again["id"], lost);
    assert_eq!(world.ids().await, [again["id"].as_str().unwrap()]);
    assert_eq!(agent.ids(), world.ids().await);
}

#[tokio::test]
async fn two_processes_cannot_share_a_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = ControlConfig::new(dir.path().to_owned(), LinkKey::new(&SECRET).unwrap());
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    let first = Control::bind(config.clone()).await.unwrap();
    assert!(matches!(Control::bind(config.clone()).await, Err(ServeError::InUse(_))));
    drop(first);
    Control::bind(config).await.unwrap();
}
