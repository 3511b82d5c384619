use pandastack_types::SandboxState;
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{World, eventually};

async fn snapshot(world: &World, id: &str, body: Value) -> String {
    let taken = world.post(&format!("/v1/sandboxes/{id}/snapshots"), body).await.expect(201);
    taken["id"].as_str().unwrap().to_owned()
}

async fn snapshots(world: &World) -> Vec<String> {
    let list = world.get("/v1/snapshots").await.expect(200);
    let ids = list["snapshots"].as_array().unwrap().iter();
    ids.map(|snapshot| snapshot["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_rollback_keeps_the_sandbox() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let path = format!("/v1/sandboxes/{id}/rollback");
    world.post(&path, json!({})).await.refused(409, "conflict");
    let own = snapshot(&world, &id, json!({})).await;
    let other = world.create().await;
    let foreign = snapshot(&world, &other, json!({})).await;
    world.post(&path, json!({"snapshot_id": foreign})).await.refused(400, "bad_request");
    world.post(&path, json!({"snapshot_id": "none"})).await.refused(404, "not_found");
    agent.set_state(&id, SandboxState::Hibernated);
    agent.report().await;
    let back = world.post(&path, json!({"snapshot_id": own})).await.expect(200);
    assert_eq!((&back["id"], &back["status"]), (&json!(id), &json!("running")));
    let newest = world.send(world.request(Method::POST, &path)).await.expect(200);
    assert_eq!(newest["id"], json!(id));
    let kinds = world.kinds(&id).await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "rolled_back").count(), 2, "{kinds:?}");
}

#[tokio::test]
async fn old_snapshots_are_deleted_by_count_and_by_ttl() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let named = snapshot(&world, &id, json!({"name": "release"})).await;
    let mut taken = Vec::new();
    for _ in 0..4 {
        taken.push(snapshot(&world, &id, json!({"keep_last": 2})).await);
    }
    assert_eq!(snapshots(&world).await, [taken[3].clone(), taken[2].clone(), named.clone()]);
    assert_eq!(agent.lock().snapshots.len(), 3);
    let short = world.post(&format!("/v1/sandboxes/{id}/snapshots"), json!({"ttl_seconds": 1})).await;
    let short = short.expect(201);
    assert!(short["expires_at"].is_string());
    eventually("one ends by its TTL", || async { snapshots(&world).await.len() == 3 }).await;
    for bad in [json!({"keep_last": 0}), json!({"ttl_seconds": 0}), json!({"keep_last": 1001})] {
        world.post(&format!("/v1/sandboxes/{id}/snapshots"), bad).await.refused(400, "bad_request");
    }
}

#[tokio::test]
async fn checkpoints_are_configurable_and_taken_only_when_due() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let body = json!({"checkpoints": {"every_seconds": 10, "keep_last": 1}});
    let made = world.post("/v1/sandboxes", body).await.expect(201);
    let id = made["id"].as_str().unwrap().to_owned();
    let manual = snapshot(&world, &id, json!({})).await;
    agent.report().await;
    assert_eq!(snapshots(&world).await, std::slice::from_ref(&manual), "not yet due");
    world
        .post("/v1/sandboxes", json!({"checkpoints": {"every_seconds": 1}}))
        .await
        .refused(400, "bad_request");
    let path = format!("/v1/sandboxes/{id}/lifecycle");
    assert_eq!(world.get(&path).await.expect(200)["checkpoints"]["every_seconds"], 10);
    let off = json!({"checkpoints": {"every_seconds": 0}});
    let shown = world.send(world.request(Method::PATCH, &path).json(&off)).await.expect(200);
    assert!(shown["checkpoints"].is_null());
}

#[tokio::test]
async fn idle_timeouts_are_forwarded_and_leases_are_limited() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let made = world.post("/v1/sandboxes", json!({"idle_timeout_seconds": 7})).await.expect(201);
    let id = made["id"].as_str().unwrap();
    let shown = world.get(&format!("/v1/sandboxes/{id}/lifecycle")).await.expect(200);
    assert_eq!((&shown["sleeps_when_idle"], &shown["persistent"]), (&json!(true), &json!(false)));
    let path = format!("/v1/sandboxes/{id}/keep-awake");
    world.post(&path, json!({"seconds": 86_400})).await.expect(200);
    world.post(&path, json!({"seconds": 86_401})).await.refused(400, "bad_request");
    world.post(&path, json!({})).await.refused(400, "bad_request");
    agent.set_state(id, SandboxState::Hibernated);
    agent.report().await;
    world.post(&path, json!({"seconds": 1})).await.expect(200);
    let status = world.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["status"].clone();
    assert_eq!(status, "running", "a lease wakes");
}

#[tokio::test]
async fn lineage_keeps_deleted_ancestors() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let root = world.create().await;
    let fork = |id: String| {
        let world = &world;
        async move { world.post(&format!("/v1/sandboxes/{id}/fork"), json!({})).await.expect(201) }
    };
    let child = fork(root.clone()).await["id"].as_str().unwrap().to_owned();
    let grandchild = fork(child.clone()).await["id"].as_str().unwrap().to_owned();
    world.send(world.request(Method::DELETE, &format!("/v1/sandboxes/{child}"))).await.expect(204);
    let lineage = world.get(&format!("/v1/sandboxes/{grandchild}/lineage")).await.expect(200);
    assert_eq!(lineage["ancestors"], json!([child, root]));
    assert_eq!((&lineage["children"], &lineage["siblings"]), (&json!([]), &json!([])));
    let lineage = world.get(&format!("/v1/sandboxes/{root}/lineage")).await.expect(200);
    assert_eq!((&lineage["ancestors"], &lineage["parent_id"]), (&json!([]), &Value::Null));
}
