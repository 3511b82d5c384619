use std::time::Duration;

use pandastack_types::link::LinkKey;
use serde_json::json;

use crate::fake_agent::sandbox;
use crate::harness::{World, eventually};

#[tokio::test]
async fn sandboxes_are_placed_by_free_memory() {
    let world = World::start().await;
    let a = world.agent("host-a", 3000).await;
    let b = world.agent("host-b", 2600).await;
    for _ in 0..6 {
        world.create().await;
    }
    // With a report after each create, the order would be a b a b a b; without reports, control
    // counts itself.
    assert_eq!((a.ids().len(), b.ids().len()), (3, 3));
    b.lock().unbaked = true;
    b.lock().memory_free_mb = 60_000;
    a.lock().memory_free_mb = 1000;
    a.report().await;
    b.report().await;
    world.create().await;
    assert_eq!(a.ids().len(), 4, "a host that has the template is preferred");
    world.create().await;
    assert_eq!(b.ids().len(), 4, "until it is full");
    b.lock().memory_free_mb = 100;
    b.report().await;
    let refused = world.post("/v1/sandboxes", json!({})).await;
    assert_eq!(refused.headers["retry-after"], "5");
    refused.refused(503, "no_capacity");
    let hosts = world.get("/v1/hosts").await.expect(200);
    assert_eq!(hosts["items"].as_array().unwrap().len(), 2);
    assert_eq!(hosts["items"][0]["reachable"], true);
}

#[tokio::test]
async fn concurrent_creates_do_not_reserve_the_same_memory() {
    let world = World::start().await;
    let agent = world.agent("host-a", 1100).await;
    let create = || world.post("/v1/sandboxes", json!({}));
    let (a, b, c) = tokio::join!(create(), create(), create());
    let mut statuses = [a.status, b.status, c.status];
    statuses.sort();
    assert_eq!(statuses, [201, 201, 503]);
    assert_eq!(agent.ids().len(), 2);
    // A host that promises a tenth takes as many as ten times that memory would.
    agent.lock().memory_promised_percent = 10;
    agent.lock().memory_free_mb = 110;
    agent.report().await;
    let (a, b, c) = tokio::join!(create(), create(), create());
    let mut statuses = [a.status, b.status, c.status];
    statuses.sort();
    assert_eq!(statuses, [201, 201, 503]);
}

#[tokio::test]
async fn a_silent_host_is_shown_as_unreachable_and_recovers() {
    let lost = Duration::from_secs(3);
    let world = World::start_with(|config| config.host_lost_after = lost).await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    agent.report().await;
    let doomed = world.create().await;
    let path = format!("/v1/sandboxes/{id}");
    eventually("it is lost", || async { world.get(&path).await.json["host_reachable"] == false }).await;
    assert_eq!(world.get(&path).await.expect(200)["status"], "running", "the last state known");
    let refused = world.post(&format!("{path}/exec"), json!({"cmd": "true"})).await;
    assert_eq!(refused.headers["retry-after"], "15");
    refused.refused(503, "host_unreachable");
    world.post("/v1/sandboxes", json!({})).await.refused(503, "no_capacity");
    world.get("/readyz").await.refused(503, "unavailable");
    // A delete is recorded and finished when the host is back.
    world.delete(&format!("/v1/sandboxes/{doomed}")).await.expect(204);
    assert_eq!(world.get(&format!("/v1/sandboxes/{doomed}")).await.expect(200)["status"], "stopping");
    assert_eq!(agent.ids().len(), 2);
    agent.report().await;
    eventually("the delete is finished", || async {
        agent.report().await;
        let only = std::slice::from_ref(&id);
        world.ids().await == only && agent.ids() == only
    })
    .await;
    agent.report().await;
    world.post(&format!("{path}/exec"), json!({"cmd": "true"})).await.expect(200);
    agent.report().await;
    assert_eq!(world.get("/readyz").await.expect(200)["status"], "ok");
}

#[tokio::test]
async fn unknown_sandboxes_are_forgotten_and_lost_ones_are_marked_failed() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let stranger: pandastack_types::SandboxId = "stranger".parse().unwrap();
    agent.lock().sandboxes.insert(stranger.clone(), sandbox(stranger.clone(), "base"));
    agent.lock().snapshots.insert("strange".parse().unwrap());
    let answer = agent.report().await;
    assert_eq!(answer.forget_sandboxes, [stranger]);
    assert_eq!(answer.forget_snapshots, ["strange".parse().unwrap()]);
    assert_eq!(agent.ids(), std::slice::from_ref(&id));
    // An old report without it proves nothing: control queries the host, which has it.
    let mut old = agent.report_now();
    old.sandboxes.clear();
    agent.send(old).await;
    eventually("the host is asked", || async { agent.lock().seen.iter().any(|s| s.starts_with("GET ")) })
        .await;
    assert_eq!(world.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["status"], "running");
    // A host that really lost it confirms the loss.
    agent.lock().sandboxes.clear();
    agent.report().await;
    let path = format!("/v1/sandboxes/{id}");
    eventually("it failed", || async { world.get(&path).await.json["status"] == "failed" }).await;
    let shown = world.get(&path).await.expect(200);
    assert!(shown["failure"].as_str().unwrap().contains("no longer has this sandbox"), "{shown}");
    world.delete(&path).await.expect(204);
    assert!(world.ids().await.is_empty());
}

/// A report that was made before a change and arrives after it does not undo the change.
#[tokio::test]
async fn an_old_host_report_does_not_undo_a_change() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    let old = agent.report_now();
    world.post(&format!("/v1/sandboxes/{id}/hibernate"), json!({})).await.expect(200);
    agent.send(old).await;
    assert_eq!(world.get(&format!("/v1/sandboxes/{id}")).await.expect(200)["status"], "hibernated");
    agent.report().await;
    assert_eq!(world.kinds(&id).await, ["creating", "created", "hibernated"]);
}

#[tokio::test]
async fn reports_must_be_signed_by_their_host() {
    let world = World::start().await;
    let agent = world.agent("host-a", 8192).await;
    let (status, body) = agent.send_raw(&agent.report_now(), &LinkKey::new(&[1; 32]).unwrap()).await;
    assert_eq!(status, 401, "{body:?}");
    let mut other = agent.report_now();
    other.host = "host-b".parse().unwrap();
    let key = LinkKey::new(&crate::fake_agent::SECRET).unwrap();
    let (status, body) = agent.send_raw(&other, &key).await;
    assert_eq!(status, 403, "{body:?}");
    assert!(std::str::from_utf8(&body).unwrap().contains("\"code\":\"forbidden\""));
    assert_eq!(world.get("/v1/hosts").await.expect(200)["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn health_version_and_metrics_need_no_key_and_reveal_no_sandbox() {
    let world = World::start().await;
    let plain = |path: &str| world.send(world.http.get(format!("{}{path}", world.base)));
    plain("/readyz").await.refused(503, "unavailable");
    let _agent = world.agent("host-a", 8192).await;
    let id = world.create().await;
    plain("/healthz").await.expect(200);
    plain("/readyz").await.expect(200);
    assert_eq!(plain("/version").await.expect(200)["api"], "v1");
    assert_eq!(plain("/openapi.json").await.expect(200)["info"]["title"], "PandaStack");
    world.get(&format!("/v1/sandboxes/{id}")).await.expect(200);
    let page = plain("/metrics").await.expect(200);
    let page = page.as_str().unwrap();
    assert!(page.contains("pandastack_sandboxes{state=\"running\"} 1"), "{page}");
    assert!(page.contains("route=\"/v1/sandboxes/{id}\""), "{page}");
    assert!(page.contains("pandastack_host_reachable{host=\"host-a\"} 1"), "{page}");
    assert!(!page.contains(&id), "{page}");
}
