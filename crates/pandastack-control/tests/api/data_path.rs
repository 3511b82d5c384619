use std::time::{Duration, Instant};

use futures::StreamExt;
use pandastack_types::SandboxState;
use reqwest::Method;
use serde_json::json;

use crate::harness::{PATIENCE, World};

#[tokio::test]
async fn streams_are_unbuffered_and_end_when_the_client_disconnects() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let request = world.request(Method::POST, &format!("/v1/sandboxes/{id}/exec/stream"));
    let response = request.json(&json!({"cmd": "watch"})).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let mut body = response.bytes_stream();
    let mut text = String::new();
    // The stream never ends by itself, so data read here was not buffered.
    while !text.contains("\"b\"") {
        let chunk = tokio::time::timeout(PATIENCE, body.next()).await.unwrap().unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    drop(body);
    tokio::time::timeout(PATIENCE, agent.stream_dropped.notified()).await.expect("the agent learns of it");
}

#[tokio::test]
async fn files_stream_both_ways() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let path = format!("/v1/sandboxes/{id}/fs?path=/big");
    let read = world.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(read.headers()["content-type"], "application/octet-stream");
    assert_eq!(read.bytes().await.unwrap().len(), 64 * 65_536);
    let chunks = futures::stream::iter(0..100).map(|_| Ok::<_, std::io::Error>(vec![1_u8; 50_000]));
    let request = world.request(Method::PUT, &path).body(reqwest::Body::wrap_stream(chunks));
    assert_eq!(world.send(request).await.expect(200)["bytes"], 5_000_000);
    world.get(&format!("/v1/sandboxes/{id}/fs?path=/missing")).await.refused(404, "file_not_found");
    world.get(&format!("/v1/sandboxes/{id}/fs/stat?path=/x")).await.refused(404, "file_not_found");
    let listed = world.get(&format!("/v1/sandboxes/{id}/fs/dir")).await.expect(200);
    assert!(listed["did"].as_str().unwrap().ends_with("/fs/dir?path=/"), "{listed}");
}

#[tokio::test]
async fn exec_timeouts_pass_through_and_exec_wakes_a_sandbox() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let exec = format!("/v1/sandboxes/{id}/exec");
    world.post(&exec, json!({"cmd": "sleep"})).await.refused(504, "exec_timeout");
    agent.set_state(&id, SandboxState::Hibernated);
    agent.report().await;
    let path = format!("/v1/sandboxes/{id}");
    assert_eq!(world.get(&path).await.expect(200)["status"], "hibernated");
    assert_eq!(world.get(&path).await.expect(200)["residency"], "memory");
    world.post(&exec, json!({"cmd": "true"})).await.expect(200);
    assert_eq!(world.get(&path).await.expect(200)["status"], "running", "seen before its host reports it");
    agent.report().await;
    assert_eq!(world.kinds(&id).await, ["creating", "created", "hibernated", "woken"]);
}

/// Measures control's overhead: whole calls from a client through control to an agent that does
/// nothing, and back. Printed, and bounded loosely beside the cheapest call, since the machine is shared.
#[tokio::test]
async fn control_adds_little_latency() {
    let world = World::start().await;
    let _agent = world.agent("host-a", 1 << 20).await;
    let id = world.create().await;
    let path = format!("/v1/sandboxes/{id}/exec");
    let mut took = [Vec::new(), Vec::new(), Vec::new()];
    let mut cheapest = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        world.get("/v1/me").await.expect(200);
        cheapest.push(began.elapsed());
        let began = Instant::now();
        world.post(&path, json!({"cmd": "true"})).await.expect(200);
        took[0].push(began.elapsed());
        let began = Instant::now();
        let made = world.create().await;
        took[1].push(began.elapsed());
        let began = Instant::now();
        world.delete(&format!("/v1/sandboxes/{made}")).await.expect(204);
        took[2].push(began.elapsed());
    }
    cheapest.sort();
    for (what, mut took) in ["exec", "create", "delete"].into_iter().zip(took) {
        took.sort();
        let base = cheapest[100];
        eprintln!("{what} through control: p50 {:?}, p99 {:?}; cheapest call {base:?}", took[100], took[198]);
        assert!(took[100] < Duration::from_millis(50).max(base * 20), "{what}: {:?}, {base:?}", took[100]);
    }
}
