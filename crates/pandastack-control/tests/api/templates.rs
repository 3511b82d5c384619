use reqwest::Method;
use serde_json::json;

use crate::harness::{World, eventually};

#[tokio::test]
async fn templates_of_all_hosts_are_merged_into_one_catalogue() {
    let world = World::start().await;
    let a = world.agent("host-a", 8192).await;
    let _b = world.agent("host-b", 8192).await;
    a.lock().unbaked = true;
    a.report().await;
    let list = world.get("/v1/templates").await.expect(200);
    assert_eq!(list.as_array().unwrap().len(), 3, "a bare array");
    assert_eq!((&list[0]["name"], &list[0]["status"]), (&json!("base"), &json!("ready")));
    assert_eq!(world.get("/v1/templates/ubuntu-24.04").await.expect(200)["name"], "base");
}

#[tokio::test]
async fn a_build_is_listed_and_its_log_is_followed() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    agent.lock().build_lines = vec!["one".into()];
    let build = world.post("/v1/templates/ubuntu-24.04/bake", json!({})).await.expect(202);
    assert_eq!(build["status"], "running");
    assert!(
        agent.lock().seen.iter().any(|s| s.ends_with("/templates/base/bake")),
        "by its name, not the alias"
    );
    world.post("/v1/templates/nope/bake", json!({})).await.refused(404, "not_found");
    assert_eq!(world.get("/v1/templates/builds").await.expect(200)[0]["id"], "b1");
    assert_eq!(world.get("/v1/templates/builds/b1").await.expect(200)["name"], "base");
    let request = world.request(Method::GET, "/v1/templates/builds/b1/logs?follow=1");
    let follow = tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() });
    eventually("it is asked for news", || async {
        agent.lock().seen.iter().any(|s| s.contains("seen_lines=1"))
    })
    .await;
    agent.lock().build_lines.push("two".into());
    agent.lock().build_done = true;
    let text = follow.await.unwrap().replace(": \n\n", "");
    assert_eq!(text, "data: one\n\ndata: two\n\nevent: done\ndata: end\n\n");
}
