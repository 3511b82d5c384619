use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use crate::harness::{World, eventually};

#[tokio::test]
async fn only_expired_sandboxes_are_ended() {
    let world = World::start().await;
    let agent = world.agent("host-a", 65_536).await;
    let mut short = Vec::new();
    for _ in 0..3 {
        let made = world.post("/v1/sandboxes", json!({"ttl_seconds": 3600})).await.expect(201);
        short.push(made["id"].as_str().unwrap().to_owned());
    }
    let long = world.create().await;
    let sleeps = json!({"ttl_seconds": 5, "on_timeout": "hibernate", "keep_on_timeout": "disk"});
    let sleeper = world.post("/v1/sandboxes", sleeps).await.expect(201);
    let sleeper = sleeper["id"].as_str().unwrap();
    assert_eq!(agent.ids().len(), 5);
    let began = Instant::now();
    for id in &short {
        let patch = world.request(Method::PATCH, &format!("/v1/sandboxes/{id}/lifecycle"));
        world.send(patch.json(&json!({"ttl_seconds": 1}))).await.expect(200);
    }
    eventually("the short ones end", || async { world.ids().await.len() == 2 }).await;
    assert!(began.elapsed() >= Duration::from_secs(1), "none ends early");
    let path = format!("/v1/sandboxes/{sleeper}");
    eventually("one sleeps", || async { world.get(&path).await.json["status"] == "hibernated" }).await;
    let asleep = world.get(&path).await.expect(200);
    assert!(asleep["expires_at"].is_null(), "asleep it has no end");
    assert_eq!(asleep["kept"], "disk");
    assert_eq!(agent.ids().len(), 2);
    assert!(world.ids().await.contains(&long));
    let woken = world.post(&format!("{path}/wake"), json!({})).await.expect(200);
    assert_eq!(woken["status"], "running");
    assert!(world.get(&path).await.expect(200)["expires_at"].is_string(), "awake it has one again");
    eventually("it sleeps again", || async { world.get(&path).await.json["status"] == "hibernated" }).await;
}

#[tokio::test]
async fn lifecycle_transitions_return_the_documented_statuses() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let path = format!("/v1/sandboxes/{id}");
    let status = || async { world.get(&path).await.expect(200)["status"].as_str().unwrap().to_owned() };
    for (verb, code, after) in [
        ("wake", 200, "running"),
        ("pause", 204, "paused"),
        ("resume", 204, "running"),
        ("hibernate", 200, "hibernated"),
        ("hibernate", 200, "hibernated"),
        ("wake", 200, "running"),
    ] {
        let answer = world.send(world.request(Method::POST, &format!("{path}/{verb}"))).await.expect(code);
        if code == 200 {
            assert_eq!(answer, json!({"status": after}));
        }
        assert_eq!(status().await, after, "{verb}");
    }
    let kinds = world.kinds(&id).await;
    assert_eq!(kinds, ["creating", "created", "paused", "resumed", "hibernated", "woken"]);
}

#[tokio::test]
async fn lifecycle_can_be_read_and_changed() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let path = format!("/v1/sandboxes/{id}/lifecycle");
    let shown = world.get(&path).await.expect(200);
    assert_eq!((&shown["ttl_seconds"], &shown["persistent"]), (&json!(3600), &json!(false)));
    assert_eq!(shown["idle_seconds"], 42);
    let patch = |body| world.send(world.request(Method::PATCH, &path).json(&body));
    let shown = patch(json!({"persistent": true})).await.expect(200);
    assert_eq!((&shown["persistent"], &shown["expires_at"]), (&json!(true), &json!(null)));
    assert_eq!(agent.lock().patches, [json!({"idle_timeout_seconds": 300})]);
    let shown = patch(json!({"ttl_seconds": 1})).await.expect(200);
    assert_eq!((&shown["persistent"], &shown["ttl_seconds"]), (&json!(false), &json!(1)));
    assert_eq!(agent.lock().patches.len(), 2);
    eventually("its new lifetime ends", || async { world.ids().await.is_empty() }).await;
}
